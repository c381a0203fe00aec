//! A stream as the driver has it, for as long as anything that was launched on it may need it.

use std::sync::atomic::AtomicBool;

use super::device::Device;
use super::sys::StreamHandle;

/// The stream itself: graphs that were launched on it hold it until they are gone.
pub(super) struct Queue {
    pub device: Device,
    pub handle: StreamHandle,
    /// Whether the next kernel may not overlap with the last one.
    pub apart: AtomicBool,
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: created by `Stream::new`, and this is the last owner.
        self.device.release(|driver| unsafe { driver.synchronize_stream(self.handle) });
        // SAFETY: as above; destroyed also when waiting failed.
        self.device.release(|driver| unsafe { driver.destroy_stream(self.handle) });
    }
}
