//! Kernels compiled at run time and executed, on the CPU and in the simulator: correct and faulty ones.
#![allow(unsafe_code, clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

mod common;

use std::ffi::CStr;
use std::ptr::null_mut;

use common::{Gpu, Handle, ScaleArgs, compile, compile_sample, ok};
use hipsim::Status;
use hipsim::api::{inspect::*, memory::*, module::*, rtc::*, stream::*};

const DEVICES: &CStr = c"cpu-wave32,cpu-wave32:down,cpu-wave64,cpu-wave64:down,\
    gfx1100,gfx1100:down,gfx942,gfx942:down,gfx1201,gfx90a,gfx1030,\
    cpu-wave32,cpu-wave64,cpu-wave32,cpu-wave32,gfx1100,gfx1100,gfx1100";
const ROWS: usize = 3;
const COLS: usize = 777;

/// Runs `normalize` and returns the largest error, relative to the largest value.
fn normalize_error(gpu: &Gpu, options: &[&str]) -> f64 {
    let (module, function) = gpu.kernel(c"normalize", options);
    let stream = gpu.stream();
    let x: Vec<f32> = (0..ROWS * COLS).map(|i| ((i * 7919) % 2003) as f32 / 1000.0 - 1.0).collect();
    let (device_x, out) = (gpu.malloc(size_of_val(&*x)), gpu.malloc(2 * size_of_val(&*x)));
    ok(gpu.upload(device_x, &x, stream));
    let args = ScaleArgs { x: device_x, out, rows: ROWS as u32, cols: COLS as u32, scale: 2.0 };
    ok(gpu.launch(function, [ROWS as u32, 1, 1], 256, &args, stream));
    let found = gpu.read::<f32>(out, 2 * x.len(), stream);
    ok(hipStreamDestroy(stream));
    ok(hipFree(device_x));
    ok(hipFree(out));
    ok(hipModuleUnload(module));
    let expected = |k: usize, i: usize| {
        let row = &x[i / COLS * COLS..][..COLS];
        let total: f64 = row.iter().map(|value| f64::from(value.abs())).sum::<f64>() + k as f64;
        2.0 * f64::from(x[i]) / total
    };
    let pairs = found.iter().enumerate().map(|(i, value)| (f64::from(*value), expected(i / x.len(), i % x.len())));
    let largest =
        |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, |a, b| if b.is_nan() { b } else { f64::max(a, b) });
    let error = largest(&mut pairs.clone().map(|(found, expected)| (found - expected).abs()));
    error / largest(&mut pairs.map(|(_, expected)| expected.abs()))
}

#[test]
fn a_kernel_is_right_on_the_cpu_and_needs_its_barriers() {
    for (up, down) in [(0, 1), (2, 3)] {
        let gpus = [up, down].map(|index| Gpu::new(DEVICES, index));
        let errors = |options: &[&str]| {
            gpus.each_ref().map(|gpu| {
                ok(hipsim::api::device::hipSetDevice(gpu.0));
                normalize_error(gpu, options)
            })
        };
        for error in errors(&[]) {
            assert!(error < 1e-6, "{error}");
        }
        for dropped in ["-DGPU_DROP_BARRIER=0", "-DGPU_DROP_BARRIER=1"] {
            let errors = errors(&[dropped]);
            assert!(
                errors.iter().any(|error| error.is_nan() || *error > 1e-3),
                "{dropped} makes no difference: {errors:?}"
            );
        }
        for gpu in gpus {
            assert_eq!(gpu.live(), Live::default());
        }
    }
}

#[test]
fn a_kernel_is_right_in_the_simulator() {
    for index in 4..=10 {
        let gpu = Gpu::new(DEVICES, index);
        let error = normalize_error(&gpu, &[]);
        assert!(error < 1e-6, "{}: {error}", gpu.arch());
        assert_eq!(gpu.live(), Live::default());
    }
}

