//! The conformance cases of all backends, on every device.

use super::devices::{self, CPU_TARGETS};
use crate::backend::conformance::{self, Accuracy};
use crate::backend::hip::Device;
use crate::config::HipOptions;

fn check(device: Option<(Device, HipOptions)>) {
    let Some(device) = device else { return };
    conformance::check_all(|rows| devices::loader(&device, rows), Accuracy::GPU);
    let (open, options) = device;
    assert_eq!(open.allocated_bytes(), 0, "{}", open.label());
    let exact = (open, HipOptions { batch_invariant: true, ..options });
    conformance::check_invariance(|rows| devices::loader(&exact, rows));
}

#[test]
fn cpu_wave32() {
    check(devices::open(CPU_TARGETS[0]));
    check(devices::open(CPU_TARGETS[1]));
}

#[test]
fn cpu_wave64() {
    check(devices::open(CPU_TARGETS[2]));
    check(devices::open(CPU_TARGETS[3]));
}

#[test]
fn real_device() {
    check(devices::open_real());
}
