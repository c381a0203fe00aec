//! A driver around another one: it fails on command, counts calls, and tracks live objects. Tests use it to prove that
//! no failure leaks anything.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Block, DeviceProperties, Driver, DriverError, MemoryInfo, Outcome};
use crate::sys::{EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, HostFunction, ModuleHandle, StreamHandle};

/// Kinds of calls that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    MakeCurrent,
    MemoryInfo,
    Allocate,
    Free,
    AllocateHost,
    FreeHost,
    HostOnDevice,
    CreateStream,
    DestroyStream,
    Synchronize,
    CreateEvent,
    DestroyEvent,
    Record,
    WaitEvent,
    CopyToDevice,
    CopyToHost,
    CopyOnDevice,
    Fill,
    LaunchHost,
    LoadModule,
    UnloadModule,
    Function,
    MaxThreads,
    Launch,
    BeginCapture,
    EndCapture,
    InstantiateGraph,
    DestroyGraph,
    LaunchGraph,
}

impl Call {
    pub const ALL: [Self; 29] = [
        Self::MakeCurrent,
        Self::MemoryInfo,
        Self::Allocate,
        Self::Free,
        Self::AllocateHost,
        Self::FreeHost,
        Self::HostOnDevice,
        Self::CreateStream,
        Self::DestroyStream,
        Self::Synchronize,
        Self::CreateEvent,
        Self::DestroyEvent,
        Self::Record,
        Self::WaitEvent,
        Self::CopyToDevice,
        Self::CopyToHost,
        Self::CopyOnDevice,
        Self::Fill,
        Self::LaunchHost,
        Self::LoadModule,
        Self::UnloadModule,
        Self::Function,
        Self::MaxThreads,
        Self::Launch,
        Self::BeginCapture,
        Self::EndCapture,
        Self::InstantiateGraph,
        Self::DestroyGraph,
        Self::LaunchGraph,
    ];

    /// True if the call releases something. It releases it even if it then reports a failure.
    fn releases(self) -> bool {
        use Call::*;
        matches!(self, Free | FreeHost | DestroyStream | DestroyEvent | UnloadModule | DestroyGraph)
    }
}

/// Numbers of live objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Live {
    pub allocations: i64,
    pub host_allocations: i64,
    pub streams: i64,
    pub events: i64,
    pub modules: i64,
    /// Captured graphs and executable ones.
    pub graphs: i64,
}

#[derive(Default)]
struct State {
    calls: [u64; Call::ALL.len()],
    planned: Option<Planned>,
    /// The last call that failed as planned.
    failed: Option<Call>,
    live: Live,
    host_bytes: u64,
    /// Device memory that each graph takes.
    graph_bytes: u64,
}

/// A call that will fail.
struct Planned {
    /// `None`: a call of any kind except `MakeCurrent`, which precedes each of the others.
    call: Option<Call>,
    /// The number of such calls that succeed before it.
    before: u64,
    code: i32,
}

impl Planned {
    fn counts(&self, call: Call) -> bool {
        self.call.map_or(call != Call::MakeCurrent, |planned| planned == call)
    }
}

/// Controls a faulty driver; clones control the same one.
#[derive(Clone, Default)]
pub struct Faults {
    state: Arc<Mutex<State>>,
}

impl Faults {
    /// Makes the `nth` call of a kind from now on (0: the next) fail once with the driver's code `code`.
    pub fn fail(&self, call: Call, nth: u64, code: i32) {
        self.plan(Some(call), nth, code);
    }

    /// Like `fail`, for the `nth` call of any kind.
    pub fn fail_any(&self, nth: u64, code: i32) {
        self.plan(None, nth, code);
    }

    fn plan(&self, call: Option<Call>, before: u64, code: i32) {
        let mut state = self.state.lock();
        state.planned = Some(Planned { call, before, code });
        state.failed = None;
    }

    /// Returns the last call that failed as planned, if any.
    pub fn failed(&self) -> Option<Call> {
        self.state.lock().failed
    }

    /// Cancels the planned failure; true if it had not happened yet.
    pub fn disarm(&self) -> bool {
        self.state.lock().planned.take().is_some()
    }

    /// Returns the number of calls of a kind so far.
    pub fn calls(&self, call: Call) -> u64 {
        self.state.lock().calls[call as usize]
    }

    /// Returns the bytes copied between host and device so far, both ways.
    pub fn host_bytes(&self) -> u64 {
        self.state.lock().host_bytes
    }

    /// Makes each graph take this much of the device's memory.
    pub fn take_for_graphs(&self, bytes: u64) {
        self.state.lock().graph_bytes = bytes;
    }

    pub fn live(&self) -> Live {
        self.state.lock().live
    }

