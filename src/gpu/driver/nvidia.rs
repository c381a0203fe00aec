//! HIP on NVIDIA GPUs: each method makes the CUDA driver call that HIP itself maps it to.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;

use super::choose::choose;
use super::error::{NOT_READY, SUCCESS};
use super::libraries::Search;
use super::{Block, DeviceProperties, Driver, DriverError, MemoryInfo, Outcome};
use super::{Listed, Opening, Unopened, version_of};
use crate::config::{GpuOptions, Platform};
use crate::sys::cuda::{self, Cuda};
use crate::sys::{
    self, ContextHandle, EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, HostFunction, ModuleHandle, Status,
    StreamHandle, file_of, reason,
};

const LIBRARIES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

pub(super) struct Nvidia {
    cuda: Cuda,
    device: c_int,
    /// The device's primary context, shared with all other users of CUDA in the process.
    context: ContextHandle,
    properties: DeviceProperties,
    /// True if kernels may start before their predecessor has ended (compute capability 9 and later).
    dependent_launch: bool,
}

/// Opens the library; returns it with its file.
fn load(options: &GpuOptions) -> Result<(Cuda, PathBuf), String> {
    Search::driver(options, Platform::Nvidia, &LIBRARIES).find(|library, file| {
        // SAFETY: a library of this name has the functions of cuda.h.
        let cuda =
            unsafe { Cuda::load(library) }.map_err(|e| format!("older than CUDA 11.8 or not CUDA: {}", reason(&e)))?;
        let loaded = file_of(cuda.cuInit as *const c_void).unwrap_or_else(|| file.to_path_buf());
        Ok((cuda, loaded))
    })
}

fn list_devices(cuda: &Cuda) -> Result<Vec<Listed>, String> {
    let mut count = 0;
    // SAFETY: `count` outlives the call.
    unsafe {
        call!(*cuda, cuInit(0)).map_err(|e| format!("it finds no device: {e}"))?;
        call!(*cuda, cuDeviceGetCount(&raw mut count)).map_err(|e| format!("it finds no device: {e}"))?;
    }
    let list = |index: c_int| {
        let DeviceProperties { name, arch, integrated, memory, .. } = read_properties(cuda, device_of(cuda, index)?)?;
        Ok(Listed { index: index.unsigned_abs(), name, arch, integrated, memory })
    };
    (0..count).map(list).collect()
}

fn device_of(cuda: &Cuda, index: c_int) -> Result<c_int, String> {
    let mut device = 0;
    // SAFETY: `device` outlives the call.
    unsafe { call!(*cuda, cuDeviceGet(&raw mut device, index)) }.map_err(|e| e.to_string())?;
    Ok(device)
}

pub(super) fn list(options: &GpuOptions) -> Result<(PathBuf, Vec<Listed>), String> {
    let (cuda, library) = load(options)?;
    let devices = list_devices(&cuda).map_err(|problem| format!("{}: {problem}", library.display()))?;
    Ok((library, devices))
}

pub(super) fn open(options: &GpuOptions) -> Opening<Nvidia> {
    let (cuda, library) = load(options)?;
    let named = |problem: String| format!("{}: {problem}", library.display());
    let index = match choose(options.device_index, &list_devices(&cuda).map_err(named)?) {
        Err(Unopened::Unusable(problem)) => return Err(named(problem).into()),
        chosen => chosen?,
    };
    let device = device_of(&cuda, c_int::try_from(index).map_err(|e| e.to_string())?)?;
    let mut version = 0;
    // SAFETY: `version` outlives the call.
    unsafe { call!(cuda, cuDriverGetVersion(&raw mut version)) }.map_err(|e| e.to_string())?;
    let driver_version = version_of(version, 1000, 10);
    let driver = format!("{}, CUDA {}.{}", library.display(), driver_version.0, driver_version.1);
    let properties = DeviceProperties { index, driver, library, driver_version, ..read_properties(&cuda, device)? };
    let mut context = ContextHandle::NULL;
    // SAFETY: `context` outlives the call.
    unsafe { call!(cuda, cuDevicePrimaryCtxRetain(&raw mut context, device)) }.map_err(|e| e.to_string())?;
    // From here on `Drop` releases the context.
    let dependent_launch =
        properties.arch.trim_start_matches("sm_").parse().is_ok_and(|capability: u32| capability >= 90);
    let opened = Nvidia { cuda, device, context, properties, dependent_launch };
    opened.make_current().map_err(|e| e.to_string())?;
    Ok(opened)
}

