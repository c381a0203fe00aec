//! Mutation: a kernel that lacks any one of its barriers fails a case, in one of the two extreme orders of its waves.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::devices;
use crate::backend::conformance::{self, Accuracy};
use crate::backend::hip::compile::Compiler;
use crate::backend::hip::{Device, HipLoader, KernelType, Unit};
use crate::config::HipOptions;
use crate::quant::GgmlType;

type Opened = (Device, HipOptions);

/// Number, file and line of the barriers of a unit that was compiled for the CPU (gpu_cpu.h).
fn barriers(image: &[u8]) -> Vec<(u32, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("unit.so");
    std::fs::write(&path, image).unwrap();
    // SAFETY: the functions' types are those of gpu_cpu.h, which returns strings that live as long as the library.
    unsafe {
        let library = libloading::Library::new(&path).unwrap();
        let count = library.get::<unsafe extern "C" fn() -> c_int>(b"cpu_barrier_sites").unwrap()();
        let file = library.get::<unsafe extern "C" fn(c_int) -> *const c_char>(b"cpu_barrier_file").unwrap();
        let line = library.get::<unsafe extern "C" fn(c_int) -> c_int>(b"cpu_barrier_line").unwrap();
        // Numbers without a file stand in code that this unit does not use.
        let compiled = (0..count).filter(|&n| !file(n).is_null());
        let name = |n| CStr::from_ptr(file(n)).to_string_lossy().rsplit('/').next().unwrap().to_owned();
        compiled.map(|n| (n as u32, format!("{}:{}", name(n), line(n)))).collect()
    }
}

/// Leaves out each barrier of a unit in turn.
fn check(own: usize, file: &'static str, ty: Option<KernelType>, cases: impl Fn(&Opened)) {
    let Some(opened) = devices::open_own(own) else { return };
    opened.iter().for_each(&cases);
    let (device, options) = &opened[0];
    let image = Compiler::new(device.properties(), options).code_object(Unit { file, ty }).unwrap().image;
    let barriers = barriers(&image);
    assert!(!barriers.is_empty(), "{file} has no barriers");
    let needless = barriers.iter().filter(|(barrier, place)| {
        let noticed = opened.iter().any(|(_, options)| {
            let changed = HipOptions { without_barrier: Some((file, *barrier)), ..options.clone() };
            let device = Device::open(&changed).unwrap();
            let failed = catch_unwind(AssertUnwindSafe(|| cases(&(device, changed)))).is_err();
            devices::revive(options);
            failed
        });
        println!("{place} {noticed}");
        !noticed
    });
    let needless: Vec<&str> = needless.map(|(_, place)| &**place).collect();
    assert!(needless.is_empty(), "without one of these barriers everything passes: {needless:?}");
}

fn loader(device: &Opened) -> impl Fn(usize) -> HipLoader + Copy {
    |rows| devices::loader(device, rows)
}

#[test]
fn barriers_of_rows() {
    check(0, "rows.hip", None, |device| conformance::elementwise::check(loader(device)));
}

#[test]
fn barriers_of_gemv() {
    check(1, "gemv.hip", Some(KernelType::Q8_0), |device| {
        conformance::linear::check_type(loader(device), GgmlType::Q8_0);
        conformance::fused::check(loader(device));
    });
}

#[test]
fn barriers_of_matmul() {
    check(2, "matmul.hip", Some(KernelType::Q8_0), |device| {
        conformance::linear::check_type(loader(device), GgmlType::Q8_0);
    });
}

#[test]
fn barriers_of_decode_attention() {
    check(3, "attention_decode.hip", None, |device| conformance::attention::check(loader(device), Accuracy::GPU));
}

#[test]
fn barriers_of_prefill_attention() {
    check(4, "attention_prefill.hip", None, |device| conformance::attention::check(loader(device), Accuracy::GPU));
}

#[test]
fn barriers_of_sampling() {
    check(5, "sampling.hip", None, |device| conformance::selection::check(loader(device)));
}