    fn enter(&self, call: Call) -> Outcome<()> {
        let mut state = self.state.lock();
        state.calls[call as usize] += 1;
        let Some(planned) = state.planned.as_mut().filter(|planned| planned.counts(call)) else { return Ok(()) };
        if planned.before > 0 {
            planned.before -= 1;
            return Ok(());
        }
        let code = planned.code;
        state.planned = None;
        state.failed = Some(call);
        Err(DriverError { call: "injected", code, text: format!("{call:?} failed on purpose") })
    }

    fn run<T>(
        &self,
        call: Call,
        made: i64,
        count: fn(&mut Live) -> &mut i64,
        f: impl FnOnce() -> Outcome<T>,
    ) -> Outcome<T> {
        let injected = self.enter(call);
        if !call.releases() {
            injected.clone()?;
        }
        let result = f()?;
        *count(&mut self.state.lock().live) += made;
        injected.map(|()| result)
    }

    fn uncounted<T>(&self, call: Call, f: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        self.enter(call)?;
        f()
    }

    fn copied(&self, bytes: usize) {
        self.state.lock().host_bytes += bytes as u64;
    }
}

pub struct Faulty {
    driver: Box<dyn Driver>,
    faults: Faults,
}

impl Faulty {
    pub(crate) fn new(driver: Box<dyn Driver>) -> (Self, Faults) {
        let faults = Faults::default();
        (Self { driver, faults: faults.clone() }, faults)
    }
}

