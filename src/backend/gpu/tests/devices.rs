//! The devices that tests can have.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::backend::gpu::compile::target_for;
use crate::backend::gpu::driver;
pub(crate) use crate::backend::gpu::driver::faults::{Call, Faults, Faulty, Live};
use crate::backend::gpu::{Device, GpuLoader, trial};
use crate::config::{EngineArgs, GpuOptions, Platform};

/// The stand-in's devices: kernels compiled for the CPU, in both sizes of a wave and both orders, then AMD's machine
/// code.
pub(crate) const CPU_TARGETS: [&str; 4] = ["cpu-wave32:up", "cpu-wave32:down", "cpu-wave64:up", "cpu-wave64:down"];
pub(crate) const AMD_TARGETS: [&str; 5] = ["gfx1100", "gfx942", "gfx90a", "gfx1030", "gfx1201"];
/// Targets whose code differs little from one of those. Machine code of gfx1100 and gfx942 is executed at
/// every commit, that of others by `make test-kernels`.
pub(crate) const KIN_TARGETS: [&str; 3] = ["gfx908", "gfx950", "gfx1151"];
/// One of each memory model, with workgroups that do not see each other's stores at once.
pub(crate) const WEAK_TARGETS: [&str; 4] = ["gfx90a:weak", "gfx942:down:weak", "gfx1100:weak", "gfx1201:down:weak"];

/// Targets of tests that end in a fault: nobody else uses these.
pub(crate) const FAULTY_TARGETS: [&str; 4] = ["cpu-wave32", "cpu-wave64", "cpu-wave32:up@order", "cpu-wave64:up@late"];

/// Targets of tests that fail calls or look at the free memory: one each, so that none sees the faults and allocations
/// of another. `open` takes what is behind the `@` for a name of the device.
const OWN_DEVICES: [&str; 11] = [
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
];

/// The stand-in's library: `cargo build -p hipsim` puts it beside the test binary's folder.
pub(crate) fn stand_in() -> Option<PathBuf> {
    let folder = std::env::current_exe().ok()?.parent()?.parent()?.to_path_buf();
    Some(folder.join("libhipsim.so")).filter(|path| path.exists())
}

/// The library, which stays open as long as the process: devices are opened from it again and again.
fn library(path: &Path) -> &'static libloading::Library {
    static LIBRARY: OnceLock<libloading::Library> = OnceLock::new();
    // SAFETY: the stand-in's initialisers do nothing.
    LIBRARY.get_or_init(|| unsafe { libloading::Library::new(path).unwrap() })
}