#[test]
fn a_module_tells_its_kernels_and_barriers() {
    for index in [11, 15] {
        let gpu = Gpu::new(DEVICES, index);
        let (module, function) = gpu.kernel(c"normalize", &[]);
        let attribute = |number| {
            let mut value = -1;
            ok(unsafe { hipFuncGetAttribute(&mut value, number, function) });
            value
        };
        assert_eq!(attribute(0), 256);
        assert_eq!(unsafe { hipModuleGetFunction(&mut null_mut(), module, c"absent".as_ptr()) }, Status::NOT_FOUND);
        let (mut count, mut present) = (0, 0);
        let barriers = unsafe { hipsim_barriers(module, &mut count, &mut present) };
        if index == 11 {
            assert_eq!((barriers, count, present), (Status::SUCCESS, 2, 0b11));
        } else {
            assert_eq!(attribute(1), 256 / 32 * 4);
            assert_eq!(barriers, Status::NOT_SUPPORTED);
        }
        let args = ScaleArgs::default();
        let launch = |grid, block| gpu.launch(function, grid, block, &args, null_mut());
        assert_eq!(launch([0, 1, 1], 256), Status::INVALID_VALUE);
        assert_eq!(launch([1, 1, 1], 0), Status::INVALID_VALUE);
        assert_eq!(launch([1, 1, 1], 257), Status::INVALID_VALUE);
        assert_eq!(launch([1, 1, 1], 1025), Status::INVALID_VALUE);
        assert_eq!(launch([1 << 31, 1, 1], 256), Status::INVALID_VALUE);
        assert_eq!(launch([1 << 24, 1, 1], 256), Status::INVALID_VALUE, "2^32 threads");
        ok(hipModuleUnload(module));
        assert_eq!(launch([1, 1, 1], 256), Status::INVALID_HANDLE);
    }
}

#[test]
fn arguments_can_be_one_buffer() {
    for index in [11, 15] {
        let gpu = Gpu::new(DEVICES, index);
        let (_, function) = gpu.kernel(c"increment", &[]);
        let a = gpu.malloc(4);
        ok(gpu.upload(a, &[1f32], null_mut()));
        let mut args = ScaleArgs { x: a, out: a, rows: 1, cols: 1, scale: 0.0 };
        let mut launch = |mut size: usize| unsafe {
            let number = std::ptr::without_provenance_mut;
            let mut extra: [Handle; 5] =
                [number(1), (&raw mut args).cast(), number(2), (&raw mut size).cast(), number(3)];
            hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, null_mut(), null_mut(), extra.as_mut_ptr())
        };
        assert_eq!(launch(8), Status::INVALID_VALUE, "shorter than the kernel's arguments");
        ok(launch(size_of::<ScaleArgs>()));
        assert_eq!(gpu.read::<f32>(a, 1, null_mut()), [2.0]);
    }
}

/// Returns the device's text after a kernel failed; the failure stays.
fn failure(gpu: &Gpu, name: &CStr, args: &ScaleArgs) -> String {
    let (_, function) = gpu.kernel(name, &[]);
    let stream = gpu.stream();
    ok(gpu.launch(function, [1, 1, 1], 64, args, stream));
    assert_eq!(hipStreamSynchronize(stream), Status::LAUNCH_FAILURE);
    assert_eq!(hipStreamSynchronize(stream), Status::LAUNCH_FAILURE);
    assert_eq!(unsafe { hipMalloc(&mut 0, 1) }, Status::LAUNCH_FAILURE);
    let text = gpu.fault();
    ok(hipsim_revive(gpu.0));
    text
}

#[cfg(target_arch = "x86_64")] // elsewhere a fault ends the process
#[test]
fn a_wrong_kernel_is_a_launch_failure_and_not_the_end() {
    let gpu = Gpu::new(DEVICES, 12);
    let out = gpu.malloc(4000);
    let args = ScaleArgs { x: out, out, rows: 1, cols: 64, scale: 1.0 };
    let text = failure(&gpu, c"diverge", &args);
    assert!(text.contains("divergent wave operation") && text.contains("thread 1 has returned"), "{text}");
    let text = failure(&gpu, c"increment", &ScaleArgs { out: 8, ..args });
    assert!(text.contains("memory access out of bounds at 0x8"), "{text}");
    let text = failure(&gpu, c"overflow", &args);
    assert!(text.contains("memory access out of bounds"), "{text}");
    let text = failure(&gpu, c"divide", &ScaleArgs { rows: 0, ..args });
    assert!(text.contains("division by zero"), "{text}");
    // If an allocation fills its last page, the next page is inaccessible. Otherwise the bytes after it are checked for
    // changes.
    let full = gpu.malloc(4096);
    let text = failure(&gpu, c"overrun", &ScaleArgs { out: full + 4000, cols: 2, ..args });
    assert!(text.contains(&format!("memory access out of bounds at {:#x}", full + 4096)), "{text}");
    let text = failure(&gpu, c"overrun", &ScaleArgs { out: out + 3800, cols: 2, ..args });
    assert!(text.contains("a write outside an allocation of 4000 bytes, at its offset 4000"), "{text}");
}

