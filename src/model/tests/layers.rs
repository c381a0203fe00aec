//! Models with uneven layers. The second layer of a golden model gets additional heads and feed-forward columns with
//! zero weights. Its shape then differs from the first layer's, and the logits must not change.

use super::{MAX_TOKENS, Model, distance, max_abs, tokens, try_load_file};
use crate::ModelSpec;
use crate::backend::Loader;
use crate::config::KvCacheDtype;
use crate::cpu::CpuLoader;
use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{Array, GgufFile, Value};
use crate::quant::{self, GgmlType};
use crate::testdata::{self, TempFile};

const GOLDEN: &str = "arch/llama3_ropescale";
/// Additional columns of the second layer's feed-forward.
const MORE_COLUMNS: usize = 128;

/// Returns the golden model with some keys changed, and with matrices padded. `pad` returns the `(rows, columns)` of
/// zeros to add to a matrix of F16.
fn changed(keys: &[(&str, Value)], pad: impl Fn(&str) -> (usize, usize)) -> TempFile {
    let file = testdata::file(&format!("{GOLDEN}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter() {
        let changed = keys.iter().find(|(changed, _)| *changed == key).map(|(_, value)| value);
        writer = writer.key(key, changed.unwrap_or(value));
    }
    for info in gguf.tensors() {
        let view = gguf.view(info);
        let (rows, cols) = pad(&info.name);
        let mut shape = info.shape.clone();
        let mut data = Vec::new();
        for row in view.data.chunks(view.data.len() / view.rows) {
            data.extend_from_slice(row);
            data.resize(data.len() + 2 * cols, 0);
        }
        data.resize(data.len() + 2 * rows * (view.cols + cols), 0);
        if rows + cols > 0 {
            shape = vec![(view.cols + cols) as u64, (view.rows + rows) as u64];
        }
        writer = writer.tensor(Tensor::new(&info.name, &shape, view.ggml_type, &data));
    }
    testdata::temp_file("layers.gguf", &writer.bytes())
}

/// Returns a model's file with the tensors whose names `is_wanted` accepts in F32.
pub(super) fn in_float(file: &TempFile, is_wanted: impl Fn(&str) -> bool) -> TempFile {
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut writer = Writer::with_keys(gguf.metadata());
    for info in gguf.tensors() {
        let view = gguf.view(info);
        let is_wanted = is_wanted(&info.name);
        let mut values = vec![0.0; if is_wanted { view.rows * view.cols } else { 0 }];
        let (ty, data) = match is_wanted {
            true => {
                quant::dequantize(view.ggml_type, view.data, &mut values).unwrap();
                (GgmlType::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect())
            }
            false => (view.ggml_type, view.data.to_vec()),
        };
        writer = writer.tensor(Tensor::new(&info.name, &info.shape, ty, &data));
    }
    testdata::temp_file("float.gguf", &writer.bytes())
}

fn per_layer(values: [u32; 2]) -> Value {
    Value::Array(Array::U32(values.to_vec()))
}

/// Returns a file with twice the heads, and a wider feed-forward, in the second layer.
fn uneven_layers() -> TempFile {
    let keys = [
        ("llama.attention.head_count", per_layer([4, 8])),
        ("llama.attention.head_count_kv", per_layer([1, 2])),
        ("llama.feed_forward_length", per_layer([384, 384 + MORE_COLUMNS as u32])),
    ];
    changed(&keys, |name| match name {
        "blk.1.attn_q.weight" => (256, 0),
        "blk.1.attn_k.weight" | "blk.1.attn_v.weight" => (64, 0),
        "blk.1.attn_output.weight" => (0, 256),
        "blk.1.ffn_gate.weight" | "blk.1.ffn_up.weight" => (MORE_COLUMNS, 0),
        "blk.1.ffn_down.weight" => (0, MORE_COLUMNS),
        _ => (0, 0),
    })
}

/// Computes a whole prompt, then single tokens of two sequences. Each must be within `bound` of the golden logits.
pub(super) fn check_uneven_layers<L: Loader>(loader: L, dtype: KvCacheDtype, bound: f32) {
    let file = uneven_layers();
    let z = testdata::npz(GOLDEN);
    let (tokens, expected) = (tokens(&z), z.f32("logits"));
    let mut model: Model<L::Backend> = try_load_file(loader, &file, dtype).unwrap();
    // They attend to the same tokens, so a block of theirs holds keys and values of both shapes.
    let [group] = &model.decoder.spec().kv_groups[..] else { panic!("more groups than one") };
    assert_ne!(group.layers[0], group.layers[1]);
    let vocab = expected.len() / tokens.len();
    let near = |what: &str, got: &[f32], expected: &[f32]| {
        let (error, _) = distance(got, expected);
        println!("{what}: {error:.2e} of {:.1}", max_abs(expected));
        assert!(error < bound, "{what}: {error:.2e}");
    };
    near("in one piece", &model.logits(&tokens, 0), &expected);
    model.step(&[(&tokens[..20], 0), (&tokens[..33], 0)]).unwrap();
    for more in 0..3 {
        let got = model.step(&[(&tokens[..21 + more], 20 + more), (&tokens[..34 + more], 33 + more)]).unwrap();
        near("a single token", &got[..vocab], &expected[(20 + more) * vocab..][..vocab]);
        near("a single token", &got[vocab..], &expected[(33 + more) * vocab..][..vocab]);
    }
}

#[test]
fn layers_may_differ() {
    for (dtype, bound) in [(KvCacheDtype::F32, 1e-2), (KvCacheDtype::F16, 3e-2)] {
        check_uneven_layers(CpuLoader::new(2, MAX_TOKENS).unwrap(), dtype, bound);
    }
}

/// A key has one value for all layers or one per layer. Anything else is an error that names it.
#[test]
fn arrays_that_are_not_of_the_layers_are_errors() {
    let cases = [
        ("llama.feed_forward_length", Value::Array(Array::U32(vec![384])), "1 entries, expected one per layer (2)"),
        ("llama.feed_forward_length", Value::Array(Array::U32(vec![384; 3])), "3 entries, expected one per layer (2)"),
        ("llama.attention.head_count", per_layer([4, 0]), "is 0, expected 1 to"),
        ("llama.attention.head_count_kv", per_layer([1, 3]), "is 3, expected a divisor"),
        ("llama.attention.head_count", Value::Array(Array::I32(vec![4, -4])), "is -4, expected 1 to"),
    ];
    for (key, value, problem) in cases {
        let file = changed(&[(key, value)], |_| (0, 0));
        let error = ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), None).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(problem), "{error}");
    }
    // An array of equal values means the same as one value for all layers.
    let same = changed(&[("llama.attention.head_count", per_layer([4, 4]))], |_| (0, 0));
    let spec = ModelSpec::from_gguf(&GgufFile::open(&same.0).unwrap(), None).unwrap();
    assert_eq!(spec.kv_groups.len(), 1);
}
