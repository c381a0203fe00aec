//! HIP on AMD GPUs: libamdhip64 of ROCm 6, 7 or 10. Its name ends in .6 for ROCm 6, and in .7 for the other two.

use std::ffi::{CStr, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use super::choose::choose;
use super::error::{NOT_READY, SUCCESS};
use super::libraries::Search;
use super::probe::{self, Verdict};
use super::{Block, DeviceProperties, Driver, DriverError, MemoryInfo, Outcome};
use super::{Listed, Opening, Unopened, version_of};
use crate::config::{GpuOptions, Platform};
use crate::sys::hip::{self, Hip};
use crate::sys::{
    self, EventHandle, FunctionHandle, GraphExecHandle, GraphHandle, HostFunction, ModuleHandle, Status, StreamHandle,
    file_of, reason,
};
use crate::system::System;

/// Names in ROCm 7 and 10, and in 6; Python packages have it without a number. The first is that of a future release.
/// ROCm 5's name is included, to report that it is too old.
const LIBRARIES: [&str; 5] =
    ["libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", "libamdhip64.so.5"];

/// The remedy if no library can be used.
const INSTALL: &str = "install rocm-hip-runtime, or set ROCMFORGE_GPU_LIBRARY to the path of libamdhip64.so";

pub(super) struct Amd {
    hip: Hip,
    device: c_int,
    properties: DeviceProperties,
}

/// Opens the library; returns it with its file.
fn load(options: &GpuOptions) -> Result<(Hip, PathBuf), String> {
    probe(options, Verdict::Earlier)?;
    search(options).find(functions).map_err(|tried| format!("{tried}; {INSTALL}"))
}

/// True if there is a library. This opens it.
pub(super) fn is_installed(options: &GpuOptions) -> bool {
    search(options).find(functions).is_ok()
}

/// Checks, before the library is even opened, that this process may use it.
///
/// # Errors
/// The text says how it failed.
pub(super) fn probe(options: &GpuOptions, verdict: Verdict) -> Result<(), String> {
    // Two such libraries in one process conflict, so one that is already open is the one that will be used.
    let loaded = search(options).find_loaded(functions).map(|(_, file)| file);
    let options = GpuOptions { library: loaded.or_else(|| options.library.clone()), ..options.clone() };
    probe::check(&options, &search(&options).state(&options.loader_folders), verdict)
}

fn search(options: &GpuOptions) -> Search {
    Search::driver(options, Platform::Amd, &LIBRARIES)
}

/// Returns the functions of an opened library, with its file.
fn functions(library: libloading::Library, file: &Path) -> Result<(Hip, PathBuf), String> {
    // SAFETY: a library of this name has the functions of hip_runtime_api.h.
    let hip = unsafe { Hip::load(library) }.map_err(|e| format!("older than ROCm 6 or not HIP: {}", reason(&e)))?;
    let loaded = file_of(hip.hipInit as *const c_void).unwrap_or_else(|| file.to_path_buf());
    Ok((hip, loaded))
}

/// Counts the devices. Any failure of hipInit counts as "no AMD device". Without a device the library fails in several
/// ways, and none of them says why.
fn count_devices(hip: &Hip, options: &GpuOptions) -> Result<c_int, String> {
    let mut count = 0;
    // SAFETY: `count` outlives the call.
    let counted = unsafe { call!(*hip, hipInit(0)).and_then(|()| call!(*hip, hipGetDeviceCount(&raw mut count))) };
    let why = || System::look(options).why_no_device();
    match counted {
        Ok(()) if count > 0 => Ok(count),
        Ok(()) => Err(format!("it finds no device: {}", why())),
        Err(error) => Err(format!("it finds no device: {} ({error})", why())),
    }
}

fn list_devices(hip: &Hip, options: &GpuOptions) -> Result<Vec<Listed>, String> {
    let list = |device: c_int| {
        let number = |number| attribute(hip, device, number);
        let found = number(hip::ATTRIBUTE_WARP_SIZE)
            .and_then(|warp| read_structure(hip, device, warp, number(hip::ATTRIBUTE_MULTIPROCESSOR_COUNT)?));
        // A problem of an unused device must not hide the others.
        let found = found.unwrap_or_else(|problem| Structure { arch: format!("unknown: {problem}"), memory: 0 });
        Ok(Listed {
            index: device.unsigned_abs(),
            name: name(hip, device)?,
            arch: found.arch,
            integrated: is_integrated(hip, device),
            memory: found.memory,
        })
    };
    (0..count_devices(hip, options)?).map(list).collect()
}

pub(super) fn list(options: &GpuOptions) -> Result<(PathBuf, Vec<Listed>), String> {
    let (hip, library) = load(options)?;
    let devices = list_devices(&hip, options).map_err(|problem| format!("{}: {problem}", library.display()))?;
    Ok((library, devices))
}

pub(super) fn open(options: &GpuOptions) -> Opening<Amd> {
    let (hip, library) = load(options)?;
    let named = |problem: String| format!("{}: {problem}", library.display());
    let index = match choose(options.device_index, &list_devices(&hip, options).map_err(named)?) {
        Err(Unopened::Unusable(problem)) => return Err(named(problem).into()),
        chosen => chosen?,
    };
    let device = c_int::try_from(index).map_err(|e| e.to_string())?;
    let mut version = 0;
    // SAFETY: `version` outlives the call.
    unsafe {
        call!(hip, hipRuntimeGetVersion(&raw mut version)).map_err(|e| e.to_string())?;
        call!(hip, hipSetDevice(device)).map_err(|e| e.to_string())?;
    }
    let driver_version = version_of(version, 10_000_000, 100_000);
    let properties = read_properties(&hip, device, library, driver_version)?;
    Ok(Amd { hip, device, properties })
}

fn attribute(hip: &Hip, device: c_int, attribute: c_int) -> Result<u32, String> {
    let mut value = 0;
    // SAFETY: `value` outlives the call.
    unsafe { call!(*hip, hipDeviceGetAttribute(&raw mut value, attribute, device)) }.map_err(|e| e.to_string())?;
    u32::try_from(value).map_err(|_| format!("attribute {attribute} of the device is {value}"))
}

/// Tells if the device is integrated. A library without this attribute counts as "no".
fn is_integrated(hip: &Hip, device: c_int) -> bool {
    attribute(hip, device, hip::ATTRIBUTE_INTEGRATED).is_ok_and(|value| value != 0)
}

fn name(hip: &Hip, device: c_int) -> Result<String, String> {
    let mut name = [0; 256];
    // SAFETY: the name is 256 bytes, as said.
    unsafe { call!(*hip, hipDeviceGetName(name.as_mut_ptr(), 256, device)) }.map_err(|e| e.to_string())?;
    Ok(text(&name.map(|c| c as u8)))
}

fn read_properties(
    hip: &Hip,
    device: c_int,
    library: PathBuf,
    driver_version: (u32, u32),
) -> Result<DeviceProperties, String> {
    let attribute = |number| attribute(hip, device, number);
    let warp_size = attribute(hip::ATTRIBUTE_WARP_SIZE)?;
    let multiprocessors = attribute(hip::ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let Structure { arch, memory } = read_structure(hip, device, warp_size, multiprocessors)?;
    Ok(DeviceProperties {
        platform: Platform::Amd,
        index: device.unsigned_abs(),
        name: name(hip, device)?,
        arch,
        driver: format!("{}, HIP {}.{}", library.display(), driver_version.0, driver_version.1),
        library,
        driver_version,
        warp_size,
        multiprocessors,
        max_threads_per_block: attribute(hip::ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        max_grid: [
            attribute(hip::ATTRIBUTE_MAX_GRID_DIM_X)?,
            attribute(hip::ATTRIBUTE_MAX_GRID_DIM_Y)?,
            attribute(hip::ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        integrated: is_integrated(hip, device),
        memory,
        bus: bus(hip, device),
    })
}

/// Returns the place on the PCI bus. `None` if the library does not tell, since only estimates of the memory need it.
fn bus(hip: &Hip, device: c_int) -> Option<String> {
    let mut place = [0; 64];
    // SAFETY: the text is 64 bytes, as said.
    unsafe { call!(*hip, hipDeviceGetPCIBusId(place.as_mut_ptr(), 64, device)) }.ok()?;
    Some(text(&place.map(|c| c as u8)).to_lowercase())
}

/// Properties that no attribute contains.
struct Structure {
    arch: String,
    memory: u64,
}

/// Reads the architecture's name and the memory's size from a structure, since they are in no attribute. The
/// structure's layout is private to the library. ROCm 6 and 7 have them at these offsets, which two other fields
/// confirm.
fn read_structure(hip: &Hip, device: c_int, warp_size: u32, multiprocessors: u32) -> Result<Structure, String> {
    // Larger than the structure, in case a later library writes more of it.
    let mut bytes = vec![0u8; 4 * hip::PROPERTIES_BYTES];
    // SAFETY: the buffer has several times the structure's size.
    unsafe { call!(*hip, hipGetDevicePropertiesR0600(bytes.as_mut_ptr(), device)) }.map_err(|e| e.to_string())?;
    let number = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let found = (number(hip::PROPERTIES_WARP_SIZE), number(hip::PROPERTIES_MULTIPROCESSOR_COUNT));
    if found != (warp_size, multiprocessors) {
        return Err(format!(
            "hipDeviceProp_t has another layout than ROCm 6's: wave size and compute units read as {found:?}, their \
             attributes are {:?}; this library is not supported yet",
            (warp_size, multiprocessors)
        ));
    }
    let memory = u64::from(number(hip::PROPERTIES_MEMORY)) | u64::from(number(hip::PROPERTIES_MEMORY + 4)) << 32;
    let name = text(&bytes[hip::PROPERTIES_GCN_ARCH_NAME..][..hip::PROPERTIES_GCN_ARCH_NAME_BYTES]);
    // "gfx90a:sramecc+:xnack-": our code objects run with any state of both features.
    match name.split(':').next() {
        Some(arch) if !arch.is_empty() => Ok(Structure { arch: arch.to_string(), memory }),
        _ => Err(format!("the device's architecture is {name:?}, expected a name like gfx1100")),
    }
}

/// Returns the text before the first zero byte.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

fn check(hip: &Hip, call: &'static str, status: Status) -> Outcome<()> {
    if status == SUCCESS {
        return Ok(());
    }
    let text = |pointer: *const std::ffi::c_char| match pointer.is_null() {
        true => "?".into(),
        // SAFETY: both functions return a static text that ends with a zero byte.
        false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy(),
    };
    // SAFETY: plain look-ups, valid for every code.
    let (name, explanation) = unsafe { ((hip.hipGetErrorName)(status), (hip.hipGetErrorString)(status)) };
    Err(DriverError { call, code: status.0, text: format!("{}: {}", text(name), text(explanation)) })
}

// SAFETY of every block below: locals that are written through pointers outlive the call, and the caller vouches for
// handles, addresses and sizes (see `Driver`).
impl Driver for Amd {
    entry_points!(hip_calls);

    fn make_current(&self) -> Outcome<()> {
        // SAFETY: see above.
        unsafe { call!(self.hip, hipSetDevice(self.device)) }
    }

    unsafe fn copy_to_device(&self, to: u64, from: *const u8, bytes: usize, stream: StreamHandle) -> Outcome<()> {
        let (to, kind) = (to as *mut c_void, hip::COPY_HOST_TO_DEVICE);
        // SAFETY: see above.
        unsafe { call!(self.hip, hipMemcpyAsync(to, from.cast(), bytes, kind, stream)) }
    }

    unsafe fn copy_to_host(&self, to: *mut u8, from: u64, bytes: usize, stream: StreamHandle) -> Outcome<()> {
        let (from, kind) = (from as *const c_void, hip::COPY_DEVICE_TO_HOST);
        // SAFETY: see above.
        unsafe { call!(self.hip, hipMemcpyAsync(to.cast(), from, bytes, kind, stream)) }
    }

    unsafe fn copy_on_device(&self, to: u64, from: u64, bytes: u64, stream: StreamHandle) -> Outcome<()> {
        let (to, from, kind) = (to as *mut c_void, from as *const c_void, hip::COPY_DEVICE_TO_DEVICE);
        // SAFETY: see above.
        unsafe { call!(self.hip, hipMemcpyAsync(to, from, bytes as usize, kind, stream)) }
    }

    unsafe fn fill(&self, to: u64, byte: u8, bytes: u64, stream: StreamHandle) -> Outcome<()> {
        // SAFETY: see above.
        unsafe { call!(self.hip, hipMemsetAsync(to as *mut c_void, byte.into(), bytes as usize, stream)) }
    }

    unsafe fn launch(
        &self,
        function: FunctionHandle,
        [x, y, z]: [u32; 3],
        block: Block,
        args: *const c_void,
        _overlaps: bool,
        stream: StreamHandle,
    ) -> Outcome<()> {
        let mut parameters = [args.cast_mut()];
        let (parameters, extra) = (parameters.as_mut_ptr(), std::ptr::null_mut());
        let Block { threads, shared_bytes: shared } = block;
        // SAFETY: see above; the driver copies the parameter before it returns.
        unsafe {
            call!(self.hip, hipModuleLaunchKernel(function, x, y, z, threads, 1, 1, shared, stream, parameters, extra))
        }
    }

    unsafe fn instantiate_graph(&self, graph: GraphHandle) -> Outcome<GraphExecHandle> {
        let mut exec = GraphExecHandle::NULL;
        let (node, log) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: see above; neither the node that failed nor a log is asked for.
        unsafe { call!(self.hip, hipGraphInstantiate(&raw mut exec, graph, node, log, 0)) }?;
        Ok(exec)
    }
}
