//! A driver's stream, kept alive for everything that was launched on it.

use std::sync::atomic::{AtomicBool, AtomicU64};

use super::Device;
use crate::sys::StreamHandle;

/// The stream itself. Graphs that were launched on it hold it until they are dropped.
pub(super) struct Queue {
    pub device: Device,
    pub handle: StreamHandle,
    /// True if the next kernel must not overlap with the last one.
    pub apart: AtomicBool,
    /// Kernels launched so far, captured ones included.
    pub launches: AtomicU64,
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: created by `Stream::new`, and this is the last owner.
        self.device.release(|driver| unsafe { driver.synchronize_stream(self.handle) });
        // SAFETY: as above; destroyed also when waiting failed.
        self.device.release(|driver| unsafe { driver.destroy_stream(self.handle) });
    }
}
