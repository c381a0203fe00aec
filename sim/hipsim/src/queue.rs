//! Streams and events. A stream is a list of operations that have not run yet; an event is a place in such a list.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::capture::Capture;
use crate::order::{Known, Queued};
use crate::product::Product;

/// An address of the host's, as a program gave it. What lies there is read or written when the operation runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostAddress(pub usize);

#[derive(Debug, Clone)]
pub(crate) enum Operation {
    ToDevice {
        to: u64,
        from: HostAddress,
        bytes: usize,
    },
    ToHost {
        to: HostAddress,
        from: u64,
        bytes: usize,
    },
    OnDevice {
        to: u64,
        from: u64,
        bytes: usize,
    },
    Fill {
        to: u64,
        byte: u8,
        bytes: usize,
    },
    Launch(Launch),
    /// A product of the matrix library.
    Product(Product),
    /// A mark of a place, for events.
    Record,
    Wait(Mark),
    Graph(Arc<[Operation]>),
}

/// A kernel launch with its arguments as they were when it was enqueued.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    /// The function's number, so that a module that was unloaded before its launch ran is noticed.
    pub function: u64,
    pub name: Arc<str>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// Arguments in units of 16 bytes, for the alignment.
    pub arguments: Arc<[u128]>,
    pub argument_bytes: usize,
}

/// The place of an operation: the stream, and how many operations were enqueued on it before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    pub stream: u64,
    pub position: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub waiting: VecDeque<Queued>,
    /// Operations taken out of `waiting`, ever.
    pub done: u64,
    /// Operations of other streams that come before the next operation.
    pub known: Known,
    pub capture: Option<Capture>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Event {
    /// The latest record.
    pub mark: Option<Mark>,
    /// Operations of other streams that the stream knew to come before its record.
    pub known: Known,
    /// Whether a query after that record has been answered with "not ready".
    pub queried: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub live: HashMap<u64, Stream>,
    /// Operations done by streams that were destroyed; what was waiting then never runs.
    destroyed: HashMap<u64, u64>,
}

/// Whether an operation has run.
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

    /// Forgets a stream; answers how many operations are lost with it.
    pub(crate) fn destroy(&mut self, id: u64) -> Option<usize> {
        let stream = self.live.remove(&id)?;
        self.destroyed.insert(id, stream.done);
        Some(stream.waiting.len())
    }

    /// Drops everything that waits, after a fault.
    pub(crate) fn clear(&mut self) {
        for stream in self.live.values_mut() {
            stream.done += stream.waiting.len() as u64;
            stream.waiting.clear();
        }
    }
}

impl Stream {
    /// Operations that wait, with their positions.
    pub(crate) fn positions(&self) -> impl Iterator<Item = (u64, &Queued)> {
        (self.done..).zip(&self.waiting)
    }

    /// The place of an operation enqueued now.
    pub(crate) fn next_position(&self) -> u64 {
        self.done + self.waiting.len() as u64
    }
}
