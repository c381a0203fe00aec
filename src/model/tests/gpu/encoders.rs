//! Embeddings and scores of encoders on the GPU backend, on the test devices.

use crate::config::{GpuOptions, KvCacheDtype};
use crate::gpu::Device;
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::testdata;
use crate::tests::MAX_TOKENS;
use crate::tests::encoders::rankers::check_rankers;
use crate::tests::encoders::{LONG, LONG_PROMPTS, check_encoder};

type Opened = (Device, GpuOptions);

const DTYPES: [KvCacheDtype; 2] = [KvCacheDtype::F16, KvCacheDtype::F32];

/// Embeddings of encoders, and scores. Activations are rounded to 16 bits; llama.cpp's rounding moves vectors by up to
/// 3.1e-3.
pub(in crate::tests) fn check_vectors(device: Option<Opened>, names: &[&str], dtypes: &[KvCacheDtype]) {
    let Some(device) = device else { return };
    for (name, &dtype) in names.iter().flat_map(|name| dtypes.iter().map(move |dtype| (name, dtype))) {
        check_encoder(devices::loader(&device, MAX_TOKENS), name, dtype, (5e-3, false), MAX_TOKENS);
    }
    check_rankers(|| devices::loader(&device, MAX_TOKENS), KvCacheDtype::F32, 5e-3, false);
    assert_eq!(device.0.allocated_bytes(), 0);
}

/// Prompts of several tiles of rows and of keys.
fn check_long_vectors(device: Option<Opened>) {
    let Some(device) = device else { return };
    for dtype in DTYPES {
        check_encoder(devices::loader(&device, LONG), LONG_PROMPTS, dtype, (5e-3, false), LONG);
    }
}

/// In batch-invariant mode, prompts of encoders are bitwise equal alone and together.
#[test]
fn batch_invariant_vectors_are_exact() {
    let Some((device, options)) = devices::open(CPU_TARGETS[1]) else { return };
    let device = (device, GpuOptions { batch_invariant: true, ..options });
    for name in testdata::ENCODERS {
        check_encoder(devices::loader(&device, MAX_TOKENS), name, KvCacheDtype::F16, (5e-3, true), MAX_TOKENS);
    }
    check_encoder(devices::loader(&device, LONG), LONG_PROMPTS, KvCacheDtype::F16, (5e-3, true), LONG);
}

#[test]
fn golden_vectors_on_the_cpu() {
    check_vectors(devices::open(CPU_TARGETS[0]), &testdata::ENCODERS, &DTYPES[..1]);
    check_long_vectors(devices::open(CPU_TARGETS[0]));
}

#[test]
fn golden_vectors_gfx1100() {
    check_vectors(devices::open("gfx1100"), &["bert", "gemma_embedding", "modern_bert", "t5encoder"], &DTYPES[..1]);
}

#[test]
fn golden_vectors_on_this_machines_gpu() {
    check_vectors(devices::open_real(), &testdata::ENCODERS, &DTYPES);
    check_long_vectors(devices::open_real());
}
