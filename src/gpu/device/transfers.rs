//! Copies between the device and the host through one page-locked area. It also tracks if queued work may still use
//! page-locked memory.

use crate::Result;
use crate::{Device, DeviceSlice, HostBuffer, Stream};

/// Bytes that one copy moves at most.
const STAGING_BYTES: usize = 4 << 20;

pub(crate) struct Transfers {
    staging: HostBuffer,
    /// True if queued work may use page-locked memory and nobody has waited for it: a step runs, or one failed halfway.
    unsettled: bool,
}

impl Transfers {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        Ok(Self { staging: HostBuffer::new(device, STAGING_BYTES)?, unsettled: false })
    }

    /// Notes that work that uses page-locked memory is about to be queued.
    pub(crate) fn begin(&mut self) {
        self.unsettled = true;
    }

    /// Notes that no queued work uses page-locked memory, except for work that an event marks.
    pub(crate) fn settled(&mut self) {
        self.unsettled = false;
    }

    /// Waits for work of a failed step. Even if a wait or a launch fails, earlier work on the stream still runs. It may
    /// read or write page-locked memory, which the next step is about to use. Until a wait succeeds, every step fails
    /// here and none uses the memory. True if there was such a step.
    pub(crate) fn settle(&mut self, stream: &Stream) -> Result<bool> {
        let was_unsettled = self.unsettled;
        if was_unsettled {
            stream.synchronize()?;
            self.unsettled = false;
        }
        Ok(was_unsettled)
    }

    /// Copies device memory to the host piece by piece, and passes each piece to `take`.
    pub(crate) fn read(&mut self, stream: &Stream, from: DeviceSlice<'_>, mut take: impl FnMut(&[u8])) -> Result<()> {
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

    /// Copies floats from the host to the beginning of device memory, piece by piece.
    pub(crate) fn write(&mut self, stream: &Stream, to: DeviceSlice<'_>, values: &[f32]) -> Result<()> {
        // Queued work may still read the page-locked area, or the memory that is written here.
        self.unsettled = true;
        stream.synchronize()?;
        let mut rest = to;
        for piece in values.chunks(STAGING_BYTES / size_of::<f32>()) {
            let bytes = size_of_val(piece);
            let from = &mut self.staging.as_mut_slice()[..bytes];
            from.as_chunks_mut().0.iter_mut().zip(piece).for_each(|(bytes, value)| *bytes = value.to_ne_bytes());
            // SAFETY: the area is written again only after the stream was waited for. The memory belongs to the
            // backend, which keeps it until it has waited. Nothing else uses it, since the stream was waited for.
            unsafe { stream.copy_to_device(rest, &self.staging.as_slice()[..bytes])? };
            stream.synchronize()?;
            rest = rest.after(bytes as u64)?;
        }
        self.unsettled = false;
        Ok(())
    }
}
