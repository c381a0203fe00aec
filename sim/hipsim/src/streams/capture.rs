//! Stream capture: operations become a graph instead of work.
//!
//! Another stream joins a capture by waiting for an event that was recorded in it (a fork). Its operations go into the
//! same graph, until the first stream has waited for an event behind them (a join). The order of the calls is an order
//! in which the graph may run.

use std::collections::HashMap;
use std::thread::ThreadId;

use super::operation::Operation;
use crate::status::{Result, Status};

/// The part that a stream has in a capture, if any.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    /// The graph of a capture that began on this stream.
    graph: Option<Graph>,
    /// The stream whose capture this one has joined.
    pub origin: Option<u64>,
}

/// The graph that a capture builds.
#[derive(Debug)]
struct Graph {
    thread: ThreadId,
    operations: Vec<Operation>,
    /// The other streams.
    forks: HashMap<u64, Fork>,
    invalid: bool,
}

#[derive(Debug, Default)]
struct Fork {
    operations: usize,
    /// The operations that another stream of the capture has waited for.
    joined: usize,
}

/// A position in a capture, which an event keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    /// The stream on which the capture began.
    pub origin: u64,
    stream: u64,
    /// The operations of the stream so far, if it is a fork.
    operations: usize,
}

impl Capture {
    /// Begins a capture in thread-local mode: until its end, this thread may not make calls that could wait for the
    /// device.
    pub(crate) fn begin(&mut self, thread: ThreadId) -> Result<()> {
        if self.graph.is_some() || self.origin.is_some() {
            return Err(Status::ILLEGAL_STATE);
        }
        self.graph = Some(Graph { thread, operations: Vec::new(), forks: HashMap::new(), invalid: false });
        Ok(())
    }

    /// Ends the capture. An invalid capture ends too, with an error.
    pub(crate) fn end(&mut self, thread: ThreadId) -> Result<Vec<Operation>> {
        let graph = self.graph.take().ok_or(Status::ILLEGAL_STATE)?;
        if graph.thread != thread {
            self.graph = Some(graph);
            return Err(Status::CAPTURE_WRONG_THREAD);
        }
        if graph.invalid {
            return Err(Status::CAPTURE_INVALIDATED);
        }
        match graph.forks.values().all(|fork| fork.joined == fork.operations) {
            true => Ok(graph.operations),
            false => Err(Status::CAPTURE_UNJOINED),
        }
    }

    /// True if a capture that began on this stream goes on.
    pub(crate) fn is_active(&self) -> bool {
        self.graph.is_some()
    }

    /// Refuses an operation that cannot be captured, which invalidates the capture.
    pub(crate) fn refuse(&mut self) -> Result<()> {
        match &mut self.graph {
            None if self.origin.is_none() => Ok(()),
            graph => {
                graph.iter_mut().for_each(|graph| graph.invalid = true);
                Err(Status::CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Refuses like `refuse`, if this thread is the one that captures.
    pub(crate) fn refuse_to(&mut self, thread: ThreadId) -> Result<()> {
        if self.graph.as_ref().is_some_and(|graph| graph.thread == thread) {
            return self.refuse();
        }
        Ok(())
    }

    /// Adds an operation of a stream to the graph; returns it if no capture is active.
    pub(crate) fn add(&mut self, stream: u64, operation: Operation) -> Result<Option<Operation>> {
        match &mut self.graph {
            None => Ok(Some(operation)),
            Some(graph) if graph.invalid => Err(Status::CAPTURE_INVALIDATED),
            Some(graph) => {
                graph.operations.push(operation);
                if let Some(fork) = graph.forks.get_mut(&stream) {
                    fork.operations += 1;
                }
                Ok(None)
            }
        }
    }

    /// Returns the position of a stream in the capture that began on stream `origin`, which is this one.
    pub(crate) fn point(&self, origin: u64, stream: u64) -> Point {
        let fork = self.graph.as_ref().and_then(|graph| graph.forks.get(&stream));
        Point { origin, stream, operations: fork.map_or(0, |fork| fork.operations) }
    }

    /// Lets a stream wait for a point of the capture that began on this one. True if the stream joins it by that.
    pub(crate) fn wait(&mut self, stream: u64, point: Point) -> Result<bool> {
        // The capture has ended, and the event's record belongs to its graph.
        let graph = self.graph.as_mut().ok_or(Status::CAPTURED_EVENT)?;
        if let Some(fork) = graph.forks.get_mut(&point.stream).filter(|_| point.stream != stream) {
            fork.joined = fork.joined.max(point.operations);
        }
        let is_new = stream != point.origin && !graph.forks.contains_key(&stream);
        if is_new {
            graph.forks.insert(stream, Fork::default());
        }
        Ok(is_new)
    }
}
