//! Mutation tests: a kernel without any one of its barriers fails a case, in one of the two extreme orders of its
//! waves.
//!
//! Such a kernel may write anywhere, or never end. Each therefore runs in a separate process, which is this test again
//! with the barrier to leave out.

use std::ffi::{CStr, c_char, c_int};
use std::panic::AssertUnwindSafe;
use std::process::{Command, ExitStatus, Stdio};

use crate::Result;
use crate::compile::Compiler;
use crate::config::{EngineArgs, GpuOptions};
use crate::conformance::{self, Accuracy, Extent, Tally};
use crate::quant::GgmlType;
use crate::testing::devices::{self, CPU_TARGETS};
use crate::tests::{fp8, vendor};
use crate::{Device, KernelType, Unit};

type Opened = (Device, GpuOptions);

/// Ten times the longest cases, in seconds of processor time, which do not depend on the machine's load.
const CPU_SECONDS: libc::rlim_t = 600;

/// Returns number, file and line of the barriers of a unit that was compiled for the CPU (gpu_cpu.h).
fn barriers(image: &[u8]) -> Vec<(u32, String)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("unit.so");
    std::fs::write(&path, image).unwrap();
    // SAFETY: the functions' types are those of gpu_cpu.h, which returns strings that live as long as the library.
    unsafe {
        // Never closed: other threads may be about to access its thread-local variables.
        let library = Box::leak(Box::new(libloading::Library::new(&path).unwrap()));
        let count = library.get::<unsafe extern "C" fn() -> c_int>(b"cpu_barrier_sites").unwrap()();
        let file = library.get::<unsafe extern "C" fn(c_int) -> *const c_char>(b"cpu_barrier_file").unwrap();
        let line = library.get::<unsafe extern "C" fn(c_int) -> c_int>(b"cpu_barrier_line").unwrap();
        // Numbers without a file belong to code that this unit does not use.
        let compiled = (0..count).filter(|&n| !file(n).is_null());
        let name = |n| CStr::from_ptr(file(n)).to_string_lossy().rsplit('/').next().unwrap().to_owned();
        compiled.map(|n| (n as u32, format!("{}:{}", name(n), line(n)))).collect()
    }
}

/// Runs a test of this module in a separate process, without a barrier.
fn run_without(barrier: &str, test: &str) -> ExitStatus {
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &name]).env("ROCMFORGE_TEST_WITHOUT_BARRIER", barrier);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
}

fn limit_cpu_time() {
    let limit = libc::rlimit { rlim_cur: CPU_SECONDS, rlim_max: CPU_SECONDS };
    // SAFETY: a plain system call on a value that outlives it.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_CPU, &limit) }, 0);
}

