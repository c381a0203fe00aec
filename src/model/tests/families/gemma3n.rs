//! Gemma 3n: contradictory files.

use super::gemma4::changed_file;
use crate::gguf::{Array, GgufFile, Value};
use crate::{ModelSpec, ModelTensors};

const GOLDEN: &str = "arch/gemma3n";

/// Each mistake in a file is an error that names the key or the tensor.
#[test]
fn contradictions_are_errors() {
    let f32s = |values: &[f32]| Value::Array(Array::F32(values.to_vec()));
    let cases = [
        ("gemma3n.altup.num_inputs", Value::U32(2), "is 2, expected 4"),
        ("gemma3n.altup.active_idx", Value::U32(1), "is 1, expected 0"),
        ("gemma3n.activation_sparsity_scale", f32s(&[1.0; 5]), "has 5 entries, expected one per layer (6)"),
        ("gemma3n.activation_sparsity_scale", f32s(&[f32::NAN; 6]), "holds NaN, expected finite numbers or -inf"),
        ("gemma3n.activation_sparsity_scale", Value::U32(2), "an array of"),
        ("gemma3n.attention.shared_kv_layers", Value::U32(4), "layer 2 has no layer of its kind before these"),
    ];
    for (key, value, problem) in cases {
        let file = changed_file(GOLDEN, key, Some(value), "");
        let error = ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), None).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(problem), "{key}: {error}");
    }
    let file = changed_file(GOLDEN, "", None, "blk.0.laurel_l.weight");
    let error = ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), None).unwrap_err().to_string();
    assert!(error.contains("blk.0.laurel_l.weight") && error.contains("missing"), "{error}");
    let tensors = [
        "altup_proj.weight",
        "altup_unembd_proj.weight",
        "blk.1.altup_correct_scale.weight",
        "blk.2.altup_predict_coef.weight",
        "blk.3.attn_v.weight",
        "blk.5.laurel_post_norm.weight",
    ];
    for name in tensors {
        let file = changed_file(GOLDEN, "", None, name);
        let gguf = GgufFile::open(&file.0).unwrap();
        let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
        let error = ModelTensors::collect(&gguf, &spec).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("missing"), "{error}");
    }
}
