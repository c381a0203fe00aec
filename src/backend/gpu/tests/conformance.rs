//! The conformance cases of all backends, on every device.

use super::devices::{self, AMD_TARGETS, CPU_TARGETS};
use crate::backend::conformance::{self, Accuracy};
use crate::backend::gpu::{Device, KernelType, Kernels, Unit};
use crate::config::{GpuOptions, Platform};
use crate::quant::GgmlType;

pub(super) type Opened = (Device, GpuOptions);

/// Every op on every tensor type, odd shapes first, against f64, in memory that is poisoned and guarded; nothing stays
/// on the device.
pub(super) fn check(device: Option<Opened>) {
    let Some(device) = device else { return };
    // Units that have to be compiled are compiled here: several at once, and not by two tests.
    let kernels = Kernels::new(&device.0, &device.1).unwrap();
    kernels.prepare(&Unit::all(kernels.platform() == Platform::Nvidia)).unwrap();
    conformance::pass(|tally| conformance::check_all(|rows| devices::make_loader(&device, rows), Accuracy::GPU, tally));
    assert_eq!(device.0.allocated_bytes(), 0, "{}", device.0.label());
}

/// Checks AMD's machine code. Types without kernels of their own become F16 on the host, whatever the device: their
/// products would execute the code of F16 once more for each.
pub(super) fn check_machine_code(target: &str) {
    let Some(device) = devices::open(target) else { return };
    let types = |ty| KernelType::of(ty).is_some();
    let loader = |rows| devices::make_loader(&device, rows);
    conformance::pass(|tally| conformance::check_types(loader, Accuracy::GPU, types, tally));
    assert_eq!(device.0.allocated_bytes(), 0, "{}", device.0.label());
}

/// In batch-invariant mode results have the same bits whatever was computed with them.
pub(super) fn check_invariance(device: Option<Opened>) {
    let Some((device, options)) = device else { return };
    let device = (device, GpuOptions { batch_invariant: true, ..options });
    conformance::pass(|tally| conformance::check_invariance(|rows| devices::make_loader(&device, rows), tally));
}

/// G1, G5, G16, G19, G20, G21: contexts up to 4097 tokens, rows with nothing to attend to, 151,936 logits.
#[test]
fn cpu_wave32_up() {
    check(devices::open(CPU_TARGETS[0]));
}

/// G1, G5, G16, G18, G19, G20: what the compiler made of the kernels, every access checked.
#[test]
fn gfx1100() {
    check_machine_code(AMD_TARGETS[0]);
}

#[test]
fn gfx942() {
    check_machine_code(AMD_TARGETS[1]);
}

/// Checks ops in which blocks hand each other what they have stored, and only releases and acquires make that seen.
pub(super) fn check_order(target: &str) {
    let Some(device) = devices::open(target) else { return };
    let loader = |rows| devices::make_loader(&device, rows);
    conformance::pass(|tally| conformance::splits::check(loader, Accuracy::GPU, 2, tally));
    assert_eq!(device.0.allocated_bytes(), 0, "{}", device.0.label());
}

#[test]
fn real_device() {
    check(devices::open_real());
    check_invariance(devices::open_real());
    check_many_outputs(devices::open_real());
}

/// Gate and up of so many outputs that blocks of 64 rows fill the device once, where they take the activation too.
fn check_many_outputs(device: Option<Opened>) {
    let Some(device) = device else { return };
    let shape @ [rows, ..] = [40, 256, 8720];
    for (seed, ggml_type) in [GgmlType::Q4_K, GgmlType::Q8_0].into_iter().enumerate() {
        let loader = devices::loader(&device, rows);
        conformance::pass(|tally| conformance::gated::check_shape(loader, ggml_type, shape, seed as u64, tally));
    }
    assert_eq!(device.0.allocated_bytes(), 0, "{}", device.0.label());
}