// SAFETY of every block below: the caller's promise to this driver also holds for the one inside.
impl Driver for Faulty {
    fn properties(&self) -> &DeviceProperties {
        self.driver.properties()
    }
    fn make_current(&self) -> Outcome<()> {
        self.faults.uncounted(Call::MakeCurrent, || self.driver.make_current())
    }
    fn memory_info(&self) -> Outcome<MemoryInfo> {
        let info = self.faults.uncounted(Call::MemoryInfo, || self.driver.memory_info())?;
        let state = self.faults.state.lock();
        let graphs = state.live.graphs.max(0).unsigned_abs() * state.graph_bytes;
        Ok(MemoryInfo { free: info.free.saturating_sub(graphs), ..info })
    }
    fn allocate(&self, bytes: u64) -> Outcome<u64> {
        self.faults.run(Call::Allocate, 1, |live| &mut live.allocations, || self.driver.allocate(bytes))
    }
    unsafe fn free(&self, address: u64) -> Outcome<()> {
        // SAFETY: see above.
        self.faults.run(Call::Free, -1, |live| &mut live.allocations, || unsafe { self.driver.free(address) })
    }
    fn allocate_host(&self, bytes: usize) -> Outcome<NonNull<u8>> {
        self.faults.run(Call::AllocateHost, 1, |live| &mut live.host_allocations, || self.driver.allocate_host(bytes))
    }
    unsafe fn free_host(&self, address: NonNull<u8>) -> Outcome<()> {
        // SAFETY: see above.
        let free = || unsafe { self.driver.free_host(address) };
        self.faults.run(Call::FreeHost, -1, |live| &mut live.host_allocations, free)
    }
    unsafe fn host_on_device(&self, address: NonNull<u8>) -> Outcome<u64> {
        // SAFETY: see above.
        self.faults.uncounted(Call::HostOnDevice, || unsafe { self.driver.host_on_device(address) })
    }
    fn create_stream(&self) -> Outcome<StreamHandle> {
        self.faults.run(Call::CreateStream, 1, |live| &mut live.streams, || self.driver.create_stream())
    }
    unsafe fn destroy_stream(&self, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        let destroy = || unsafe { self.driver.destroy_stream(stream) };
        self.faults.run(Call::DestroyStream, -1, |live| &mut live.streams, destroy)
    }
    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        self.faults.uncounted(Call::Synchronize, || unsafe { self.driver.synchronize_stream(stream) })
    }
    fn create_event(&self) -> Outcome<EventHandle> {
        self.faults.run(Call::CreateEvent, 1, |live| &mut live.events, || self.driver.create_event())
    }
    unsafe fn destroy_event(&self, event: EventHandle) -> Outcome<()> {
        // SAFETY: see above.
        let destroy = || unsafe { self.driver.destroy_event(event) };
        self.faults.run(Call::DestroyEvent, -1, |live| &mut live.events, destroy)
    }
    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        self.faults.uncounted(Call::Record, || unsafe { self.driver.record_event(event, stream) })
    }
    unsafe fn synchronize_event(&self, event: EventHandle) -> Outcome<()> {
        // SAFETY: see above.
        self.faults.uncounted(Call::Synchronize, || unsafe { self.driver.synchronize_event(event) })
    }
    unsafe fn query_event(&self, event: EventHandle) -> Outcome<bool> {
        // SAFETY: see above.
        self.faults.uncounted(Call::Synchronize, || unsafe { self.driver.query_event(event) })
    }
    unsafe fn wait_event(&self, event: EventHandle, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        self.faults.uncounted(Call::WaitEvent, || unsafe { self.driver.wait_event(event, stream) })
    }
    unsafe fn copy_to_device(&self, to: u64, from: *const u8, bytes: usize, stream: StreamHandle) -> Outcome<()> {
        self.faults.copied(bytes);
        // SAFETY: see above.
        self.faults.uncounted(Call::CopyToDevice, || unsafe { self.driver.copy_to_device(to, from, bytes, stream) })
    }
    unsafe fn copy_to_host(&self, to: *mut u8, from: u64, bytes: usize, stream: StreamHandle) -> Outcome<()> {
        self.faults.copied(bytes);
        // SAFETY: see above.
        self.faults.uncounted(Call::CopyToHost, || unsafe { self.driver.copy_to_host(to, from, bytes, stream) })
    }
    unsafe fn copy_on_device(&self, to: u64, from: u64, bytes: u64, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        self.faults.uncounted(Call::CopyOnDevice, || unsafe { self.driver.copy_on_device(to, from, bytes, stream) })
    }
    unsafe fn fill(&self, to: u64, byte: u8, bytes: u64, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        self.faults.uncounted(Call::Fill, || unsafe { self.driver.fill(to, byte, bytes, stream) })
    }
    unsafe fn launch_host(&self, function: HostFunction, data: *mut c_void, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        let launch = || unsafe { self.driver.launch_host(function, data, stream) };
        self.faults.uncounted(Call::LaunchHost, launch)
    }
    fn load_module(&self, image: &[u8]) -> Outcome<ModuleHandle> {
        self.faults.run(Call::LoadModule, 1, |live| &mut live.modules, || self.driver.load_module(image))
    }
    unsafe fn unload_module(&self, module: ModuleHandle) -> Outcome<()> {
        // SAFETY: see above.
        let unload = || unsafe { self.driver.unload_module(module) };
        self.faults.run(Call::UnloadModule, -1, |live| &mut live.modules, unload)
    }
    unsafe fn function(&self, module: ModuleHandle, name: &CStr) -> Outcome<FunctionHandle> {
        // SAFETY: see above.
        self.faults.uncounted(Call::Function, || unsafe { self.driver.function(module, name) })
    }
    unsafe fn max_threads(&self, function: FunctionHandle) -> Outcome<u32> {
        // SAFETY: see above.
        self.faults.uncounted(Call::MaxThreads, || unsafe { self.driver.max_threads(function) })
    }
    unsafe fn launch(
        &self,
        function: FunctionHandle,
        grid: [u32; 3],
        block: Block,
        args: *const c_void,
        overlaps: bool,
        stream: StreamHandle,
    ) -> Outcome<()> {
        // SAFETY: see above.
        let launch = || unsafe { self.driver.launch(function, grid, block, args, overlaps, stream) };
        self.faults.uncounted(Call::Launch, launch)
    }
    unsafe fn begin_capture(&self, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        self.faults.uncounted(Call::BeginCapture, || unsafe { self.driver.begin_capture(stream) })
    }
    unsafe fn end_capture(&self, stream: StreamHandle) -> Outcome<GraphHandle> {
        let injected = self.faults.enter(Call::EndCapture);
        // SAFETY: see above. The real call is made in any case: it takes the stream out of capture.
        let graph = unsafe { self.driver.end_capture(stream) }?;
        if let Err(error) = injected {
            // SAFETY: just made, and nobody else has it.
            unsafe { self.driver.destroy_graph(graph) }?;
            return Err(error);
        }
        self.faults.state.lock().live.graphs += 1;
        Ok(graph)
    }
    unsafe fn instantiate_graph(&self, graph: GraphHandle) -> Outcome<GraphExecHandle> {
        // SAFETY: see above.
        let instantiate = || unsafe { self.driver.instantiate_graph(graph) };
        self.faults.run(Call::InstantiateGraph, 1, |live| &mut live.graphs, instantiate)
    }
    unsafe fn destroy_graph(&self, graph: GraphHandle) -> Outcome<()> {
        // SAFETY: see above.
        let destroy = || unsafe { self.driver.destroy_graph(graph) };
        self.faults.run(Call::DestroyGraph, -1, |live| &mut live.graphs, destroy)
    }
    unsafe fn destroy_graph_exec(&self, graph: GraphExecHandle) -> Outcome<()> {
        // SAFETY: see above.
        let destroy = || unsafe { self.driver.destroy_graph_exec(graph) };
        self.faults.run(Call::DestroyGraph, -1, |live| &mut live.graphs, destroy)
    }
    unsafe fn launch_graph(&self, graph: GraphExecHandle, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        self.faults.uncounted(Call::LaunchGraph, || unsafe { self.driver.launch_graph(graph, stream) })
    }
}