/// Runs the cases in both orders at once, and ends the process at the first wrong one. It is not known beforehand which
/// order reveals a missing barrier, and how soon.
fn run_in_both_orders(cases: &(impl Fn(&Opened, &mut Tally<'_>) -> Result<()> + Sync)) {
    let run = |target: &str| {
        let mut go_on = |_: &str| true;
        let mut tally = Tally::new(Extent::UntilWrong, &mut go_on);
        cases(&devices::open(target).unwrap(), &mut tally).unwrap();
        assert!(tally.into_groups().iter().all(|group| group.cases > 0 && group.wrong == 0));
    };
    std::thread::scope(|scope| {
        for target in &CPU_TARGETS[..2] {
            scope.spawn(move || {
                if std::panic::catch_unwind(AssertUnwindSafe(|| run(target))).is_err() {
                    std::process::exit(1);
                }
            });
        }
    });
}

/// Leaves out each barrier of a unit in turn. In the process without a barrier it runs the cases.
fn check(
    test: &str,
    file: &'static str,
    ty: Option<KernelType>,
    cases: impl Fn(&Opened, &mut Tally<'_>) -> Result<()> + Sync,
) {
    let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
    if EngineArgs::new("").with_env().unwrap().gpu.without_barrier.is_some() {
        limit_cpu_time();
        return run_in_both_orders(&cases);
    }
    let unit = ty.map_or(Unit::plain(file), |ty| Unit::typed(file, ty));
    let image = Compiler::new(device.properties(), &options).code_object(unit).unwrap().image;
    let barriers = barriers(&image);
    assert!(!barriers.is_empty(), "{file} has no barriers");
    // No barrier has this number, so nothing is left out, and the cases must pass.
    assert!(run_without(&format!("{file}:{}", u16::MAX), test).success(), "the cases fail with all barriers");
    let needless = barriers.iter().filter(|(barrier, place)| {
        let status = run_without(&format!("{file}:{barrier}"), test);
        println!("{place}: {status}");
        status.success()
    });
    let needless: Vec<&str> = needless.map(|(_, place)| &**place).collect();
    assert!(needless.is_empty(), "without one of these barriers everything passes: {needless:?}");
}

#[test]
fn barriers_of_a_step() {
    check("barriers_of_a_step", "step.hip", None, |device, tally| {
        conformance::attention::check(devices::loaders(device), Accuracy::GPU, tally)
    });
}

#[test]
fn barriers_of_rows() {
    check("barriers_of_rows", "rows.hip", None, |device, tally| {
        conformance::elementwise::check(devices::loaders(device), tally)
    });
}

#[test]
fn barriers_of_8_bit_rows() {
    check("barriers_of_8_bit_rows", "fp8.hip", None, |(device, options), _| {
        let options = GpuOptions { vendor_blas: Some(true), helper: vendor::helper(""), ..options.clone() };
        fp8::check_feed_forward(device, &options, [300, 2048], fp8::But::Nothing);
        Ok(())
    });
}

#[test]
fn barriers_of_gemv() {
    check("barriers_of_gemv", "gemv.hip", Some(KernelType::Q8_0), |device, tally| {
        conformance::linear::check_type(devices::loaders(device), GgmlType::Q8_0, tally)?;
        conformance::fused::check(devices::loaders(device), tally)
    });
}

#[test]
fn barriers_of_matmul() {
    check("barriers_of_matmul", "matmul.hip", Some(KernelType::Q8_0), |device, tally| {
        conformance::linear::check_type(devices::loaders(device), GgmlType::Q8_0, tally)
    });
}

#[test]
fn barriers_of_matmul_f32() {
    check("barriers_of_matmul_f32", "matmul_f32.hip", None, |device, tally| {
        conformance::linear::check_type(devices::loaders(device), GgmlType::F32, tally)
    });
}

/// F16 has cases of runs of both lengths, with a gate of that type.
#[test]
fn barriers_of_matmul_experts() {
    check("barriers_of_matmul_experts", "matmul_experts.hip", Some(KernelType::F16), |device, tally| {
        conformance::experts::check(devices::loaders(device), tally)
    });
}

#[test]
fn barriers_of_experts() {
    check("barriers_of_experts", "experts.hip", None, |device, tally| {
        conformance::experts::check(devices::loaders(device), tally)
    });
}

#[test]
fn barriers_of_decode_attention() {
    check("barriers_of_decode_attention", "attention_decode.hip", None, |device, tally| {
        conformance::attention::check(devices::loaders(device), Accuracy::GPU, tally)?;
        conformance::rope_attention::check(devices::loaders(device), tally)
    });
}

#[test]
fn barriers_of_prefill_attention() {
    check("barriers_of_prefill_attention", "attention_prefill.hip", None, |device, tally| {
        conformance::attention::check(devices::loaders(device), Accuracy::GPU, tally)
    });
}

#[test]
fn barriers_of_latent_rows() {
    check("barriers_of_latent_rows", "latent.hip", None, |device, tally| {
        conformance::latent::check(devices::loaders(device), Accuracy::GPU, tally)
    });
}

#[test]
fn barriers_of_latent_attention() {
    check("barriers_of_latent_attention", "attention_latent.hip", None, |device, tally| {
        conformance::latent::check(devices::loaders(device), Accuracy::GPU, tally)
    });
}

#[test]
fn barriers_of_sampling() {
    check("barriers_of_sampling", "sampling.hip", None, |device, tally| {
        conformance::selection::check(devices::loaders(device), tally)
    });
}

#[test]
fn barriers_of_states() {
    check("barriers_of_states", "states.hip", None, |device, tally| {
        conformance::states::check(devices::loaders(device), tally)
    });
}

#[test]
fn barriers_of_delta_chunks() {
    check("barriers_of_delta_chunks", "delta_chunks.hip", None, |device, tally| {
        conformance::states::check(devices::loaders(device), tally)
    });
}

#[test]
fn barriers_of_mamba2_chunks() {
    check("barriers_of_mamba2_chunks", "mamba2_chunks.hip", None, |device, tally| {
        conformance::states::check(devices::loaders(device), tally)
    });
}

#[test]
fn barriers_of_mamba() {
    check("barriers_of_mamba", "mamba.hip", None, |device, tally| {
        conformance::states::check(devices::loaders(device), tally)
    });
}

#[test]
fn barriers_of_mamba2() {
    check("barriers_of_mamba2", "mamba2.hip", None, |device, tally| {
        conformance::states::check(devices::loaders(device), tally)
    });
}
