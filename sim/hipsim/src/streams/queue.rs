//! Streams and events. A stream is a list of operations that have not run yet; an event is a position in such a list.

use std::collections::{HashMap, VecDeque};

use super::capture::{Capture, Point};
use super::operation::Mark;
use super::order::{Known, Queued};

#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub waiting: VecDeque<Queued>,
    /// The number of operations ever removed from `waiting`.
    pub done: u64,
    /// Operations of other streams that precede the next operation.
    pub known: Known,
    pub capture: Capture,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Event {
    /// The latest record.
    pub mark: Option<Mark>,
    /// Operations of other streams that precede its record.
    pub known: Known,
    /// The position of its latest record, if that is part of a capture.
    pub captured: Option<Point>,
    /// True if a query after that record has returned "not ready".
    pub queried: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub live: HashMap<u64, Stream>,
    /// The numbers of operations that destroyed streams had done; those still waiting never run.
    destroyed: HashMap<u64, u64>,
}

/// The state of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    Waiting,
    /// Its stream was destroyed before it ran.
    Lost,
}

impl Streams {
    pub(crate) fn progress(&self, mark: Mark) -> Progress {
        match (self.live.get(&mark.stream), self.destroyed.get(&mark.stream)) {
            (Some(stream), _) if mark.position >= stream.done => Progress::Waiting,
            (None, Some(done)) if mark.position >= *done => Progress::Lost,
            (None, None) => Progress::Lost,
            _ => Progress::Done,
        }
    }

    /// Removes a stream; returns how many operations are lost with it.
    pub(crate) fn destroy(&mut self, id: u64) -> Option<usize> {
        let stream = self.live.remove(&id)?;
        self.destroyed.insert(id, stream.done);
        Some(stream.waiting.len())
    }

    /// Drops all waiting operations, after a fault.
    pub(crate) fn clear(&mut self) {
        for stream in self.live.values_mut() {
            stream.done += stream.waiting.len() as u64;
            stream.waiting.clear();
        }
    }
}

impl Stream {
    /// Returns the waiting operations with their positions.
    pub(crate) fn positions(&self) -> impl Iterator<Item = (u64, &Queued)> {
        (self.done..).zip(&self.waiting)
    }

    /// Returns the position of an operation enqueued now.
    pub(crate) fn next_position(&self) -> u64 {
        self.done + self.waiting.len() as u64
    }
}