#[test]
fn the_simulator_names_an_access_out_of_bounds() {
    let gpu = Gpu::new(DEVICES, 17);
    let out = gpu.malloc(100);
    let text = failure(&gpu, c"overrun", &ScaleArgs { x: out, out, rows: 1, cols: 25, scale: 1.0 });
    assert!(text.contains("overrun") && text.contains("store"), "{text}");
    assert!(text.contains("at offset 100 of an allocation of 100 bytes"), "{text}");
}

#[test]
fn shared_memory_is_poisoned_for_every_block() {
    let gpu = Gpu::new(DEVICES, 13);
    let (_, function) = gpu.kernel(c"uninitialised", &[]);
    let out = gpu.malloc(512);
    let args = ScaleArgs { x: 0, out, rows: 1, cols: 64, scale: 1.0 };
    ok(gpu.launch(function, [2, 1, 1], 64, &args, null_mut()));
    assert_eq!(gpu.read::<u32>(out, 128, null_mut()), [0xcdcd_cdcd; 128]);
}

#[test]
fn the_compiler_speaks_up() {
    let log = compile(c"#include \"gpu.h\"\nKERNEL(64, f, int) { nonsense; }", "cpu-wave32", &[]).unwrap_err();
    assert!(log.contains("nonsense") && log.contains("sample.hip:2"), "{log}");
    let log = compile(c"#include \"gpu.h\"\nKERNEL(64, f, int) { nonsense; }", "gfx1100", &[]).unwrap_err();
    assert!(log.contains("nonsense"), "{log}");
    let log = compile(c"#include \"absent.h\"", "gfx942:sramecc+:xnack-", &[]).unwrap_err();
    assert!(log.contains("absent.h"), "{log}");
    let (mut major, mut minor) = (0, -1);
    assert_eq!(unsafe { hiprtcVersion(&mut major, &mut minor) }, RtcStatus::SUCCESS);
    // The minor version holds the FNV-1a hash of the CPU's header and of the options for the processor's instructions.
    let mut hashed = common::source("../../kernels/host/gpu_cpu.h").to_bytes().to_vec();
    #[cfg(target_arch = "x86_64")]
    for (has, option) in [(is_x86_feature_detected!("fma"), "-mfma"), (is_x86_feature_detected!("f16c"), "-mf16c")] {
        if has {
            hashed.extend(option.as_bytes());
        }
    }
    let hash = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let expected = (hashed.iter().fold(0x811c_9dc5, hash) >> 1).cast_signed();
    assert_eq!((major, minor), (9, expected));
}

#[test]
fn an_unknown_target_aborts_the_compiling_process() {
    // SAFETY: the child only compiles, which takes no lock, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _ = compile(c"", "gfx9999", &[]);
        // SAFETY: ends the child without what the parent's exit would run.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "{status}");
}

#[test]
fn code_for_another_device_is_refused() {
    let mut module = null_mut();
    let code = compile_sample("gfx11-generic", &[]).unwrap();
    Gpu::new(DEVICES, 16);
    ok(unsafe { hipModuleLoadData(&mut module, code.as_ptr().cast()) });
    Gpu::new(DEVICES, 8);
    assert_eq!(unsafe { hipModuleLoadData(&mut module, code.as_ptr().cast()) }, Status::NO_BINARY_FOR_GPU);
    let code = compile_sample("cpu-wave64", &[]).unwrap();
    assert_eq!(unsafe { hipModuleLoadData(&mut module, code.as_ptr().cast()) }, Status::NO_BINARY_FOR_GPU);
    Gpu::new(DEVICES, 14);
    assert_eq!(unsafe { hipModuleLoadData(&mut module, code.as_ptr().cast()) }, Status::NO_BINARY_FOR_GPU);
    assert_eq!(
        unsafe {
            hipModuleLoadData(
                &mut module,
                c"not an object, but long enough to be read as one, and more".as_ptr().cast(),
            )
        },
        Status::INVALID_IMAGE
    );
}
