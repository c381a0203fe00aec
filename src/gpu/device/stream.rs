//! Streams (in-order queues of work on the device) and the events between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Device;
use super::code_object::{ArgBytes, Function, KernelArgs};
use super::graph::Graph;
use super::memory::DeviceSlice;
use super::queue::Queue;
use crate::driver::Driver;
use crate::sys::{EventHandle, HostWork, StreamHandle, run_host_work};
use crate::{Error, Result};

/// A queue of work that runs in order. Drop waits for it.
pub struct Stream {
    queue: Arc<Queue>,
}

impl Stream {
    /// Creates a stream that runs concurrently with all others, including the default stream.
    pub fn new(device: &Device) -> Result<Self> {
        device.check()?;
        let handle = device.call(|driver| driver.create_stream())?;
        let (apart, launches) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self { queue: Arc::new(Queue { device: device.clone(), handle, apart, launches }) })
    }

    pub fn device(&self) -> &Device {
        &self.queue.device
    }

    /// Returns the number of kernels launched so far. Captured launches count, those of a replay do not.
    pub fn launches(&self) -> u64 {
        self.queue.launches.load(Ordering::Relaxed)
    }

    /// Returns the driver's handle, for calls of other libraries.
    pub(crate) fn handle(&self) -> StreamHandle {
        self.queue.handle
    }

    /// Waits until everything queued so far has run, and reports its failures.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives.
        self.device().call(|driver| unsafe { driver.synchronize_stream(self.queue.handle) })
    }

    /// Lets everything that is queued from now on wait for the last record of the event.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        // SAFETY: both live; the driver keeps the event for waits that are queued.
        self.device().call(|driver| unsafe { driver.wait_event(event.handle, self.queue.handle) })?;
        // A kernel that overlaps with the last one might start before the event.
        self.queue.apart.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Queues a copy of (page-locked) host memory to the start of `dst`.
    ///
    /// # Errors
    /// `Error::Internal` if `dst` is too small.
    ///
    /// # Safety
    /// Until the stream has passed the copy, both stay alive, `src` does not change, and nothing else uses `dst`.
    pub unsafe fn copy_to_device(&self, dst: DeviceSlice<'_>, src: &[u8]) -> Result<()> {
        let (from, bytes) = (src.as_ptr(), src.len());
        let to = start_of(dst, bytes as u64)?;
        // SAFETY: there is room, and the rest is the caller's promise.
        self.device().call(|driver| unsafe { driver.copy_to_device(to, from, bytes, self.queue.handle) })
    }

    /// Queues a copy of (page-locked) host memory to an address of the device.
    ///
    /// # Safety
    /// See `copy_to_device`; `src.len()` bytes from the address on belong to one allocation.
    pub(super) unsafe fn copy_to_address(&self, address: u64, src: &[u8]) -> Result<()> {
        let (from, bytes) = (src.as_ptr(), src.len());
        // SAFETY: the caller's promise.
        self.device().call(|driver| unsafe { driver.copy_to_device(address, from, bytes, self.queue.handle) })
    }

    /// Queues a copy of the start of `src`, which fills all of `dst` in (page-locked) host memory.
    ///
    /// # Errors
    /// `Error::Internal` if `src` is shorter.
    ///
    /// # Safety
    /// Until the stream has passed the copy, both stay alive, `dst` is neither read nor written, and nothing writes
    /// `src`.
    pub unsafe fn copy_to_host(&self, dst: &mut [u8], src: DeviceSlice<'_>) -> Result<()> {
        let (to, bytes) = (dst.as_mut_ptr(), dst.len());
        let from = start_of(src, bytes as u64)?;
        // SAFETY: `src` has that many bytes, and the rest is the caller's promise.
        self.device().call(|driver| unsafe { driver.copy_to_host(to, from, bytes, self.queue.handle) })
    }

    /// Queues a copy of all of `src` to the start of `dst`.
    ///
    /// # Errors
    /// `Error::Internal` if `dst` is too small.
    ///
    /// # Safety
    /// Both do not overlap, stay alive and are not used otherwise until the stream has passed the copy.
    pub unsafe fn copy_on_device(&self, dst: DeviceSlice<'_>, src: DeviceSlice<'_>) -> Result<()> {
        let (bytes, from) = (src.bytes(), src.ptr().address());
        let to = start_of(dst, bytes)?;
        // SAFETY: there is room, and the rest is the caller's promise.
        self.device().call(|driver| unsafe { driver.copy_on_device(to, from, bytes, self.queue.handle) })
    }

    /// Queues the filling of all of `dst` with one byte.
    ///
    /// # Safety
    /// It stays alive and is not used otherwise until the stream has passed.
    pub unsafe fn fill(&self, dst: DeviceSlice<'_>, byte: u8) -> Result<()> {
        let (to, bytes) = (dst.ptr().address(), dst.bytes());
        // SAFETY: the caller's promise.
        self.device().call(|driver| unsafe { driver.fill(to, byte, bytes, self.queue.handle) })
    }

    /// Queues work of the host: it runs after everything before it, and everything behind it waits for it.
    ///
    /// # Safety
    /// Until the stream has passed it, and in graphs that were captured meanwhile as long as they exist, `work` stays
    /// alive at its place. Memory that `work` uses is as for a kernel (`launch`).
    pub(crate) unsafe fn launch_host<T: HostWork>(&self, work: &T) -> Result<()> {
        let data = std::ptr::from_ref(work).cast_mut().cast();
        // SAFETY: the caller's promise; `run_host_work` takes a `T`.
        let launch = |driver: &dyn Driver| unsafe { driver.launch_host(run_host_work::<T>, data, self.queue.handle) };
        self.device().call(launch)?;
        // A kernel that overlaps with the last one would start before the host's work ends.
        self.queue.apart.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Queues a kernel over `grid` blocks of the kernel's own size.
    ///
    /// # Errors
    /// `Error::Internal` for a grid that the device cannot run.
    ///
    /// # Safety
    /// `A` is the kernel's argument struct, and its pointers are valid for the kernel's accesses until the stream has
    /// passed it.
    pub unsafe fn launch<A: KernelArgs>(&self, function: &Function, grid: [u32; 3], args: &A) -> Result<()> {
        self.device().check()?;
        function.check_grid(self.device().properties(), grid)?;
        let args = ArgBytes::new(args);
        let overlaps = !self.queue.apart.swap(false, Ordering::Relaxed);
        self.queue.launches.fetch_add(1, Ordering::Relaxed);
        self.device()
            .call(|driver| {
                // SAFETY: the caller's promise; the driver copies the arguments before it returns.
                unsafe {
                    driver.launch(function.handle(), grid, function.block(), args.as_ptr(), overlaps, self.queue.handle)
                }
            })
            .map_err(|error| function.name_in(error))
    }

    /// Like `launch`, but the kernel has ended before any later kernel on this stream starts. Other kernels are known
    /// to have ended only after the later kernel's `pdl_wait`.
    ///
    /// # Errors
    /// See `launch`.
    ///
    /// # Safety
    /// See `launch`.
    pub unsafe fn launch_apart<A: KernelArgs>(&self, function: &Function, grid: [u32; 3], args: &A) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(function, grid, args)? };
        self.queue.apart.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Begins a capture: until `end_capture`, work that this thread queues on the stream is captured instead of
    /// executed.
    pub fn begin_capture(&self) -> Result<()> {
        self.device().check()?;
        // SAFETY: the stream lives.
        self.device().call(|driver| unsafe { driver.begin_capture(self.queue.handle) })
    }

    /// Ends the capture and makes a graph of its work. It must be called even if some of that work failed. It then
    /// fails, too, but the stream is usable again.
    pub fn end_capture(&self) -> Result<Graph> {
        let device = self.device();
        // SAFETY: the stream lives.
        let graph = device.try_ending(|driver| unsafe { driver.end_capture(self.queue.handle) });
        Graph::instantiate(device, graph.map_err(|error| device.error(error))?)
    }

    /// Queues a whole graph.
    ///
    /// # Safety
    /// See `Graph::launch`.
    pub unsafe fn launch_graph(&self, graph: &Graph) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { graph.launch(&self.queue) }
    }
}

