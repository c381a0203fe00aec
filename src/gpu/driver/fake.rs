//! An in-memory driver, for tests of the types above it. Work runs at once, "device" memory is the host's, and kernels
//! do nothing. A dead handle or address is an error, which detects a double free or a use after free.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use parking_lot::Mutex;

use super::error::OUT_OF_MEMORY;
use super::{Block, DeviceProperties, Driver, DriverError, MemoryInfo, Outcome};
use crate::config::Platform;
use crate::sys::{EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, HostFunction, ModuleHandle, StreamHandle};

/// A kernel of this name is found as a null pointer; a name that starts with `no_` is not found.
pub(crate) const NULL_KERNEL: &str = "null_kernel";
/// Threads that every kernel allows.
pub(crate) const KERNEL_THREADS: u32 = 1024;
/// The shortest image that counts as a code object.
pub(crate) const IMAGE: &[u8] = b"\x7fELF";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    HostMemory,
    Stream,
    Event,
    Module,
    Graph,
    GraphExec,
}

#[derive(Default)]
struct State {
    live: HashMap<u64, Kind>,
    memory: HashMap<u64, Box<[u64]>>,
    next_handle: u64,
    used: u64,
    capturing: Option<u64>,
}

pub(crate) struct Fake {
    properties: DeviceProperties,
    /// Bytes that can be allocated; an integrated device may have more than it reports as its total.
    capacity: u64,
    total: u64,
    state: Mutex<State>,
}

pub(crate) fn properties() -> DeviceProperties {
    DeviceProperties {
        platform: Platform::Amd,
        index: 0,
        name: "fake".into(),
        arch: "gfx1100".into(),
        driver: "memory".into(),
        library: "memory".into(),
        driver_version: (6, 4),
        warp_size: 32,
        multiprocessors: 4,
        max_threads_per_block: 1024,
        max_grid: [u32::MAX >> 1, 65535, 65535],
        integrated: false,
        memory: 1 << 20,
        bus: None,
    }
}

impl Fake {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::with_memory(1 << 20, 1 << 20, properties())
    }

    /// Creates a driver with `capacity` free bytes at first, independent of the reported total.
    pub(crate) fn with_memory(capacity: u64, total: u64, properties: DeviceProperties) -> Self {
        Self { properties, capacity, total, state: Mutex::new(State { next_handle: 1, ..State::default() }) }
    }

    fn create(&self, kind: Kind) -> *mut c_void {
        let mut state = self.state.lock();
        state.next_handle += 1;
        let handle = state.next_handle;
        state.live.insert(handle, kind);
        handle as *mut c_void
    }

    fn check(&self, call: &'static str, handle: *mut c_void, kind: Kind) -> Outcome<()> {
        match self.state.lock().live.get(&(handle as u64)) == Some(&kind) {
            true => Ok(()),
            false => Err(invalid(call, format!("{kind:?} {handle:?} is not alive"))),
        }
    }

    fn destroy(&self, call: &'static str, handle: *mut c_void, kind: Kind) -> Outcome<()> {
        self.check(call, handle, kind)?;
        self.state.lock().live.remove(&(handle as u64));
        Ok(())
    }

    fn take_memory(&self, call: &'static str, bytes: u64, kind: Kind) -> Outcome<u64> {
        let mut state = self.state.lock();
        if kind == Kind::Memory && state.used + bytes > self.capacity {
            return Err(DriverError { call, code: OUT_OF_MEMORY, text: "out of memory".into() });
        }
        let memory = vec![u64::MAX; bytes.div_ceil(8) as usize].into_boxed_slice();
        let address = memory.as_ptr() as u64;
        if kind == Kind::Memory {
            state.used += bytes;
        }
        state.memory.insert(address, memory);
        state.live.insert(address, kind);
        Ok(address)
    }

    fn give_memory(&self, call: &'static str, address: u64, kind: Kind) -> Outcome<()> {
        self.destroy(call, address as *mut c_void, kind)?;
        let mut state = self.state.lock();
        let memory = state.memory.remove(&address).unwrap();
        if kind == Kind::Memory {
            state.used -= memory.len() as u64 * 8;
        }
        Ok(())
    }

    /// True if the work is only captured.
    fn captures(&self, stream: StreamHandle) -> Outcome<bool> {
        self.check("stream", stream.0, Kind::Stream)?;
        Ok(self.state.lock().capturing == Some(stream.0 as u64))
    }
}

fn invalid(call: &'static str, text: String) -> DriverError {
    DriverError { call, code: 1, text }
}

