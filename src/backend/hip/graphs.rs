//! Recorded decode steps: launching one costs a single call instead of some ten per layer. All that differs between steps
//! is in device memory (`step`), so a recording serves every batch up to its size, with contexts up to any length; but
//! there is one for each number of splits that attention takes contexts in.

use std::collections::HashMap;

use super::tuning::bucket;
use super::{Graph, Stream};
use crate::backend::Plan;
use crate::{Error, Result};

pub struct Graphs {
    /// The largest batch of single rows.
    most: usize,
    recorded: HashMap<Key, Graph>,
    state: State,
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

    /// A step of `rows` single rows: repeats a recording, or makes one. Nothing is allocated for it but what the driver
    /// needs itself.
    pub fn begin(&mut self, rows: usize, context_splits: u32, stream: &Stream) -> Result<Plan> {
        let Some(size) = bucket(rows, self.most) else { return Ok(Plan::Run { rows }) };
        let key = Key { rows: size, context_splits };
        if self.recorded.contains_key(&key) {
            self.state = State::Replaying(key);
            return Ok(Plan::Replay);
        }
        stream.begin_capture()?;
        self.state = State::Recording(key);
        Ok(Plan::Run { rows: size })
    }

    /// The step's ops are complete: runs what was recorded.
    pub fn end(&mut self, stream: &Stream) -> Result<()> {
        let key = match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => return Ok(()),
            State::Recording(key) => {
                let graph = stream.end_capture()?;
                self.recorded.insert(key, graph);
                key
            }
            State::Replaying(key) => key,
        };
        let graph = self.recorded.get(&key).ok_or_else(|| Error::internal("a recorded step that is not there"))?;
        // SAFETY: a recording uses the engine's own buffers and modules, which live as long as the backend, on its one
        // stream; weights and cache are given to every step by the same decoder.
        unsafe { graph.launch(stream) }
    }

    /// Ends a recording that an error cut short, so that the stream runs again.
    pub fn abandon(&mut self, stream: &Stream) {
        if let State::Recording(_) = std::mem::replace(&mut self.state, State::Idle) {
            // The recording is of no use, and that it cannot be ended properly neither.
            let _ = stream.end_capture();
        }
    }
}
