//! The calls of HIP that the backend makes, behind one trait. `amd` makes them in libamdhip64 and `nvidia` in libcuda.
//! Tests use an in-memory driver or one that fails on command instead. Nothing here owns anything; types in the parent
//! module do.

use std::ffi::{CStr, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;

use super::sys::{EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, HostFunction, ModuleHandle, StreamHandle};
use crate::config::{GpuOptions, Platform};
use crate::{Error, Result};
use probe::Verdict;

pub(crate) mod libraries;
pub(crate) mod probe;
#[macro_use]
mod calls;

mod amd;
mod choose;
mod error;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod fake;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod faults;
mod nvidia;

pub use choose::{Listed, Survey};
pub(super) use error::{DriverError, Failure};

pub(super) type Outcome<T> = std::result::Result<T, DriverError>;

/// The device's properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProperties {
    pub platform: Platform,
    pub index: u32,
    /// The product's name.
    pub name: String,
    /// The target that its kernels are compiled for, without feature suffixes: `gfx1100`, `sm_90`.
    pub arch: String,
    /// The driver's library and its version.
    pub driver: String,
    /// The file that the library was loaded from.
    pub library: PathBuf,
    /// Major and minor version of the driver's HIP or CUDA.
    pub driver_version: (u32, u32),
    pub warp_size: u32,
    pub multiprocessors: u32,
    pub max_threads_per_block: u32,
    pub max_grid: [u32; 3],
    /// True if it is part of a processor and shares the machine's memory.
    pub integrated: bool,
    /// Bytes of its memory.
    pub memory: u64,
    /// Its place on the PCI bus, as the system writes it (`0000:03:00.0`), if the driver tells.
    pub bus: Option<String>,
}

/// The blocks that a kernel is launched in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub threads: u32,
    /// Bytes of shared memory in addition to those that the kernel's code declares.
    pub shared_bytes: u32,
}

impl Block {
    pub const fn of_threads(threads: u32) -> Self {
        Self { threads, shared_bytes: 0 }
    }
}

impl DeviceProperties {
    /// True if the device has warpgroup instructions (`wgmma`). Only Hopper has them; code for it runs on no other GPU.
    pub fn has_wgmma(&self) -> bool {
        self.platform == Platform::Nvidia && self.arch == "sm_90"
    }

    /// Returns the device's name in messages.
    pub fn label(&self) -> String {
        format!("gpu:{} ({}, {})", self.index, self.name, self.arch)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    pub free: u64,
    pub total: u64,
}

/// One opened device. Every method except `make_current` needs the device to be current on the calling thread.
///
/// # Safety
/// The `unsafe` methods trust handles and addresses. A handle was made by this driver and not destroyed since. Memory
/// is as large as stated and not freed. Data of an asynchronous call stays untouched until the stream has passed the
/// call.
pub(crate) trait Driver: Send + Sync {
    fn properties(&self) -> &DeviceProperties;
    fn make_current(&self) -> Outcome<()>;
    fn memory_info(&self) -> Outcome<MemoryInfo>;

    fn allocate(&self, bytes: u64) -> Outcome<u64>;
    #[allow(clippy::missing_safety_doc)] // the trait's
    unsafe fn free(&self, address: u64) -> Outcome<()>;
    /// Allocates page-locked host memory, which kernels may also use.
    fn allocate_host(&self, bytes: usize) -> Outcome<NonNull<u8>>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn free_host(&self, address: NonNull<u8>) -> Outcome<()>;
    /// Returns the address of page-locked memory for kernels. Each driver supports this call, but only some devices
    /// guarantee equal addresses.
    #[allow(clippy::missing_safety_doc)]
    unsafe fn host_on_device(&self, address: NonNull<u8>) -> Outcome<u64>;

    /// Creates a stream that does not wait for the default stream.
    fn create_stream(&self) -> Outcome<StreamHandle>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn destroy_stream(&self, stream: StreamHandle) -> Outcome<()>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn synchronize_stream(&self, stream: StreamHandle) -> Outcome<()>;

    /// Creates an event without timing.
    fn create_event(&self) -> Outcome<EventHandle>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn destroy_event(&self, event: EventHandle) -> Outcome<()>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Outcome<()>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn synchronize_event(&self, event: EventHandle) -> Outcome<()>;
    /// True if the event has passed.
    #[allow(clippy::missing_safety_doc)]
    unsafe fn query_event(&self, event: EventHandle) -> Outcome<bool>;
    /// Lets later work of the stream wait for the last record of the event.
    #[allow(clippy::missing_safety_doc)]
    unsafe fn wait_event(&self, event: EventHandle, stream: StreamHandle) -> Outcome<()>;

    #[allow(clippy::missing_safety_doc)]
    unsafe fn copy_to_device(&self, to: u64, from: *const u8, bytes: usize, stream: StreamHandle) -> Outcome<()>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn copy_to_host(&self, to: *mut u8, from: u64, bytes: usize, stream: StreamHandle) -> Outcome<()>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn copy_on_device(&self, to: u64, from: u64, bytes: u64, stream: StreamHandle) -> Outcome<()>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn fill(&self, to: u64, byte: u8, bytes: u64, stream: StreamHandle) -> Outcome<()>;

    /// Lets the stream call a function of the host, after the work before it and before the work behind it. The
    /// function may not call the driver.
    #[allow(clippy::missing_safety_doc)]
    unsafe fn launch_host(&self, function: HostFunction, data: *mut c_void, stream: StreamHandle) -> Outcome<()>;

