//! Recorded decode steps, one per batch size: launching one costs a single call instead of some ten per layer. All that
//! differs between steps is in device memory (`step`), so a recording serves every batch up to its size.

use std::collections::HashMap;

use super::tuning::bucket;
use super::{Graph, Stream};
use crate::backend::Plan;
use crate::{Error, Result};

pub struct Graphs {
    /// The largest batch of single rows.
    most: usize,
    recorded: HashMap<usize, Graph>,
    state: State,
}

enum State {
    /// Ops run as they come.
    Idle,
    /// Ops are recorded for this many rows.
    Recording(usize),
    /// The recording for this many rows does the step.
    Replaying(usize),
}

impl Graphs {
    pub fn new(most: usize) -> Self {
        Self { most, recorded: HashMap::new(), state: State::Idle }
    }

    /// Rows of the recording that is being made.
    pub fn recording(&self) -> Option<usize> {
        match self.state {
            State::Recording(rows) => Some(rows),
            _ => None,
        }
    }

    /// A step of `rows` single rows: repeats a recording, or makes one. Nothing is allocated for it but what the driver
    /// needs itself.
    pub fn begin(&mut self, rows: usize, stream: &Stream) -> Result<Plan> {
        let Some(size) = bucket(rows, self.most) else { return Ok(Plan::Run { rows }) };
        if self.recorded.contains_key(&size) {
            self.state = State::Replaying(size);
            return Ok(Plan::Replay);
        }
        stream.begin_capture()?;
        self.state = State::Recording(size);
        Ok(Plan::Run { rows: size })
    }

    /// The step's ops are complete: runs what was recorded.
    pub fn end(&mut self, stream: &Stream) -> Result<()> {
        let size = match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => return Ok(()),
            State::Recording(size) => {
                let graph = stream.end_capture()?;
                self.recorded.insert(size, graph);
                size
            }
            State::Replaying(size) => size,
        };
        let graph = self.recorded.get(&size).ok_or_else(|| Error::internal("a recorded step that is not there"))?;
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
