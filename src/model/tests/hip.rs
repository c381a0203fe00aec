//! Golden logits through the HIP backend, on the devices of its tests.

use super::{MAX_TOKENS, Model, load_on, max_abs, tokens};
use crate::backend::hip::HipBackend;
use crate::backend::hip::tests::devices::{self, CPU_TARGETS};
use crate::config::{HipOptions, KvCacheDtype};
use crate::testdata;

type Opened = (crate::backend::hip::Device, HipOptions);

fn load(device: &Opened, name: &str) -> Model<HipBackend> {
    load_on(devices::loader(device, MAX_TOKENS), &format!("{name}.gguf"), KvCacheDtype::F16)
}

/// One prompt of each length in a step of its own, then token by token together: recorded steps of 1 to 4 rows.
fn decode_together(model: &mut Model<HipBackend>, tokens: &[u32], lengths: &[usize]) -> Vec<Vec<f32>> {
    let prompts: Vec<_> = lengths.iter().map(|&length| (&tokens[..length], 0)).collect();
    model.step(&prompts);
    (1..=2)
        .map(|new| {
            let seqs: Vec<_> = lengths.iter().map(|&length| (&tokens[..length + new], length + new - 1)).collect();
            model.step(&seqs)
        })
        .collect()
}

fn check_model(device: &Opened, name: &str, expected_key: &str, bounds: impl Fn(&[f32], &[f32])) {
    let z = testdata::npz(name);
    let (tokens, expected) = (tokens(&z), z.f32(expected_key));
    let mut model = load(device, name);
    let whole = model.logits(&tokens, 0);
    bounds(&whole, &expected);
    let vocab = whole.len() / tokens.len();
    for lengths in [&[20][..], &[3, 40, 17], &[1, 2, 30, 16]] {
        for (step, got) in decode_together(&mut model, &tokens, lengths).iter().enumerate() {
            for (row, length) in got.chunks(vocab).zip(lengths) {
                bounds(row, &expected[(length + step) * vocab..][..vocab]);
            }
        }
    }
    drop(model);
    assert_eq!(device.0.allocated_bytes(), 0);
}

fn check_architecture(device: &Opened, name: &str) {
    check_model(device, &format!("arch/{name}"), "logits", |got, expected| {
        let error = got.iter().zip(expected).fold(0.0f32, |m, (g, e)| m.max((g - e).abs()));
        let relative = error / max_abs(expected);
        println!("{name}: relative {relative:.2e}");
        assert!(relative < 3e-3, "{name}: {relative:.2e} of the largest logit");
    });
}

fn check_quantised(device: &Opened, name: &str) {
    check_model(device, &format!("quant_models/{name}"), "logits_float", |got, expected| {
        let errors: Vec<f32> = got.iter().zip(expected).map(|(g, e)| (g - e).abs()).collect();
        let mean = errors.iter().sum::<f32>() / errors.len() as f32;
        println!("{name}: max {:.3}, mean {mean:.3}", max_abs(&errors));
        assert!(max_abs(&errors) < 0.42 && mean < 0.06, "{name}: max {}, mean {mean}", max_abs(&errors));
    });
}

fn check_all(device: Option<Opened>) {
    let Some(device) = device else { return };
    for name in ["llama3_ropescale", "llama_tied", "mistral", "qwen2", "qwen3"] {
        check_architecture(&device, name);
    }
    for name in ["Q4_0", "Q5_1", "Q3_K_M", "Q4_K_M", "Q6_K", "IQ4_XS"] {
        check_quantised(&device, name);
    }
}

#[test]
fn golden_logits_cpu_wave32() {
    check_all(devices::open(CPU_TARGETS[0]));
}

#[test]
fn golden_logits_cpu_wave64() {
    check_all(devices::open(CPU_TARGETS[3]));
}

#[test]
fn golden_logits_on_this_machines_gpu() {
    check_all(devices::open_real());
}