/// Makes the stand-in's devices, once per process: one of each target.
fn open_stand_in(path: &Path) -> &'static [&'static str] {
    static TARGETS: OnceLock<Vec<&'static str>> = OnceLock::new();
    TARGETS.get_or_init(|| {
        let targets = CPU_TARGETS.into_iter().chain(AMD_TARGETS).chain(KIN_TARGETS).chain(WEAK_TARGETS);
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

/// Lets the stand-in's matrix library misbehave so in this process.
pub(crate) fn misbehave(fault: &str) {
    let fault = CString::new(fault).unwrap();
    // SAFETY: the function's type is that of its source.
    let status = unsafe {
        let set = library(&stand_in().unwrap()).get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"hipsim_blaslt");
        set.unwrap()(fault.as_ptr())
    };
    assert_eq!(status, 0, "{fault:?}");
}

/// Products that the stand-in's matrix library was asked for in this process.
pub(crate) fn products() -> u64 {
    // SAFETY: as above.
    unsafe { library(&stand_in().unwrap()).get::<unsafe extern "C" fn() -> u64>(b"hipsim_blaslt_products").unwrap()() }
}

/// A device with its options.
pub(crate) fn open(target: &str) -> Option<(Device, GpuOptions)> {
    let arch = target.split(':').next().unwrap_or(target);
    if arch.starts_with("gfx") {
        let Some(code) = target_for(arch) else {
            println!("skipped: built without a compiler for AMD GPUs, or without code for {target}");
            return None;
        };
        // Stays unpacked as long as the process: tests load again and again.
        std::mem::forget(code.unpack().unwrap());
    }
    let Some(library) = stand_in() else {
        println!("skipped: no stand-in library; run `cargo build -p hipsim`");
        return None;
    };
    let index = open_stand_in(&library).iter().position(|&known| known == target)?;
    let options = GpuOptions {
        platform: Some(Platform::Amd),
        // Kernels that are compiled stay in a cache of the tests.
        cache_dir: library.parent().map(|folder| folder.join("test-kernels")),
        library: Some(library),
        device_index: Some(index as u32),
        self_test: false,
        without_barrier: EngineArgs::new("").with_env().unwrap().gpu.without_barrier,
        ..GpuOptions::default()
    };
    Some((Device::open(&options).unwrap(), options))
}

/// Makes one kind of wait of a stand-in's device do nothing, or, with 0, none (`hipsim_without`).
pub(crate) fn leave_out(options: &GpuOptions, wait: u32) {
    let index = options.device_index.unwrap() as c_int;
    // SAFETY: the function's type is that of its source.
    let status = unsafe {
        let library = library(options.library.as_deref().unwrap());
        library.get::<unsafe extern "C" fn(c_int, c_uint) -> c_int>(b"hipsim_without").unwrap()(index, wait)
    };
    assert_eq!(status, 0, "hipsim_without");
}

/// Lets the numbers of a step come too late for the kernels of repeated graphs (`hipsim_late_graphs`).
pub(crate) fn late_graphs(options: &GpuOptions, late: bool) {
    let index = options.device_index.unwrap() as c_int;
    // SAFETY: the function's type is that of its source.
    let status = unsafe {
        let library = library(options.library.as_deref().unwrap());
        let set = library.get::<unsafe extern "C" fn(c_int, c_uint) -> c_int>(b"hipsim_late_graphs").unwrap();
        set(index, late.into())
    };
    assert_eq!(status, 0, "hipsim_late_graphs");
}

/// The fault that a stand-in's device died of.
pub(crate) fn fault(options: &GpuOptions) -> String {
    type Fault = unsafe extern "C" fn(c_int, *mut c_char, usize) -> c_int;
    let mut text = [0 as c_char; 1000];
    // SAFETY: the function's type is that of its source, and it writes no more than it is told.
    unsafe {
        let fault = library(options.library.as_deref().unwrap()).get::<Fault>(b"hipsim_fault").unwrap();
        assert_eq!(fault(options.device_index.unwrap() as c_int, text.as_mut_ptr(), text.len()), 0, "hipsim_fault");
        CStr::from_ptr(text.as_ptr()).to_str().unwrap().to_owned()
    }
}

/// A device whose calls fail on command.
pub(crate) fn open_faulty(target: &str) -> Option<(Device, GpuOptions, Faults)> {
    let (_, options) = open(target)?;
    let (driver, faults) = Faulty::new(driver::open(&options).unwrap());
    Some((Device::with_driver(Box::new(driver)), options, faults))
}

/// The GPU of this machine, or what the environment names in its place.
pub(crate) fn open_real() -> Option<(Device, GpuOptions)> {
    let mut options = EngineArgs::new("").with_env().unwrap().gpu;
    // Tests ask for it; their tables are not all weights.
    options.self_test = false;
    match Device::open(&options) {
        Ok(device) => Some((device, options)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// A loader for steps of up to `rows` tokens.
pub(crate) fn loader(opened: &(Device, GpuOptions), rows: usize) -> GpuLoader {
    make_loader(opened, rows).unwrap()
}

/// Like `loader`, for cases, which take its error.
pub(crate) fn make_loader((device, options): &(Device, GpuOptions), rows: usize) -> crate::Result<GpuLoader> {
    GpuLoader::new(device.clone(), options, trial::case_limits(rows))
}
