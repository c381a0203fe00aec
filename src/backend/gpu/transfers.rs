//! Copies from the device to the host, through one page-locked area. They note whether queued work may still use
//! page-locked memory.

use super::{Device, DeviceSlice, HostBuffer, Stream};
use crate::Result;

/// Bytes that come to the host at once.
const STAGING_BYTES: usize = 4 << 20;

pub(super) struct Transfers {
    staging: HostBuffer,
    /// Whether queued work may use page-locked memory, and nobody has waited for it: a step runs, or one did not come
    /// to its end.
    unsettled: bool,
}

impl Transfers {
    pub(super) fn new(device: &Device) -> Result<Self> {
        Ok(Self { staging: HostBuffer::new(device, STAGING_BYTES)?, unsettled: false })
    }

    /// Notes that work that uses page-locked memory is about to be queued.
    pub(super) fn begin(&mut self) {
        self.unsettled = true;
    }

    /// Notes that nothing that was queued uses page-locked memory, but for what an event marks.
    pub(super) fn settled(&mut self) {
        self.unsettled = false;
    }

    /// Waits for what a step that failed has left behind. That a wait failed says nothing of the work before it, and
    /// what was queued before a failed launch runs all the same: both may still read or write page-locked memory, which
    /// the next step is about to use. Until a wait succeeds, every step fails here; none uses the memory.
    pub(super) fn settle(&mut self, stream: &Stream) -> Result<()> {
        if self.unsettled {
            stream.synchronize()?;
            self.unsettled = false;
        }
        Ok(())
    }

    /// Brings device memory to the host, piece by piece, and shows each piece to `take`.
    pub(super) fn read(&mut self, stream: &Stream, from: DeviceSlice<'_>, mut take: impl FnMut(&[u8])) -> Result<()> {
        let mut rest = from;
        while rest.bytes() > 0 {
            let piece = rest.bytes().min(STAGING_BYTES as u64);
            let to = &mut self.staging.as_mut_slice()[..piece as usize];
            self.unsettled = true;
            // SAFETY: `to` is looked at only after the stream was waited for; the memory is the backend's, which keeps
            // it until it has waited.
            unsafe { stream.copy_to_host(to, rest)? };
            stream.synchronize()?;
            self.unsettled = false;
            take(&self.staging.as_slice()[..piece as usize]);
            rest = rest.after(piece)?;
        }
        Ok(())
    }
}
