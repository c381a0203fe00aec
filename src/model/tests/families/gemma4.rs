//! Gemma 4: layers that share keys and values, and contradictory files.

use crate::backend::{KvLayerSpec, Loader};
use crate::batch::GroupKind;
use crate::config::KvCacheDtype;
use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{Array, GgufFile, Value};
use crate::selection::Needs;
use crate::testdata::{self, TempFile};
use crate::tests::{BLOCK, CpuLoader, MAX_TOKENS, distance, load_on, tokens};
use crate::vision::Images;
use crate::{KvGroupSpec, ModelSpec, ModelTensors};

/// The last three of its six layers have no keys and values.
const GOLDEN: &str = "arch/gemma4_e";

fn changed(key: &str, value: Option<Value>, without: &str) -> TempFile {
    changed_file(GOLDEN, key, value, without)
}

/// Returns a golden file with one key changed, or without one tensor.
pub(super) fn changed_file(golden: &str, key: &str, value: Option<Value>, without: &str) -> TempFile {
    let file = testdata::file(&format!("{golden}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut writer = Writer::new();
    for (name, old) in gguf.metadata().iter() {
        writer = writer.key(name, value.as_ref().filter(|_| name == key).unwrap_or(old));
    }
    for info in gguf.tensors().iter().filter(|info| info.name != without) {
        let view = gguf.view(info);
        writer = writer.tensor(Tensor::new(&info.name, &info.shape, view.ggml_type, view.data));
    }
    testdata::temp_file("changed.gguf", &writer.bytes())
}

/// K10: shared keys and values are in the pool only once.
#[test]
fn layers_that_share_have_no_part_in_the_pool() {
    let file = testdata::file(&format!("{GOLDEN}.gguf"));
    let spec = ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), None).unwrap();
    let head_dims = |group: &KvGroupSpec| group.layers.iter().map(|layer| layer.head_dim).collect::<Vec<_>>();
    let groups: Vec<_> = spec.kv_groups.iter().map(|group| (group.kind, head_dims(group))).collect();
    assert_eq!(groups, [(GroupKind::Sliding { window: 16 }, vec![32; 2]), (GroupKind::Full, vec![64])]);
    let sizes: Vec<_> =
        spec.kv_layers(&[5, 7], BLOCK, KvCacheDtype::F16).iter().map(KvLayerSpec::block_bytes).collect();
    assert_eq!(sizes, [Some(2048), Some(2048), Some(4096)]);
}

/// Each mistake in a file is an error that names the key or the tensor.
#[test]
fn contradictions_are_errors() {
    let u32s = |values: &[u32]| Value::Array(Array::U32(values.to_vec()));
    let cases = [
        ("gemma4.attention.shared_kv_layers", Value::U32(6), "is 6, expected less than 6"),
        ("gemma4.attention.shared_kv_layers", Value::U32(4), "layer 2 has no layer of its kind before these"),
        ("gemma4.attention.sliding_window_pattern", Value::Array(Array::Bool(vec![true; 5])), "5 entries"),
        ("gemma4.attention.sliding_window_pattern", Value::U32(3), "an array of bools"),
        ("gemma4.attention.head_count_kv", u32s(&[1, 1, 1, 1, 2, 1]), "gives layer 4 2 heads, but layer 1"),
        ("gemma4.attention.sliding_window", Value::U32(0), "is missing or 0"),
        ("gemma4.rope.dimension_count_swa", Value::U32(33), "is 33, expected an even number"),
    ];
    for (key, value, problem) in cases {
        let file = changed(key, Some(value), "");
        let error = ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), None).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(problem), "{key}: {error}");
    }
    let file = changed("gemma4.attention.value_length_swa", Some(Value::U32(16)), "");
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
    let error = ModelTensors::collect(&gguf, &spec).unwrap_err().to_string();
    assert!(error.contains("blk.0.attn_v.weight"), "{error}");
    for name in ["per_layer_token_embd.weight", "blk.3.inp_gate.weight", "blk.4.post_norm.weight"] {
        let file = changed("", None, name);
        let gguf = GgufFile::open(&file.0).unwrap();
        let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
        let error = ModelTensors::collect(&gguf, &spec).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("missing"), "{error}");
    }
    // Without the key, per-layer inputs would silently be left out.
    let file = changed("gemma4.embedding_length_per_layer_input", Some(Value::U32(0)), "");
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
    let error = ModelTensors::collect(&gguf, &spec).unwrap_err().to_string();
    assert!(error.contains("is not a tensor of a gemma4 model"), "{error}");
}

/// A step without requested logits ends with the last layer that stores keys and values. The steps after it find all of
/// them.
pub(in crate::tests) fn check_steps_without_logits<L: Loader>(loader: impl Fn() -> L, bound: f32) {
    for name in [GOLDEN, "arch/gemma4_dense", "arch/gemma3n"] {
        let z = testdata::npz(name);
        let (tokens, expected) = (tokens(&z), z.f32("logits"));
        let vocab = expected.len() / tokens.len();
        let mut model = load_on(loader(), &format!("{name}.gguf"), KvCacheDtype::F32);
        for cut in [1, 17, 40] {
            let mut batch = model.batch(&[(&tokens[..cut], 0)]);
            batch.logits_indices.clear();
            model
                .decoder
                .launch(&mut model.backend, &batch, &Images::new(), Needs { logits: true, hidden: false })
                .unwrap();
            model.decoder.select(&mut model.backend, 0..0, &[]).unwrap();
            model.decoder.collect(&mut model.backend).unwrap();
            let (error, _) = distance(&model.logits(&tokens, cut), &expected[cut * vocab..]);
            assert!(error < bound, "{name}, {cut} tokens before: {error:.2e}");
        }
    }
}

#[test]
fn steps_without_logits_store_all_keys() {
    check_steps_without_logits(|| CpuLoader::new(2, MAX_TOKENS).unwrap(), 5e-3);
}
