//! Experts without gates. The feed-forwards of the golden model of `nemotron_h` become experts and a shared expert with
//! the same weighted sum. The logits must not change.

use crate::ModelSpec;
use crate::backend::Loader;
use crate::config::KvCacheDtype;
use crate::cpu::CpuLoader;
use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{GgufFile, Value};
use crate::quant::GgmlType;
use crate::testdata::{self, TempFile};
use crate::tests::layers::in_float;
use crate::tests::{MAX_TOKENS, Model, distance, max_abs, tokens, try_load_file};

const GOLDEN: &str = "arch/nemotron_h";
/// Two of four experts serve each row, and both are the first half of the feed-forward. Only a bias keeps the other two
/// from being selected, and they are zero.
const NUM: usize = 4;
const BIASES: [f32; NUM] = [0.0, 1.0, 0.0, 1.0];

/// Returns the golden model in F32 with experts, and with `more` keys.
fn file_of_experts(more: &[(&str, Value)]) -> TempFile {
    let file = in_float(&testdata::file(&format!("{GOLDEN}.gguf")), |name| name.contains(".ffn_"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let hidden = ModelSpec::from_gguf(&gguf, None).unwrap().hidden_size;
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter() {
        let renamed = key.strip_prefix("nemotron_h.").map(|key| format!("nemotron_h_moe.{key}"));
        let name = Value::String("nemotron_h_moe".to_owned());
        let value = if key == "general.architecture" { &name } else { value };
        writer = writer.key(&renamed.unwrap_or_else(|| key.to_owned()), value);
    }
    let half = 64;
    let keys = [
        ("expert_count", Value::U32(NUM as u32)),
        ("expert_used_count", Value::U32(2)),
        ("expert_feed_forward_length", Value::U32(half as u32)),
        ("expert_shared_feed_forward_length", Value::U32(half as u32)),
        ("expert_weights_norm", Value::Bool(false)),
        // Each weight is the sigmoid of 0, so their sum is one before scaling. The experts' halves are scaled in the
        // same way.
        ("expert_weights_scale", Value::F32(2.0)),
    ];
    for (key, value) in keys.iter().chain(more) {
        writer = writer.key(&format!("nemotron_h_moe.{key}"), value);
    }
    let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    for info in gguf.tensors() {
        let view = gguf.view(info);
        let Some((layer, name)) = info.name.split_once(".ffn_") else {
            writer = writer.tensor(Tensor::new(&info.name, &info.shape, view.ggml_type, view.data));
            continue;
        };
        let data: Vec<f32> = view.data.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
        assert_eq!(data.len(), 2 * half * hidden);
        let is_down = name == "down.weight";
        let of_half = |second: bool| -> Vec<f32> {
            let first = if second { half } else { 0 };
            match is_down {
                true => data.chunks(2 * half).flat_map(|row| &row[first..first + half]).copied().collect(),
                false => data[first * hidden..(first + half) * hidden].to_vec(),
            }
        };
        let factor = if is_down { 0.5 } else { 1.0 };
        let of_expert = |&bias: &f32| of_half(false).into_iter().map(move |x| factor * bias * x);
        let experts: Vec<f32> = BIASES.iter().flat_map(of_expert).collect();
        let [inputs, outputs] = if is_down { [half, hidden] } else { [hidden, half] }.map(|n| n as u64);
        let name = format!("{layer}.ffn_{}", name.trim_end_matches(".weight"));
        let tensor =
            |name: &str, shape: &[u64], values: &[f32]| Tensor::new(name, shape, GgmlType::F32, &floats(values));
        writer = writer.tensor(tensor(&format!("{name}_exps.weight"), &[inputs, outputs, NUM as u64], &experts));
        writer = writer.tensor(tensor(&format!("{name}_shexp.weight"), &[inputs, outputs], &of_half(true)));
        if is_down {
            let router = vec![0.0; NUM * hidden];
            writer = writer
                .tensor(tensor(&format!("{layer}.ffn_gate_inp.weight"), &[hidden as u64, NUM as u64], &router))
                .tensor(tensor(&format!("{layer}.exp_probs_b.bias"), &[NUM as u64], &BIASES));
        }
    }
    testdata::temp_file("nemotron.gguf", &writer.bytes())
}

/// Computes a whole prompt, and a single token. Each must be within `bound` of the golden logits, relative to the
/// largest.
pub(in crate::tests) fn check_experts_without_gates<L: Loader>(loader: L, dtype: KvCacheDtype, bound: f32) {
    let z = testdata::npz(GOLDEN);
    let (tokens, expected) = (tokens(&z), z.f32("logits"));
    let mut model: Model<L::Backend> = try_load_file(loader, &file_of_experts(&[]), dtype).unwrap();
    let vocab = expected.len() / tokens.len();
    let near = |what: &str, got: &[f32], expected: &[f32]| {
        let relative = distance(got, expected).0 / max_abs(expected);
        println!("{what}: {relative:.2e} of the largest logit");
        assert!(relative < bound, "{what}: {relative:.2e} of the largest logit");
    };
    near("in one piece", &model.logits(&tokens, 0), &expected);
    model.logits(&tokens[..20], 0);
    near("a single token", &model.logits(&tokens[..21], 20), &expected[20 * vocab..][..vocab]);
}

#[test]
fn experts_without_gates_sum_up_to_the_feed_forward() {
    check_experts_without_gates(CpuLoader::new(2, MAX_TOKENS).unwrap(), KvCacheDtype::F32, 1e-3);
}

/// Files with features that this version does not compute are errors that name the key.
#[test]
fn experts_of_another_size_are_refused() {
    let file = file_of_experts(&[("moe_latent_size", Value::U32(32))]);
    let error = ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), None).unwrap_err().to_string();
    assert!(error.contains("nemotron_h_moe.moe_latent_size") && error.contains("is 32"), "{error}");
}
