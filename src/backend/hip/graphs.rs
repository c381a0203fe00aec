//! Recorded decode steps: launching one costs a single call instead of some ten per layer. All that differs between steps
//! is in device memory (`step`), so a recording serves every batch up to its size, with contexts up to any length; but
//! there is one for each number of splits that the longest context allows attention. Whatever else an op's launch depends
//! on must become part of `Key`.

use std::collections::HashMap;

use super::checks::Check;
use super::step::StepInputs;
use super::tuning::bucket;
use super::{Graph, Stream};
use crate::backend::Plan;
use crate::batch::Batch;
use crate::{Error, Result};

pub struct Graphs {
    /// The largest batch of single rows.
    most: usize,
    recorded: HashMap<Key, Recorded>,
    state: State,
}

struct Recorded {
    graph: Graph,
    /// What its ops rely on in a batch: they are not called again, so each repetition asks.
    checks: Vec<Check>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    rows: usize,
    context_splits: u32,
}

enum State {
    /// Ops run as they come.
    Idle,
    /// Ops are recorded.
    Recording(Key),
    /// A recording does the step.
    Replaying(Key),
}

impl Graphs {
    pub fn new(most: usize) -> Self {
        Self { most, recorded: HashMap::new(), state: State::Idle }
    }

    /// Rows of the recording that is being made.
    pub fn recording(&self) -> Option<usize> {
        match self.state {
            State::Recording(key) => Some(key.rows),
            _ => None,
        }
    }

    /// The step of a batch of single rows, which `inputs` was given: repeats a recording, or makes one. Nothing is
    /// allocated for it but what the driver needs itself.
    ///
    /// # Errors
    /// Those of the recorded ops for such a batch.
    pub fn begin(&mut self, batch: &Batch, inputs: &mut StepInputs, stream: &Stream) -> Result<Plan> {
        let rows = batch.num_tokens();
        let Some(size) = bucket(rows, self.most) else { return Ok(Plan::Run { rows }) };
        let key = Key { rows: size, context_splits: inputs.shape.context_splits };
        if let Some(recorded) = self.recorded.get(&key) {
            recorded.checks.iter().try_for_each(|&check| inputs.check(batch, check))?;
            self.state = State::Replaying(key);
            return Ok(Plan::Replay);
        }
        stream.begin_capture()?;
        self.state = State::Recording(key);
        Ok(Plan::Run { rows: size })
    }

    /// The step's ops are complete: runs what was recorded.
    pub fn end(&mut self, inputs: &StepInputs, stream: &Stream) -> Result<()> {
        let key = match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => return Ok(()),
            State::Recording(key) => {
                let recorded = Recorded { graph: stream.end_capture()?, checks: inputs.checked().to_vec() };
                self.recorded.insert(key, recorded);
                key
            }
            State::Replaying(key) => key,
        };
        let recorded = self.recorded.get(&key).ok_or_else(|| Error::internal("a recorded step that is not there"))?;
        // SAFETY: a recording uses the engine's own buffers and modules, which live as long as the backend, on its one
        // stream; weights and cache are given to every step by the same decoder, and `begin` checked the batch as the
        // recorded ops did theirs.
        unsafe { recorded.graph.launch(stream) }
    }

    /// Ends a recording that an error cut short, so that the stream runs again.
    pub fn abandon(&mut self, stream: &Stream) {
        if let State::Recording(_) = std::mem::replace(&mut self.state, State::Idle) {
            // The recording is of no use, and that it cannot be ended properly neither.
            let _ = stream.end_capture();
        }
    }
}