/// Returns the address at which a copy of `bytes` begins.
fn start_of(slice: DeviceSlice<'_>, bytes: u64) -> Result<u64> {
    match bytes <= slice.bytes() {
        true => Ok(slice.ptr().address()),
        false => Err(Error::internal(format!("a copy of {bytes} bytes at {} of device memory", slice.bytes()))),
    }
}

/// A point in a stream that others can wait for. An event that was never recorded counts as passed.
pub struct Event {
    device: Device,
    handle: EventHandle,
}

impl Event {
    pub fn new(device: &Device) -> Result<Self> {
        device.check()?;
        let handle = device.call(|driver| driver.create_event())?;
        Ok(Self { device: device.clone(), handle })
    }

    /// Moves the event to the present end of the stream.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both live.
        self.device.call(|driver| unsafe { driver.record_event(self.handle, stream.queue.handle) })
    }

    /// Waits until the stream has passed the event.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives.
        self.device.call(|driver| unsafe { driver.synchronize_event(self.handle) })
    }

    /// True if the stream has passed the event. Waits for nothing.
    pub fn has_passed(&self) -> Result<bool> {
        // SAFETY: the event lives.
        self.device.call(|driver| unsafe { driver.query_event(self.handle) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`, this is the only owner; the driver keeps it for waits already queued.
        self.device.release(|driver| unsafe { driver.destroy_event(self.handle) });
    }
}
