//! Captured work, launched as one.

use std::sync::Arc;

use parking_lot::Mutex;

use super::device::Device;
use super::queue::Queue;
use super::sys::{GraphExecHandle, GraphHandle};
use crate::Result;

/// Work that was captured from a stream (`Stream::end_capture`).
pub struct Graph {
    device: Device,
    exec: GraphExecHandle,
    /// The stream that it was launched on last: the graph is destroyed only when that stream is done with it.
    last: Mutex<Option<Arc<Queue>>>,
}

impl Graph {
    /// Makes a captured graph executable; the capture itself is not needed any more then.
    pub(super) fn instantiate(device: &Device, graph: GraphHandle) -> Result<Self> {
        // SAFETY: `graph` was just returned by the end of a capture, and is destroyed once, here.
        let exec = device.call(|driver| unsafe { driver.instantiate_graph(graph) });
        // SAFETY: as above.
        device.release(|driver| unsafe { driver.destroy_graph(graph) });
        Ok(Self { device: device.clone(), exec: exec?, last: Mutex::new(None) })
    }

    /// Puts the whole graph behind what is in the queue.
    ///
    /// # Safety
    /// The conditions of `Stream::launch` and of the copies, as they held at the capture, hold again: modules are
    /// loaded, memory is allocated, and nothing else uses it until the stream has passed.
    pub(super) unsafe fn launch(&self, queue: &Arc<Queue>) -> Result<()> {
        self.device.check()?;
        *self.last.lock() = Some(Arc::clone(queue));
        // SAFETY: both live; the rest is the caller's promise.
        self.device.call(|driver| unsafe { driver.launch_graph(self.exec, queue.handle) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Some(queue) = self.last.lock().take() {
            // SAFETY: the stream is held by us. Destroying a graph that still runs is left to the driver's version.
            self.device.release(|driver| unsafe { driver.synchronize_stream(queue.handle) });
        }
        // SAFETY: instantiated by us, this is the only owner, and it does not run any more.
        self.device.release(|driver| unsafe { driver.destroy_graph_exec(self.exec) });
    }
}
