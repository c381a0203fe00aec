//! Models with waves of 64 lanes, on gfx942, and all families in fp8. They take minutes, so `make test` leaves this
//! module out. `make test-kernels` runs it.

use super::families::{cpu_experts, joint_experts};
use super::gpu::{captures, encoders, feed, fp8};
use super::placement::Layout;
use super::{gpu, launches, library, placement, rows};
use crate::config::KvCacheDtype;
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::gpu::testing::library::alone;
use crate::testdata;

#[test]
fn golden_logits_cpu_wave32() {
    gpu::check_all(devices::open(CPU_TARGETS[0]), gpu::TOGETHER);
}

#[test]
fn golden_logits_cpu_wave64() {
    gpu::check_all(devices::open(CPU_TARGETS[3]), gpu::TOGETHER);
}

#[test]
fn steps_are_captured_at_the_load_alone() {
    captures::check_captures(&["arch/gemma3n", "arch/jamba", "arch/lfm2", "arch/qwen35"]);
}

#[test]
fn kernels_of_a_step_are_counted() {
    launches::check_launches(&launches::MORE_CARDS);
}

#[test]
fn logits_do_not_depend_on_the_place_of_weights() {
    placement::check_all_families();
    placement::check_caches(&["mixtral", "deepseek2", "qwen35moe"]);
}

#[test]
fn golden_logits_with_experts_on_the_cpu() {
    let check = |name: &String| cpu_experts::check_families("cpu-wave32:up@experts", &[(name, &placement::LAYOUTS)]);
    placement::check_each(&placement::families(placement::has_experts), check);
    cpu_experts::check_families("gfx1100", &[("qwen3moe", &[Layout::ExpertsOnHost]), ("gpt_oss", &[Layout::Half])]);
}

#[test]
fn golden_logits_with_experts_on_both() {
    let check = |name: &String, graphs, layouts| {
        joint_experts::check_families("cpu-wave32:up@joint", &[(name, graphs, layouts)]);
    };
    let mixtures = placement::families(placement::has_experts);
    placement::check_each(&mixtures, |name| check(name, true, &placement::LAYOUTS));
    placement::check_each(&joint_experts::FAMILIES.map(str::to_owned), |name| check(name, false, &placement::LAYOUTS));
    joint_experts::check_failed_calls(&[0, 1, 2, 3, 5, 8, 13, 21, 34, 55]);
}

#[test]
fn failing_calls_leave_nothing_behind() {
    gpu::check_failing_calls(&[0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144]);
    placement::check_failed_copies_of_experts(&[0, 1, 2, 3, 5, 8, 13]);
    placement::check_failed_copies_of_weights(1);
}

#[test]
fn golden_logits_gfx942() {
    gpu::check_amd("gfx942");
}

#[test]
fn golden_vectors() {
    for target in [CPU_TARGETS[0], CPU_TARGETS[3], "gfx1100", "gfx942"] {
        encoders::check_vectors(devices::open(target), &testdata::ENCODERS, &[KvCacheDtype::F16, KvCacheDtype::F32]);
    }
}

#[test]
fn self_test_on_real_weights() {
    gpu::check_self_test(CPU_TARGETS[2]);
}

#[test]
fn steps_begin_with_tokens_that_the_device_chose() {
    for target in [CPU_TARGETS[0], CPU_TARGETS[3]] {
        feed::check_feed(devices::open(target), &feed::NAMES, &[1, 2, 5, 8]);
    }
    feed::check_feed(devices::open("gfx942"), &feed::NAMES[..1], &[3]);
}

/// F2: every family.
#[test]
fn every_row_finds_room_on_a_device() {
    rows::check_families(devices::open(CPU_TARGETS[0]), &testdata::architectures());
}

/// F3: every family in fp8.
#[test]
fn golden_logits_of_all_families_in_fp8() {
    let _alone = alone();
    let Some((device, options, _cache)) = library::open() else { return };
    let names = testdata::architectures();
    fp8::check((device, options), &names.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Together with the families of the commit tests, these cover all kinds.
#[test]
fn batch_invariant_mode_is_exact_in_more_families() {
    gpu::check_batch_invariance(&[
        "arch/gemma3",
        "arch/gemma3n",
        "arch/gemma4_e",
        "arch/jamba",
        "arch/lfm2moe",
        "arch/minimax_m2",
        "arch/nemotron_h",
        "arch/qwen3",
        "arch/qwen35moe",
        "arch/qwen3moe",
        "arch/qwen3next",
        "arch/starcoder2",
    ]);
}

#[test]
fn models_on_the_other_stand_in_devices() {
    for target in &CPU_TARGETS[1..] {
        gpu::steps_without_logits_store_all_keys_on(target);
        gpu::golden_drafts_on(target);
        gpu::golden_drafts_of_a_draft_model_on(target);
        gpu::experts_may_be_in_any_place_on(target);
    }
}
