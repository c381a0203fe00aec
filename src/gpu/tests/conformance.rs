//! The conformance cases of all backends, on every device.

use crate::config::GpuOptions;
use crate::conformance::{self, Accuracy, Extent};
use crate::quant::GgmlType;
use crate::testing::devices::{self, AMD_TARGET, CPU_TARGETS};
use crate::{Device, Kernels, Unit};

pub(super) type Opened = (Device, GpuOptions);

/// Every op runs on every tensor type, odd shapes first, and is compared with f64, in poisoned and guarded memory. No
/// device memory leaks.
pub(super) fn check(device: Option<Opened>) {
    let Some(device) = device else { return };
    // Units that need compilation are compiled here, several at once, so no two tests compile the same one.
    let kernels = Kernels::new(&device.0, &device.1).unwrap();
    kernels.prepare(&Unit::all()).unwrap();
    conformance::pass(Extent::Full, |tally| conformance::check_all(devices::loaders(&device), Accuracy::GPU, tally));
    assert_eq!(device.0.allocated_bytes(), 0, "{}", device.0.label());
}

/// Checks AMD's machine code.
pub(super) fn check_machine_code(target: &str, extent: Extent) {
    let Some(device) = devices::open(target) else { return };
    let loader = devices::loaders(&device);
    conformance::pass(extent, |tally| conformance::check_types(loader, Accuracy::GPU, |_| true, tally));
    assert_eq!(device.0.allocated_bytes(), 0, "{}", device.0.label());
}

/// Checks that in batch-invariant mode the bits of a result do not depend on its batch.
pub(super) fn check_invariance(device: Option<Opened>) {
    let Some((device, options)) = device else { return };
    let device = (device, GpuOptions { batch_invariant: true, ..options });
    conformance::pass(Extent::Full, |tally| conformance::check_invariance(devices::loaders(&device), tally));
}

/// Types of the CPU's targets at every commit: floats, a pair that has its own kernels, and types with scales of each
/// kind. Types differ only in how they are decoded, which the machine code of every type shows below.
const QUICK_TYPES: [GgmlType; 7] =
    [GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q8_0, GgmlType::MXFP4];

/// G1, G5, G16, G19, G20, G21: rows without visible keys, 151,936 logits. `make test-kernels` runs all types and
/// shapes, with contexts up to 4097 tokens.
#[test]
fn cpu_wave32_up() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    let loader = devices::loaders(&device);
    let types = |ty| QUICK_TYPES.contains(&ty);
    conformance::pass(Extent::Quick, |tally| conformance::check_types(loader, Accuracy::GPU, types, tally));
    assert_eq!(device.0.allocated_bytes(), 0);
}

/// The ops whose lanes exchange numbers, with the other wave size in the other order.
#[test]
fn cpu_wave64_down() {
    let Some(device) = devices::open(CPU_TARGETS[3]) else { return };
    let loader = devices::loaders(&device);
    conformance::pass(Extent::Quick, |tally| {
        conformance::elementwise::check(loader, tally)?;
        conformance::linear::check_type(loader, GgmlType::F16, tally)?;
        conformance::attention::check(loader, Accuracy::GPU, tally)?;
        conformance::states::check(loader, tally)?;
        conformance::streams::check(loader, tally)?;
        conformance::selection::check(loader, tally)
    });
    assert_eq!(device.0.allocated_bytes(), 0);
}

/// G1, G5, G16, G18, G19, G20: the compiled kernels run with every access checked; `make test-kernels` runs all shapes.
#[test]
fn gfx1100() {
    check_machine_code(AMD_TARGET, Extent::Quick);
}

/// Checks ops whose blocks read each other's stores, which only releases and acquires make visible.
pub(super) fn check_order(target: &str) {
    let Some(device) = devices::open(target) else { return };
    let loader = devices::loaders(&device);
    conformance::pass(Extent::Full, |tally| conformance::splits::check(loader, Accuracy::GPU, 2, tally));
    assert_eq!(device.0.allocated_bytes(), 0, "{}", device.0.label());
}

#[test]
fn real_device() {
    check(devices::open_real());
    check_invariance(devices::open_real());
    check_many_outputs(devices::open_real());
}

/// Checks gate and up with so many outputs that blocks of 64 rows fill the device once, which fuses the activation.
fn check_many_outputs(device: Option<Opened>) {
    let Some(device) = device else { return };
    let shape @ [rows, ..] = [40, 256, 8720];
    for (seed, ggml_type) in [GgmlType::Q4_K, GgmlType::Q8_0].into_iter().enumerate() {
        let loader = devices::loader(&device, rows);
        conformance::pass(Extent::Full, |tally| {
            conformance::gated::check_shape(loader, ggml_type, shape, seed as u64, tally)
        });
    }
    assert_eq!(device.0.allocated_bytes(), 0, "{}", device.0.label());
}
