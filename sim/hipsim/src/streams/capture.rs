//! Stream capture: operations become a graph instead of work.

use std::thread::ThreadId;

use super::operation::Operation;
use crate::status::{Result, Status};

/// The capture of a stream, if one is active.
#[derive(Debug, Default)]
pub(crate) struct Capture(Option<Graph>);

/// The graph that a capture builds.
#[derive(Debug)]
struct Graph {
    thread: ThreadId,
    operations: Vec<Operation>,
    invalid: bool,
}

impl Capture {
    /// Begins a capture in thread-local mode: until its end, this thread may not make calls that could wait for the
    /// device.
    pub(crate) fn begin(&mut self, thread: ThreadId) -> Result<()> {
        if self.0.is_some() {
            return Err(Status::ILLEGAL_STATE);
        }
        self.0 = Some(Graph { thread, operations: Vec::new(), invalid: false });
        Ok(())
    }

    /// Ends the capture. An invalid capture ends too, with an error.
    pub(crate) fn end(&mut self, thread: ThreadId) -> Result<Vec<Operation>> {
        let graph = self.0.take().ok_or(Status::ILLEGAL_STATE)?;
        if graph.thread != thread {
            self.0 = Some(graph);
            return Err(Status::CAPTURE_WRONG_THREAD);
        }
        if graph.invalid {
            return Err(Status::CAPTURE_INVALIDATED);
        }
        Ok(graph.operations)
    }

    /// Refuses an operation that cannot be captured, which invalidates the capture.
    pub(crate) fn refuse(&mut self) -> Result<()> {
        match &mut self.0 {
            None => Ok(()),
            Some(graph) => {
                graph.invalid = true;
                Err(Status::CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Refuses like `refuse`, if this thread is the one that captures.
    pub(crate) fn refuse_to(&mut self, thread: ThreadId) -> Result<()> {
        if self.0.as_ref().is_some_and(|graph| graph.thread == thread) {
            return self.refuse();
        }
        Ok(())
    }

    /// Adds an operation to the graph; returns it if no capture is active.
    pub(crate) fn add(&mut self, operation: Operation) -> Result<Option<Operation>> {
        match &mut self.0 {
            None => Ok(Some(operation)),
            Some(graph) if graph.invalid => Err(Status::CAPTURE_INVALIDATED),
            Some(graph) => {
                graph.operations.push(operation);
                Ok(None)
            }
        }
    }
}
