//! Engines with models of every family. The tests take minutes, so `make test` skips this module and `make
//! test-kernels` runs it.

use super::drafts::{draft_model, drafter};
use super::models::crossing::{ALL, check, check_on_cpu};
use super::models::{images, offload};
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::testdata;

/// F2: every family with each setting, on devices with 32 and 64 lanes per wave.
#[test]
fn every_family_in_steps_of_every_kind() {
    for (target, settings) in [(CPU_TARGETS[0], &ALL[..]), (CPU_TARGETS[3], &ALL[..2])] {
        let Some(device) = devices::open(target) else { return };
        for name in testdata::architectures() {
            check(&device, &name, settings);
        }
    }
}

/// F2: AMD machine code for both wave sizes, on the families that read rows in the most ways.
#[test]
fn families_in_amd_code_in_steps_of_every_kind() {
    for target in ["gfx1100", "gfx942"] {
        let Some(device) = devices::open(target) else { return };
        check(&device, "gemma3n", &ALL[..1]);
        check(&device, "gemma4_e", &ALL[..1]);
        check(&device, "qwen35moe", &ALL[..1]);
    }
}

/// F2: mixtures whose experts the CPU computes, with each setting.
#[test]
fn experts_of_the_cpu_in_steps_of_every_kind() {
    for target in [CPU_TARGETS[0], "gfx1100"] {
        for name in ["qwen3moe", "gpt_oss", "qwen35moe"] {
            let Some(device) = devices::open(target) else { return };
            check_on_cpu(device, name, if target == "gfx1100" { &ALL[..1] } else { &ALL });
        }
    }
}

#[test]
fn texts_about_images() {
    images::check_on(devices::open(CPU_TARGETS[0]), images::NAMES.len());
}

#[test]
fn draft_tokens_on_the_other_stand_in_devices() {
    for target in &CPU_TARGETS[1..] {
        draft_model::a_gpu_says_the_same_with_a_draft_model_on(target);
        drafter::a_gpu_says_the_same_with_drafts_on(target);
    }
}

/// K2: requests through the lower tiers of the KV cache, on devices of each kind and with recurrent states.
#[test]
fn a_thousand_requests_through_both_tiers() {
    offload::a_thousand_requests_with_all_settings();
}

/// Every family on the CPU continues exactly from host memory and from files.
#[test]
fn every_family_continues_from_lower_tiers() {
    testdata::architectures().iter().for_each(|name| offload::check_model(name, None));
}

/// Families with windows, latent rows and states continue exactly on a simulated device as well.
#[test]
fn a_gpu_continues_from_lower_tiers() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    ["gemma3", "deepseek2", "qwen35", "granitehybrid"]
        .iter()
        .for_each(|name| offload::check_model(name, Some(&device)));
}
