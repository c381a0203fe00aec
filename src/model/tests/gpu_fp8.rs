//! Golden logits with products of 8-bit floats (`compute_dtype="fp8"`), which the vendor's matrix library multiplies.

use super::gpu::Opened;
use super::{MAX_TOKENS, load_on, tokens};
use crate::backend::Backend;
use crate::backend::gpu::tests::devices;
use crate::backend::gpu::tests::vendor::{alone, helper, open};
use crate::config::{ComputeDtype, GpuOptions, KvCacheDtype};
use crate::testdata;

/// Rounding to e4m3 makes errors of 2.6 % on average (of squares) in weights and in activations, so 3.7 % in a product,
/// and products follow each other some eight times in these models, whose weights are random. Rows or scales that are
/// mixed up would make errors as large as the logits are. All products of these models are the library's.
fn check((device, options): Opened) {
    let options = GpuOptions { compute_dtype: ComputeDtype::Fp8, ..options };
    for name in ["gemma3", "glm4", "granite", "llama3_ropescale"] {
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
        println!("{name} in fp8: {relative:.3} of the logits");
        assert!((0.05..0.2).contains(&relative), "{name} in fp8: {relative:.3} of the logits");
    }
    assert_eq!(device.allocated_bytes(), 0);
}

#[test]
fn golden_logits_in_fp8() {
    let _alone = alone();
    let Some((device, options, _cache)) = open(helper("")) else { return };
    check((device, options));
}

#[test]
fn golden_logits_in_fp8_on_this_machines_gpu() {
    let Some(device) = devices::open_real() else { return };
    match device.0.properties().arch.as_str() {
        "sm_90" | "gfx942" | "gfx950" => check(device),
        arch => println!("{arch}: nobody has seen 8-bit floats of its matrix library"),
    }
}
