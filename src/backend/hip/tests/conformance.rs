//! The conformance cases of all backends, on every device.

use super::devices::{self, AMD_TARGETS, CPU_TARGETS};
use crate::backend::conformance::{self, Accuracy};
use crate::backend::hip::Device;
use crate::config::HipOptions;

/// All cases, in memory that is poisoned and guarded; nothing stays allocated.
fn check(device: Option<(Device, HipOptions)>) {
    let Some(device) = device else { return };
    conformance::check_all(|rows| devices::loader(&device, rows), Accuracy::GPU);
    let (open, options) = device;
    assert_eq!(open.allocated_bytes(), 0, "{}", open.label());
    let exact = (open, HipOptions { batch_invariant: true, ..options });
    conformance::check_invariance(|rows| devices::loader(&exact, rows));
}

/// G1, G5, G16, G19, G20, G21: every kernel at odd sizes against f64, contexts up to 4097 tokens, fully masked rows, a
/// vocabulary of 151,936.
#[test]
fn cpu_wave32() {
    check(devices::open(CPU_TARGETS[0]));
    check(devices::open(CPU_TARGETS[1]));
}

/// G1, G5, G16, G19, G20, G21: as with 32 lanes.
#[test]
fn cpu_wave64() {
    check(devices::open(CPU_TARGETS[2]));
    check(devices::open(CPU_TARGETS[3]));
}

/// G1, G5, G19: what the compiler made of the kernels, every access checked.
#[test]
fn machine_code_gfx1100() {
    check(devices::open(AMD_TARGETS[0]));
}

#[test]
fn machine_code_gfx942() {
    check(devices::open(AMD_TARGETS[1]));
}

#[test]
fn machine_code_gfx90a() {
    check(devices::open(AMD_TARGETS[2]));
}

#[test]
fn machine_code_gfx1030() {
    check(devices::open(AMD_TARGETS[3]));
}

#[test]
fn machine_code_gfx1201() {
    check(devices::open(AMD_TARGETS[4]));
}

#[test]
fn real_device() {
    check(devices::open_real());
}
