//! The conformance cases on more simulated devices than at every commit.

use crate::backend::gpu::tests::conformance::{check, check_invariance, check_machine_code, check_order};
use crate::backend::gpu::tests::devices::{self, AMD_TARGETS, CPU_TARGETS, KIN_TARGETS, WEAK_TARGETS};

#[test]
fn cpu_wave32_down() {
    check(devices::open(CPU_TARGETS[1]));
}

#[test]
fn cpu_wave64_up() {
    check(devices::open(CPU_TARGETS[2]));
}

/// The other size of a wave, in the other order. At every commit it is the machine code of gfx942 that has this size.
#[test]
fn cpu_wave64_down() {
    check(devices::open(CPU_TARGETS[3]));
}

#[test]
fn invariance_on_the_cpu() {
    check_invariance(devices::open(CPU_TARGETS[1]));
}

#[test]
fn gfx90a() {
    check_machine_code(AMD_TARGETS[2]);
}

#[test]
fn gfx1030() {
    check_machine_code(AMD_TARGETS[3]);
}

#[test]
fn gfx1201() {
    check_machine_code(AMD_TARGETS[4]);
}

/// Products of bf16 in two halves, and accumulators in registers of their own.
#[test]
fn gfx908() {
    check_machine_code(KIN_TARGETS[0]);
}

#[test]
fn gfx950() {
    check_machine_code(KIN_TARGETS[1]);
}

#[test]
fn gfx1151() {
    check_machine_code(KIN_TARGETS[2]);
}

#[test]
fn order_of_memory_on_gfx90a() {
    check_order(WEAK_TARGETS[0]);
}

#[test]
fn order_of_memory_on_gfx942() {
    check_order(WEAK_TARGETS[1]);
}

#[test]
fn order_of_memory_on_gfx1100() {
    check_order(WEAK_TARGETS[2]);
}

#[test]
fn order_of_memory_on_gfx1201() {
    check_order(WEAK_TARGETS[3]);
}
