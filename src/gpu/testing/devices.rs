//! The devices for tests.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::backend::host_memory::HostMemory;
use crate::compile::target_for;
use crate::config::{EngineArgs, GpuOptions, Platform};
use crate::driver;
use crate::driver::fake::{self, Fake};
pub use crate::driver::faults::{Call, Faults, Faulty, Live};
use crate::tuning::Tuning;
use crate::{Device, DeviceProperties, GpuLoader, trial};

/// The stand-in's devices with kernels compiled for the CPU, in both wave sizes and both orders.
pub const CPU_TARGETS: [&str; 4] = ["cpu-wave32:up", "cpu-wave32:down", "cpu-wave64:up", "cpu-wave64:down"];
/// The AMD target whose machine code is executed at every commit. The stand-in's CPU targets have both wave sizes.
pub const AMD_TARGET: &str = "gfx1100";
/// AMD targets whose machine code is executed by `make test-kernels`.
pub const DEEP_TARGETS: [&str; 7] = ["gfx90a", "gfx1030", "gfx1201", "gfx908", "gfx950", "gfx1151", "gfx942"];
/// One of each memory model, with workgroups that do not see each other's stores at once.
pub const WEAK_TARGETS: [&str; 4] = ["gfx90a:weak", "gfx942:down:weak", "gfx1100:weak", "gfx1201:down:weak"];

/// Targets of tests that end in a fault: no other test uses these.
pub const FAULTY_TARGETS: [&str; 6] = [
    "cpu-wave32",
    "cpu-wave64",
    "cpu-wave32:up@order",
    "cpu-wave64:up@late",
    "cpu-wave32:up@copies out",
    "cpu-wave32:up@copies in",
];

/// Targets of tests that fail calls or read the free memory. Each test has one, so none sees the faults and allocations
/// of another. `open` takes the text after the `@` as a name of the device.
const OWN_DEVICES: [&str; 30] = [
    "cpu-wave32:up@model",
    "cpu-wave32:up@memory",
    "cpu-wave32:up@load",
    "cpu-wave32:up@recordings",
    "cpu-wave32:up@allocations",
    "cpu-wave32:up@kinds",
    "cpu-wave32:up@requests",
    "cpu-wave32:up@lost",
    "cpu-wave32:up@end",
    "cpu-wave32:up@budget",
    "cpu-wave32:up@room",
    "cpu-wave32:up@limit",
    "cpu-wave32:up@placed",
    "cpu-wave32:up@pinned",
    "cpu-wave32:up@staged",
    "cpu-wave64:up@staged",
    "cpu-wave32:up@cached",
    "cpu-wave64:up@cached",
    "cpu-wave32:up@experts",
    "cpu-wave32:up@rows",
    "cpu-wave32:up@calls",
    "cpu-wave32:up@invariant",
    "cpu-wave32:up@many",
    "cpu-wave32:up@kept",
    "cpu-wave32:up@joint",
    "cpu-wave64:up@joint",
    "cpu-wave32:up@free",
    "cpu-wave32:up@unjoined",
    "cpu-wave32:up@counts",
    "cpu-wave32:up@gone",
];

/// Returns the stand-in's library: `cargo build -p hipsim` puts it next to the test binary's folder.
pub fn stand_in() -> Option<PathBuf> {
    let folder = std::env::current_exe().ok()?.parent()?.parent()?.to_path_buf();
    Some(folder.join("libhipsim.so")).filter(|path| path.exists())
}

/// Returns the library, which stays open for the life of the process, because devices are opened from it repeatedly.
fn library(path: &Path) -> &'static libloading::Library {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    // SAFETY: the stand-in's initialisers do nothing.
    LIBRARY.get_or_init(|| unsafe { libloading::Library::new(path).unwrap() })
}

/// Creates the stand-in's devices, one per target, once per process.
fn open_stand_in(path: &Path) -> &'static [&'static str] {
    static TARGETS: OnceLock<Vec<&'static str>> = OnceLock::new();
    TARGETS.get_or_init(|| {
        let targets = CPU_TARGETS.into_iter().chain([AMD_TARGET]).chain(DEEP_TARGETS).chain(WEAK_TARGETS);
        let targets: Vec<_> = targets.chain(FAULTY_TARGETS).chain(OWN_DEVICES).collect();
        let unnamed: Vec<_> = targets.iter().filter_map(|target| target.split('@').next()).collect();
        let list = CString::new(unnamed.join(",")).unwrap();
        // SAFETY: the function's type is that of its source.
        let status = unsafe {
            let open = library(path).get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"hipsim_open").unwrap();
            open(list.as_ptr())
        };
        assert_eq!(status, 0, "hipsim_open");
        targets
    })
}

/// Makes the stand-in's matrix library misbehave in this way in this process.
pub fn misbehave(fault: &str) {
    let fault = CString::new(fault).unwrap();
    // SAFETY: the function's type is that of its source.
    let status = unsafe {
        let set = library(&stand_in().unwrap()).get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"hipsim_blaslt");
        set.unwrap()(fault.as_ptr())
    };
    assert_eq!(status, 0, "{fault:?}");
}

/// Returns the number of products that the stand-in's matrix library was called for in this process.
pub fn products() -> u64 {
    // SAFETY: as above.
    unsafe { library(&stand_in().unwrap()).get::<unsafe extern "C" fn() -> u64>(b"hipsim_blaslt_products").unwrap()() }
}