    /// Loads a code object (AMD) or cubin (NVIDIA).
    fn load_module(&self, image: &[u8]) -> Outcome<ModuleHandle>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn unload_module(&self, module: ModuleHandle) -> Outcome<()>;
    /// May succeed with a null handle, which the caller checks.
    #[allow(clippy::missing_safety_doc)]
    unsafe fn function(&self, module: ModuleHandle, name: &CStr) -> Outcome<FunctionHandle>;
    /// Returns the most threads in a block of the kernel, from its loaded code.
    #[allow(clippy::missing_safety_doc)]
    unsafe fn max_threads(&self, function: FunctionHandle) -> Outcome<u32>;
    /// Allows the kernel's blocks this much shared memory in addition to what its code declares. NVIDIA's driver
    /// requires the call; AMD's accepts the number at a launch.
    #[allow(clippy::missing_safety_doc)]
    unsafe fn allow_shared_bytes(&self, _function: FunctionHandle, _bytes: u32) -> Outcome<()> {
        Ok(())
    }
    /// `args` points to the kernel's only parameter, a struct. `overlaps`: on devices that support it, the kernel may
    /// start before its predecessor has ended, and then waits itself (`pdl_wait`).
    #[allow(clippy::missing_safety_doc)]
    unsafe fn launch(
        &self,
        function: FunctionHandle,
        grid: [u32; 3],
        block: Block,
        args: *const c_void,
        overlaps: bool,
        stream: StreamHandle,
    ) -> Outcome<()>;

    /// Captures the work that this thread queues on the stream; other threads are not affected.
    #[allow(clippy::missing_safety_doc)]
    unsafe fn begin_capture(&self, stream: StreamHandle) -> Outcome<()>;
    /// Takes the stream out of capture, even if it fails.
    #[allow(clippy::missing_safety_doc)]
    unsafe fn end_capture(&self, stream: StreamHandle) -> Outcome<GraphHandle>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn instantiate_graph(&self, graph: GraphHandle) -> Outcome<GraphExecHandle>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn destroy_graph(&self, graph: GraphHandle) -> Outcome<()>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn destroy_graph_exec(&self, graph: GraphExecHandle) -> Outcome<()>;
    #[allow(clippy::missing_safety_doc)]
    unsafe fn launch_graph(&self, graph: GraphExecHandle, stream: StreamHandle) -> Outcome<()>;
}

/// Opens the device that the options name: AMD's if it has one, else NVIDIA's, unless a platform is named.
///
/// # Errors
/// `Error::Device` with everything that was tried.
pub(super) fn open(options: &GpuOptions) -> Result<Box<dyn Driver>> {
    let mut tried = Vec::new();
    for platform in platforms(options) {
        let opened: Opening<Box<dyn Driver>> = match platform {
            Platform::Amd => amd::open(options).map(|driver| Box::new(driver) as _),
            Platform::Nvidia => nvidia::open(options).map(|driver| Box::new(driver) as _),
        };
        match opened {
            Ok(driver) => return Ok(driver),
            // The platform has devices, but not the requested one. Another platform's would not be it, either.
            Err(Unopened::NoSuchIndex(problem)) => return Err(Error::Device { device: "gpu".into(), problem }),
            Err(Unopened::Unusable(problem)) => tried.push(format!("{}: {problem}", platform.name())),
        }
    }
    Err(Error::Device { device: "gpu".into(), problem: choose::no_device(options, &tried.join("; ")) })
}

/// Returns every device in the drivers of the options' platforms.
pub(super) fn survey(options: &GpuOptions) -> Vec<Survey> {
    let list = |platform| Survey {
        platform,
        devices: match platform {
            Platform::Amd => amd::list(options),
            Platform::Nvidia => nvidia::list(options),
        },
    };
    platforms(options).into_iter().map(list).collect()
}

/// Probes those drivers of the options' platforms again that are probed at all.
pub(super) fn probe_anew(options: &GpuOptions) {
    if options.platform != Some(Platform::Nvidia) {
        // The next opening of the device reports the verdict.
        let _ = amd::probe(options, Verdict::Anew);
    }
}

/// True if AMD's driver library is installed. This opens it.
pub(super) fn amd_is_installed(options: &GpuOptions) -> bool {
    amd::is_installed(options)
}

/// Returns the platforms, in the order in which they are tried.
fn platforms(options: &GpuOptions) -> Vec<Platform> {
    match options.platform {
        Some(platform) => vec![platform],
        None if library_fails_probe(options) => vec![Platform::Amd],
        None => vec![Platform::Amd, Platform::Nvidia],
    }
}

/// True if the probe of AMD's driver failed on the library file that the options name. Another platform would open the
/// same file, and crash or hang this process.
fn library_fails_probe(options: &GpuOptions) -> bool {
    options.library.is_some() && amd::probe(options, Verdict::Earlier).is_err()
}

type Opening<T> = std::result::Result<T, Unopened>;

/// The reason why a platform gives no device.
enum Unopened {
    /// There is none, or it does not work.
    Unusable(String),
    /// There are devices, but not the requested one.
    NoSuchIndex(String),
}

impl From<String> for Unopened {
    fn from(problem: String) -> Self {
        Self::Unusable(problem)
    }
}

/// Splits the driver's version number into major and minor version.
fn version_of(number: i32, major: u32, minor: u32) -> (u32, u32) {
    let number = number.unsigned_abs();
    (number / major, number % major / minor)
}
