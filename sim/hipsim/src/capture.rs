//! Stream capture: operations become a graph instead of work.

use std::thread::ThreadId;

use crate::queue::{Operation, Stream};
use crate::status::{Result, Status};

#[derive(Debug)]
pub(crate) struct Capture {
    thread: ThreadId,
    operations: Vec<Operation>,
    invalid: bool,
}

impl Stream {
    /// Begins a capture in thread-local mode: until its end, this thread may not call what could wait for the device.
    pub(crate) fn begin_capture(&mut self, thread: ThreadId) -> Result<()> {
        if self.capture.is_some() {
            return Err(Status::ILLEGAL_STATE);
        }
        self.capture = Some(Capture { thread, operations: Vec::new(), invalid: false });
        Ok(())
    }

    /// Ends it. An invalid capture ends too, with an error.
    pub(crate) fn end_capture(&mut self, thread: ThreadId) -> Result<Vec<Operation>> {
        let capture = self.capture.take().ok_or(Status::ILLEGAL_STATE)?;
        if capture.thread != thread {
            self.capture = Some(capture);
            return Err(Status::CAPTURE_WRONG_THREAD);
        }
        if capture.invalid {
            return Err(Status::CAPTURE_INVALIDATED);
        }
        Ok(capture.operations)
    }

    /// Refuses what cannot be captured, and makes the capture invalid by it.
    pub(crate) fn refuse_in_capture(&mut self) -> Result<()> {
        match &mut self.capture {
            None => Ok(()),
            Some(capture) => {
                capture.invalid = true;
                Err(Status::CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Refuses as `refuse_in_capture` does, if it is this thread that captures.
    pub(crate) fn refuse_to_capturer(&mut self, thread: ThreadId) -> Result<()> {
        if self.capture.as_ref().is_some_and(|capture| capture.thread == thread) {
            return self.refuse_in_capture();
        }
        Ok(())
    }

    /// Adds an operation to the graph; returns it if no capture is going on.
    pub(crate) fn capture(&mut self, operation: Operation) -> Result<Option<Operation>> {
        match &mut self.capture {
            None => Ok(Some(operation)),
            Some(capture) if capture.invalid => Err(Status::CAPTURE_INVALIDATED),
            Some(capture) => {
                capture.operations.push(operation);
                Ok(None)
            }
        }
    }
}
