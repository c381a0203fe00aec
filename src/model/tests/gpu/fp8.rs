//! Golden logits with fp8 products (`compute_dtype="fp8"`), computed by the vendor's matrix library.

use super::Opened;
use crate::backend::Backend;
use crate::config::{ComputeDtype, GpuOptions, KvCacheDtype};
use crate::gpu::testing::devices;
use crate::gpu::testing::library::alone;
use crate::testdata;
use crate::tests::library;
use crate::tests::{MAX_TOKENS, load_on, tokens};

/// Dense models, and one of each kind with additional rows: gated ones of a shared expert, branches, latents, and
/// states of two kinds.
const NAMES: [&str; 10] = [
    "gemma3",
    "qwen35moe",
    "gemma4_moe",
    "deepseek2",
    "nemotron_h",
    "glm4",
    "granite",
    "llama3_ropescale",
    "qwen3next",
    "lfm2",
];

/// Rounding to e4m3 has a mean error of 2.6 % (root mean square) in weights and in activations, so 3.7 % in a product.
/// About eight products follow each other in these models with random weights, so dense models are off by up to a
/// fifth.
///
/// Routers then sometimes select other experts. Scores without a scale, like those of Gemma 4, pass on the errors of
/// queries and keys unscaled. Mixed-up rows or scales would give errors as large as the logits.
fn bound(name: &str) -> f64 {
    match name {
        "gemma3" | "glm4" | "granite" | "llama3_ropescale" => 0.2,
        "gemma4_moe" | "gpt_oss" => 0.8,
        _ => 0.5,
    }
}

/// Returns the least error. It shows that fp8 took part in models whose shapes the vendor's library multiplies in fp8.
fn least(name: &str) -> f64 {
    if NAMES.contains(&name) { 1e-2 } else { 0.0 }
}

pub(in crate::tests) fn check((device, options): Opened, names: &[&str]) {
    let options = GpuOptions { compute_dtype: ComputeDtype::Fp8, ..options };
    let mut wrong = Vec::new();
    for &name in names {
        let z = testdata::npz(&format!("arch/{name}"));
        let (tokens, expected) = (tokens(&z), z.f32("logits"));
        let loader = devices::loader(&(device.clone(), options.clone()), MAX_TOKENS);
        let mut model = load_on(loader, &format!("arch/{name}.gguf"), KvCacheDtype::F16);
        let got = model.logits(&tokens, 0);
        let described = model.backend.describe();
        assert!(described.contains(" in fp8"), "{described}");
        let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
        let errors = squares(&mut got.iter().zip(&expected).map(|(got, expected)| got - expected));
        let relative = (errors / squares(&mut expected.iter().copied())).sqrt();
        println!("{name} in fp8: {relative:.4} of the logits");
        if !(least(name)..bound(name)).contains(&relative) {
            wrong.push(format!("{name} in fp8: {relative:.4} of the logits"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(device.allocated_bytes(), 0);
}

/// F3: every product that can take fp8 inputs takes them unchanged. `make test-kernels` checks every family.
#[test]
fn golden_logits_in_fp8() {
    let _alone = alone();
    let Some((device, options, _cache)) = library::open() else { return };
    check((device, options), &NAMES[..5]);
}

#[test]
fn golden_logits_in_fp8_on_this_machines_gpu() {
    let Some(device) = devices::open_real() else { return };
    match device.0.properties().arch.as_str() {
        "sm_90" | "gfx942" | "gfx950" => {
            let names = testdata::architectures();
            check(device, &names.iter().map(String::as_str).collect::<Vec<_>>());
        }
        arch => println!("{arch}: nobody has seen 8-bit floats of its matrix library"),
    }
}
