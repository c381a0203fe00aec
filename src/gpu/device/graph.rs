//! A captured graph: queued work that one call launches.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Device;
use super::queue::Queue;
use crate::Result;
use crate::sys::{GraphExecHandle, GraphHandle};

/// Work that was captured from a stream (`Stream::end_capture`).
pub struct Graph {
    device: Device,
    exec: GraphExecHandle,
    /// The stream of the last launch: the graph is destroyed only when that stream has finished it.
    last: Mutex<Option<Arc<Queue>>>,
}

impl Graph {
    /// Makes a captured graph executable and destroys the capture, which is not needed any more.
    pub(crate) fn instantiate(device: &Device, graph: GraphHandle) -> Result<Self> {
        // SAFETY: `graph` was just returned by the end of a capture, and is destroyed once, here.
        let exec = device.call(|driver| unsafe { driver.instantiate_graph(graph) });
        // SAFETY: as above.
        device.release(|driver| unsafe { driver.destroy_graph(graph) });
        Ok(Self { device: device.clone(), exec: exec?, last: Mutex::new(None) })
    }

    /// Queues the whole graph.
    ///
    /// # Safety
    /// The conditions of `Stream::launch` and of the copies hold again as at the capture. Modules are loaded, memory is
    /// allocated, and nothing else uses it until the stream has passed the graph.
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
            // SAFETY: we hold the stream. It is waited for because drivers differ in how they destroy a graph that
            // still runs.
            self.device.release(|driver| unsafe { driver.synchronize_stream(queue.handle) });
        }
        // SAFETY: instantiated by us, this is the only owner, and it does not run any more.
        self.device.release(|driver| unsafe { driver.destroy_graph_exec(self.exec) });
    }
}
