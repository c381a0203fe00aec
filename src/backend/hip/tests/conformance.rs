//! The conformance cases of all backends, on every device.

use super::devices::{self, AMD_TARGETS, CPU_TARGETS};
use crate::backend::conformance::{self, Accuracy};
use crate::backend::hip::Device;
use crate::config::HipOptions;

type Opened = (Device, HipOptions);

/// Every op on every tensor type, odd shapes first, against f64, in memory that is poisoned and guarded; nothing stays on
/// the device.
fn check(device: Option<Opened>) {
    let Some(device) = device else { return };
    conformance::check_all(|rows| devices::loader(&device, rows), Accuracy::GPU);
    assert_eq!(device.0.allocated_bytes(), 0, "{}", device.0.label());
}

/// In batch-invariant mode results have the same bits whatever was computed with them.
fn check_invariance(device: Option<Opened>) {
    let Some((device, options)) = device else { return };
    let device = (device, HipOptions { batch_invariant: true, ..options });
    conformance::check_invariance(|rows| devices::loader(&device, rows));
}

/// G1, G5, G16, G19, G20, G21: contexts up to 4097 tokens, rows with nothing to attend to, 151,936 logits.
#[test]
fn cpu_wave32_up() {
    check(devices::open(CPU_TARGETS[0]));
}

#[test]
fn cpu_wave32_down() {
    check(devices::open(CPU_TARGETS[1]));
}

#[test]
fn cpu_wave64_up() {
    check(devices::open(CPU_TARGETS[2]));
}

/// G1, G5, G16, G19, G20, G21: the other size of a wave, in the other order.
#[test]
fn cpu_wave64_down() {
    check(devices::open(CPU_TARGETS[3]));
}

#[test]
fn invariance_on_the_cpu() {
    check_invariance(devices::open(CPU_TARGETS[1]));
}

/// G1, G5, G16, G18, G19, G20: what the compiler made of the kernels, every access checked.
#[test]
fn gfx1100() {
    check(devices::open(AMD_TARGETS[0]));
}

#[test]
fn gfx942() {
    check(devices::open(AMD_TARGETS[1]));
}

#[test]
fn gfx90a() {
    check(devices::open(AMD_TARGETS[2]));
}

#[test]
fn gfx1030() {
    check(devices::open(AMD_TARGETS[3]));
}

#[test]
fn gfx1201() {
    check(devices::open(AMD_TARGETS[4]));
}

#[test]
fn real_device() {
    check(devices::open_real());
    check_invariance(devices::open_real());
}