/// Reports why a test cannot run. In CI that is a failure, since CI installs everything that tests need except a GPU.
pub fn skip(reason: &str) {
    assert_ne!(option_env!("CI"), Some("true"), "a test that could not run in CI: {reason}");
    println!("skipped: {reason}");
}

/// Opens a device and returns it with its options.
pub fn open(target: &str) -> Option<(Device, GpuOptions)> {
    let arch = target.split(':').next().unwrap_or(target);
    if arch.starts_with("gfx") {
        let Some(code) = target_for(arch) else {
            skip(&format!("built without a compiler for AMD GPUs, or without code for {target}"));
            return None;
        };
        // Stays unpacked for the life of the process, since tests load repeatedly.
        std::mem::forget(code.unpack().unwrap());
    }
    let Some(library) = stand_in() else {
        skip("no stand-in library; run `cargo build -p hipsim`");
        return None;
    };
    let index = open_stand_in(&library).iter().position(|&known| known == target)?;
    let options = GpuOptions {
        platform: Some(Platform::Amd),
        // Compiled kernels stay in a cache of the tests.
        cache_dir: library.parent().map(|folder| folder.join("test-kernels")),
        library: Some(library),
        device_index: Some(index as u32),
        self_test: false,
        without_barrier: EngineArgs::new("").with_env().unwrap().gpu.without_barrier,
        ..GpuOptions::default()
    };
    Some((Device::open(&options).unwrap(), options))
}

/// Disables one kind of wait of a stand-in's device, or, with 0, none (`hipsim_without`).
pub fn leave_out(options: &GpuOptions, wait: u32) {
    let index = options.device_index.unwrap() as c_int;
    // SAFETY: the function's type is that of its source.
    let status = unsafe {
        let library = library(options.library.as_deref().unwrap());
        library.get::<unsafe extern "C" fn(c_int, c_uint) -> c_int>(b"hipsim_without").unwrap()(index, wait)
    };
    assert_eq!(status, 0, "hipsim_without");
}

/// Delays a step's integers for the kernels of replayed graphs (`hipsim_late_graphs`).
pub fn late_graphs(options: &GpuOptions, late: bool) {
    let index = options.device_index.unwrap() as c_int;
    // SAFETY: the function's type is that of its source.
    let status = unsafe {
        let library = library(options.library.as_deref().unwrap());
        let set = library.get::<unsafe extern "C" fn(c_int, c_uint) -> c_int>(b"hipsim_late_graphs").unwrap();
        set(index, late.into())
    };
    assert_eq!(status, 0, "hipsim_late_graphs");
}

/// Returns the fault that killed a stand-in's device.
pub fn fault(options: &GpuOptions) -> String {
    type Fault = unsafe extern "C" fn(c_int, *mut c_char, usize) -> c_int;
    let mut text = [0 as c_char; 1000];
    // SAFETY: the function's type is that of its source, and it writes no more than it is told.
    unsafe {
        let fault = library(options.library.as_deref().unwrap()).get::<Fault>(b"hipsim_fault").unwrap();
        assert_eq!(fault(options.device_index.unwrap() as c_int, text.as_mut_ptr(), text.len()), 0, "hipsim_fault");
        CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned()
    }
}

/// Opens a device whose calls fail on command.
pub fn open_faulty(target: &str) -> Option<(Device, GpuOptions, Faults)> {
    let (_, options) = open(target)?;
    let (driver, faults) = Faulty::new(driver::open(&options).unwrap());
    Some((Device::with_driver(Box::new(driver)), options, faults))
}

/// Opens a device that executes nothing, with AMD's code for `AMD_TARGET`. Launches are planned as on this GPU, and
/// counted.
pub fn open_planned(arch: &str, integrated: bool, multiprocessors: u32) -> Option<(Device, GpuOptions, Faults)> {
    if target_for(AMD_TARGET).is_none() {
        skip(&format!("built without code for {AMD_TARGET}"));
        return None;
    }
    let memory = 24 << 30;
    let properties = DeviceProperties { multiprocessors, memory, arch: AMD_TARGET.to_owned(), ..fake::properties() };
    let planned = DeviceProperties { arch: arch.to_owned(), integrated, ..properties.clone() };
    let (driver, faults) = Faulty::new(Box::new(Fake::with_memory(memory, memory, properties)));
    let device = Device::tuned(Box::new(driver), HostMemory::default(), Tuning::of(&planned));
    let options =
        GpuOptions { graphs: Some(false), self_test: false, vendor_blas: Some(false), ..GpuOptions::default() };
    Some((device, options, faults))
}

/// Opens the GPU of this machine, or the device that the environment names instead.
pub fn open_real() -> Option<(Device, GpuOptions)> {
    let mut options = EngineArgs::new("").with_env().unwrap().gpu;
    // Tests that need the self-test enable it. The tables of others are not all weights.
    options.self_test = false;
    match Device::open(&options) {
        Ok(device) => Some((device, options)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Creates a loader for steps of up to `rows` tokens.
pub fn loader(opened: &(Device, GpuOptions), rows: usize) -> GpuLoader {
    loaders(opened)(rows).unwrap()
}

/// Returns what creates loaders for cases. The compiler makes a copy of the cases for each type of closure, so all
/// tests use this one.
pub fn loaders((device, options): &(Device, GpuOptions)) -> impl Fn(usize) -> crate::Result<GpuLoader> + Copy {
    move |rows| GpuLoader::new(device.clone(), options, trial::case_limits(rows))
}