// SAFETY of every block below: addresses are this driver's own, of boxes that live; sizes are the tests'.
impl Driver for Fake {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }
    fn make_current(&self) -> Outcome<()> {
        Ok(())
    }
    fn memory_info(&self) -> Outcome<MemoryInfo> {
        Ok(MemoryInfo { free: self.capacity - self.state.lock().used, total: self.total })
    }
    fn allocate(&self, bytes: u64) -> Outcome<u64> {
        self.take_memory("allocate", bytes.next_multiple_of(8), Kind::Memory)
    }
    unsafe fn free(&self, address: u64) -> Outcome<()> {
        self.give_memory("free", address, Kind::Memory)
    }
    fn allocate_host(&self, bytes: usize) -> Outcome<NonNull<u8>> {
        let address = self.take_memory("allocate_host", bytes as u64, Kind::HostMemory)?;
        Ok(NonNull::new(address as *mut u8).unwrap())
    }
    unsafe fn free_host(&self, address: NonNull<u8>) -> Outcome<()> {
        self.give_memory("free_host", address.as_ptr() as u64, Kind::HostMemory)
    }
    unsafe fn host_on_device(&self, address: NonNull<u8>) -> Outcome<u64> {
        self.check("host_on_device", address.as_ptr().cast(), Kind::HostMemory)?;
        Ok(address.as_ptr() as u64)
    }
    fn create_stream(&self) -> Outcome<StreamHandle> {
        Ok(StreamHandle(self.create(Kind::Stream)))
    }
    unsafe fn destroy_stream(&self, stream: StreamHandle) -> Outcome<()> {
        self.destroy("destroy_stream", stream.0, Kind::Stream)
    }
    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> Outcome<()> {
        self.check("synchronize_stream", stream.0, Kind::Stream)
    }
    fn create_event(&self) -> Outcome<EventHandle> {
        Ok(EventHandle(self.create(Kind::Event)))
    }
    unsafe fn destroy_event(&self, event: EventHandle) -> Outcome<()> {
        self.destroy("destroy_event", event.0, Kind::Event)
    }
    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Outcome<()> {
        self.check("record_event", stream.0, Kind::Stream)?;
        self.check("record_event", event.0, Kind::Event)
    }
    unsafe fn synchronize_event(&self, event: EventHandle) -> Outcome<()> {
        self.check("synchronize_event", event.0, Kind::Event)
    }
    unsafe fn query_event(&self, event: EventHandle) -> Outcome<bool> {
        self.check("query_event", event.0, Kind::Event).map(|()| true)
    }
    unsafe fn wait_event(&self, event: EventHandle, stream: StreamHandle) -> Outcome<()> {
        self.check("wait_event", stream.0, Kind::Stream)?;
        self.check("wait_event", event.0, Kind::Event)
    }
    unsafe fn copy_to_device(&self, to: u64, from: *const u8, bytes: usize, stream: StreamHandle) -> Outcome<()> {
        if !self.captures(stream)? {
            // SAFETY: see above.
            unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, bytes) };
        }
        Ok(())
    }
    unsafe fn copy_to_host(&self, to: *mut u8, from: u64, bytes: usize, stream: StreamHandle) -> Outcome<()> {
        if !self.captures(stream)? {
            // SAFETY: see above.
            unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, bytes) };
        }
        Ok(())
    }
    unsafe fn copy_on_device(&self, to: u64, from: u64, bytes: u64, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        unsafe { self.copy_to_device(to, from as *const u8, bytes as usize, stream) }
    }
    unsafe fn fill(&self, to: u64, byte: u8, bytes: u64, stream: StreamHandle) -> Outcome<()> {
        if !self.captures(stream)? {
            // SAFETY: see above.
            unsafe { std::ptr::write_bytes(to as *mut u8, byte, bytes as usize) };
        }
        Ok(())
    }
    unsafe fn launch_host(&self, function: HostFunction, data: *mut c_void, stream: StreamHandle) -> Outcome<()> {
        if !self.captures(stream)? {
            // SAFETY: see above.
            unsafe { function(data) };
        }
        Ok(())
    }
    fn load_module(&self, image: &[u8]) -> Outcome<ModuleHandle> {
        match image.starts_with(IMAGE) {
            true => Ok(ModuleHandle(self.create(Kind::Module))),
            false => Err(invalid("load_module", "not ELF".into())),
        }
    }
    unsafe fn unload_module(&self, module: ModuleHandle) -> Outcome<()> {
        self.destroy("unload_module", module.0, Kind::Module)
    }
    unsafe fn function(&self, module: ModuleHandle, name: &CStr) -> Outcome<FunctionHandle> {
        self.check("function", module.0, Kind::Module)?;
        match name.to_str().unwrap() {
            NULL_KERNEL => Ok(FunctionHandle::NULL),
            name if name.starts_with("no_") => Err(invalid("function", format!("{name} is not there"))),
            _ => Ok(FunctionHandle(module.0)),
        }
    }
    unsafe fn max_threads(&self, function: FunctionHandle) -> Outcome<u32> {
        self.check("max_threads", function.0, Kind::Module)?;
        Ok(KERNEL_THREADS)
    }
    unsafe fn launch(
        &self,
        function: FunctionHandle,
        _grid: [u32; 3],
        _block: Block,
        _args: *const c_void,
        _overlaps: bool,
        stream: StreamHandle,
    ) -> Outcome<()> {
        self.check("launch", function.0, Kind::Module)?;
        self.captures(stream).map(|_| ())
    }
    unsafe fn begin_capture(&self, stream: StreamHandle) -> Outcome<()> {
        self.check("begin_capture", stream.0, Kind::Stream)?;
        self.state.lock().capturing = Some(stream.0 as u64);
        Ok(())
    }
    unsafe fn end_capture(&self, stream: StreamHandle) -> Outcome<GraphHandle> {
        match self.state.lock().capturing.take() == Some(stream.0 as u64) {
            true => {}
            false => return Err(invalid("end_capture", "the stream does not capture".into())),
        }
        Ok(GraphHandle(self.create(Kind::Graph)))
    }
    unsafe fn instantiate_graph(&self, graph: GraphHandle) -> Outcome<GraphExecHandle> {
        self.check("instantiate_graph", graph.0, Kind::Graph)?;
        Ok(GraphExecHandle(self.create(Kind::GraphExec)))
    }
    unsafe fn destroy_graph(&self, graph: GraphHandle) -> Outcome<()> {
        self.destroy("destroy_graph", graph.0, Kind::Graph)
    }
    unsafe fn destroy_graph_exec(&self, graph: GraphExecHandle) -> Outcome<()> {
        self.destroy("destroy_graph_exec", graph.0, Kind::GraphExec)
    }
    unsafe fn launch_graph(&self, graph: GraphExecHandle, stream: StreamHandle) -> Outcome<()> {
        self.check("launch_graph", graph.0, Kind::GraphExec)?;
        self.captures(stream).map(|_| ())
    }
}
