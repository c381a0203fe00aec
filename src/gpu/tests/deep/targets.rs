//! The conformance cases on more simulated devices than at every commit.

use crate::MatrixUnit;
use crate::conformance::Extent;
use crate::report::measure::tests::check_reads;
use crate::testing::devices::{self, AMD_TARGET, CPU_TARGETS, DEEP_TARGETS, WEAK_TARGETS};
use crate::tests::captured::{check_old_scalar_cache, check_repetitions};
use crate::tests::conformance::{check, check_invariance, check_machine_code, check_order};
use crate::tests::fp8;
use crate::tests::report::check_kernels;

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

#[test]
fn cpu_wave64_down() {
    check(devices::open(CPU_TARGETS[3]));
}

#[test]
fn invariance_on_the_cpu() {
    check_invariance(devices::open(CPU_TARGETS[1]));
}

#[test]
fn gfx1100() {
    check_machine_code(AMD_TARGET, Extent::Full);
}

#[test]
fn gfx90a() {
    check_machine_code(DEEP_TARGETS[0], Extent::Full);
}

#[test]
fn gfx1030() {
    check_machine_code(DEEP_TARGETS[1], Extent::Full);
}

#[test]
fn gfx1201() {
    check_machine_code(DEEP_TARGETS[2], Extent::Full);
}

/// Products of bf16 in two halves, and accumulators in separate registers.
#[test]
fn gfx908() {
    check_machine_code(DEEP_TARGETS[3], Extent::Full);
}

#[test]
fn gfx950() {
    check_machine_code(DEEP_TARGETS[4], Extent::Full);
}

#[test]
fn gfx1151() {
    check_machine_code(DEEP_TARGETS[5], Extent::Full);
}

#[test]
fn gfx942() {
    check_machine_code(DEEP_TARGETS[6], Extent::Full);
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

#[test]
fn repeated_steps_read_their_own_numbers_on_gfx90a() {
    check_repetitions(WEAK_TARGETS[0]);
}

#[test]
fn repeated_steps_read_their_own_numbers_on_gfx1201() {
    check_repetitions(WEAK_TARGETS[3]);
}

#[test]
fn repeated_steps_read_their_own_numbers_on_gfx942() {
    check_repetitions(WEAK_TARGETS[1]);
}

#[test]
fn graphs_with_an_old_scalar_cache_are_not_used() {
    check_old_scalar_cache(WEAK_TARGETS[1]);
}

#[test]
fn rows_in_8_bits_on_gfx942() {
    fp8::check(DEEP_TARGETS[6]);
    fp8::check_norms_and_activations(DEEP_TARGETS[6], &[[300, 128], [4352, 48]]);
    fp8::check_gated_rows(DEEP_TARGETS[6]);
}

#[test]
fn every_piece_is_read_once() {
    DEEP_TARGETS.into_iter().for_each(check_reads);
}

#[test]
fn every_type_and_op_has_its_kernels() {
    check_kernels(&[
        (DEEP_TARGETS[0], MatrixUnit::Mfma, None),
        (DEEP_TARGETS[1], MatrixUnit::Unused, Some("gfx10-3-generic")),
        (DEEP_TARGETS[2], MatrixUnit::Wmma, Some("gfx12-generic")),
        (DEEP_TARGETS[6], MatrixUnit::Mfma, None),
    ]);
}
