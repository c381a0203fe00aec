//! The CPU's call beside the device's own products: on a second stream, which the step's stream waits for.

use crate::Result;
use crate::sys::HostWork;
use crate::{Device, Event, Stream};

/// The second stream. In a capture it forks off the step's stream and joins it again.
pub(crate) struct Aside {
    calls: Stream,
    begun: Event,
    done: Event,
    /// True from a call until the step's stream waits for it.
    is_open: bool,
}

impl Aside {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let [begun, done] = [Event::new(device)?, Event::new(device)?];
        Ok(Self { calls: Stream::new(device)?, begun, done, is_open: false })
    }

    /// Queues a call behind everything on the stream so far.
    ///
    /// # Safety
    /// See `Stream::launch_host`.
    pub(crate) unsafe fn launch<T: HostWork>(&mut self, stream: &Stream, work: &T) -> Result<()> {
        self.is_open = true;
        self.begun.record(stream)?;
        self.calls.wait_for(&self.begun)?;
        // SAFETY: the caller's promise.
        unsafe { self.calls.launch_host(work)? };
        self.done.record(&self.calls)
    }

    /// Lets the stream wait for the last call.
    pub(crate) fn join(&mut self, stream: &Stream) -> Result<()> {
        stream.wait_for(&self.done)?;
        self.is_open = false;
        Ok(())
    }

    /// Waits for a call that a failed step has left.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if self.is_open {
            self.calls.synchronize()?;
            self.is_open = false;
        }
        Ok(())
    }
}