/// Reads the properties that need no context; the rest is left empty.
fn read_properties(cuda: &Cuda, device: c_int) -> Result<DeviceProperties, String> {
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: `value` outlives the call.
        unsafe { call!(*cuda, cuDeviceGetAttribute(&raw mut value, attribute, device)) }.map_err(|e| e.to_string())?;
        u32::try_from(value).map_err(|_| format!("attribute {attribute} of the device is {value}"))
    };
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: the name is 256 bytes, as said, and ends with a zero byte.
    let name = unsafe {
        call!(*cuda, cuDeviceGetName(name.as_mut_ptr(), 256, device)).map_err(|e| e.to_string())?;
        CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
    };
    let mut memory = 0;
    // SAFETY: `memory` outlives the call.
    unsafe { call!(*cuda, cuDeviceTotalMem_v2(&raw mut memory, device)) }.map_err(|e| e.to_string())?;
    let major = attribute(cuda::ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(cuda::ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(DeviceProperties {
        platform: Platform::Nvidia,
        index: 0,
        name,
        arch: format!("sm_{major}{minor}"),
        driver: String::new(),
        library: PathBuf::new(),
        driver_version: (0, 0),
        warp_size: attribute(cuda::ATTRIBUTE_WARP_SIZE)?,
        multiprocessors: attribute(cuda::ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        max_threads_per_block: attribute(cuda::ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_grid: [
            attribute(cuda::ATTRIBUTE_MAX_GRID_DIM_X)?,
            attribute(cuda::ATTRIBUTE_MAX_GRID_DIM_Y)?,
            attribute(cuda::ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        integrated: attribute(cuda::ATTRIBUTE_INTEGRATED)? != 0,
        memory: memory as u64,
        bus: None,
    })
}

fn check(cuda: &Cuda, call: &'static str, status: Status) -> Outcome<()> {
    if status == SUCCESS {
        return Ok(());
    }
    let (mut name, mut explanation) = (std::ptr::null(), std::ptr::null());
    // SAFETY: plain look-ups; for a code that is not theirs they fail and set null.
    let known = unsafe {
        (cuda.cuGetErrorName)(status, &raw mut name) == SUCCESS
            && (cuda.cuGetErrorString)(status, &raw mut explanation) == SUCCESS
    };
    let text = |pointer: *const c_char| match pointer.is_null() || !known {
        true => "?".into(),
        // SAFETY: both are static texts that end with a zero byte.
        false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy(),
    };
    Err(DriverError { call, code: status.0, text: format!("{}: {}", text(name), text(explanation)) })
}

impl Drop for Nvidia {
    fn drop(&mut self) {
        // SAFETY: retained once by `open`. Everything made in the context holds the device, and so this, alive.
        let released = unsafe { call!(self.cuda, cuDevicePrimaryCtxRelease_v2(self.device)) };
        if let Err(error) = released {
            tracing::warn!(%error, "releasing the CUDA context");
        }
    }
}

// SAFETY of every block below: locals that are written through pointers outlive the call, and the caller vouches for
// handles, addresses and sizes (see `Driver`).
impl Driver for Nvidia {
    entry_points!(cuda_calls);

    fn make_current(&self) -> Outcome<()> {
        // SAFETY: see above.
        unsafe { call!(self.cuda, cuCtxSetCurrent(self.context)) }
    }

    unsafe fn copy_to_device(&self, to: u64, from: *const u8, bytes: usize, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        unsafe { call!(self.cuda, cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream)) }
    }

    unsafe fn copy_to_host(&self, to: *mut u8, from: u64, bytes: usize, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        unsafe { call!(self.cuda, cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream)) }
    }

    unsafe fn copy_on_device(&self, to: u64, from: u64, bytes: u64, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        unsafe { call!(self.cuda, cuMemcpyDtoDAsync_v2(to, from, bytes as usize, stream)) }
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: u64, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        unsafe { call!(self.cuda, cuMemsetD8Async(to, byte, bytes as usize, stream)) }
    }

    unsafe fn allow_shared_bytes(&self, function: FunctionHandle, bytes: u32) -> Outcome<()> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: see above.
        unsafe { call!(self.cuda, cuFuncSetAttribute(function, cuda::FUNCTION_MAX_DYNAMIC_SHARED_BYTES, bytes)) }
    }

    unsafe fn launch(
        &self,
        function: FunctionHandle,
        [x, y, z]: [u32; 3],
        block: Block,
        args: *const c_void,
        overlaps: bool,
        stream: StreamHandle,
    ) -> Outcome<()> {
        let mut value = [0; 16];
        value[0] = 1;
        let id = cuda::LAUNCH_PROGRAMMATIC_STREAM_SERIALIZATION;
        let dependent = cuda::LaunchAttribute { id, padding: 0, value };
        let config = cuda::LaunchConfig {
            grid: [x, y, z],
            block: [block.threads, 1, 1],
            shared_bytes: block.shared_bytes,
            stream,
            attributes: &raw const dependent,
            num_attributes: u32::from(self.dependent_launch && overlaps),
        };
        let mut parameters = [args.cast_mut()];
        let (parameters, extra) = (parameters.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: see above; the driver copies configuration and parameter before it returns. Every kernel of ours
        // calls `pdl_wait` before it touches what another one writes.
        unsafe { call!(self.cuda, cuLaunchKernelEx(&raw const config, function, parameters, extra)) }
    }

    unsafe fn instantiate_graph(&self, graph: GraphHandle) -> Outcome<GraphExecHandle> {
        let mut exec = GraphExecHandle::NULL;
        // SAFETY: see above.
        unsafe { call!(self.cuda, cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)) }?;
        Ok(exec)
    }
}
