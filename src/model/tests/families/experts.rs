//! Experts in every place of a feed-forward: after a norm, before one, beside attention. The feed-forward of a golden
//! model is split into experts with equal weights, with or without a shared expert. The logits must not change.

use crate::ModelSpec;
use crate::backend::{ExpertSpec, Loader};
use crate::config::KvCacheDtype;
use crate::cpu::CpuLoader;
use crate::gguf::GgufFile;
use crate::gguf::writer::{Tensor, Writer};
use crate::layers::of_layer;
use crate::quant::GgmlType;
use crate::spec::{DenseSpec, Ffn, LayerSpec, Norms};
use crate::testdata::{self, TempFile};
use crate::tests::layers::in_float;
use crate::tests::{MAX_MODEL_LEN, MAX_TOKENS, Model, distance, max_abs, tokens, try_load_with};

/// Norms around the feed-forward; norms only after it; a feed-forward beside attention.
const GOLDEN: [&str; 3] = ["gemma2", "olmo3", "cohere2"];

/// Returns the number of parts of a layer's feed-forward that are experts, and the number that form the shared expert.
/// Every row uses all experts. Adjacent layers differ.
fn parts(layer: usize) -> [usize; 2] {
    [[2, 0], [1, 1], [3, 1]][layer % 3]
}

/// Returns a layer with its feed-forward in parts.
fn in_parts(layer: &LayerSpec, index: usize, hidden_size: usize) -> LayerSpec {
    let Ffn::Dense(dense) = layer.ffn else { panic!("layer {index} has experts") };
    let [num, shared] = parts(index);
    let size = dense.size / (num + shared);
    assert_eq!(size * (num + shared), dense.size);
    let experts = ExpertSpec {
        activation: dense.activation,
        // The router is zero, so all experts have equal weights in the softmax.
        scale: num as f32,
        ..ExpertSpec::plain(num, num, hidden_size, size)
    };
    let shared = (shared > 0).then_some(DenseSpec { size: shared * size, ..dense });
    LayerSpec { ffn: Ffn::Experts { experts, shared }, ..layer.clone() }
}

/// Returns some columns of each row.
fn columns(data: &[f32], cols: usize, of: std::ops::Range<usize>) -> Vec<f32> {
    data.chunks(cols).flat_map(|row| &row[of.clone()]).copied().collect()
}

/// Returns the tensors of a feed-forward's matrix in parts.
fn split(index: usize, name: &str, data: &[f32], size: usize, hidden: usize) -> Vec<Tensor> {
    let [num, shared] = parts(index);
    let part = size / (num + shared);
    let f32_tensor = |suffix: &str, shape: &[usize], values: &[f32]| {
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Tensor::new(&of_layer(index, &format!("{name}_{suffix}.weight")), &shape, GgmlType::F32, &data)
    };
    let is_down = name == "ffn_down";
    let of = |first: usize, parts: usize| match is_down {
        true => columns(data, size, first * part..(first + parts) * part),
        false => data[first * part * hidden..(first + parts) * part * hidden].to_vec(),
    };
    let shape = |n: usize| if is_down { [n * part, hidden] } else { [hidden, n * part] };
    let experts: Vec<f32> = (0..num).flat_map(|expert| of(expert, 1)).collect();
    let [inputs, outputs] = shape(1);
    let mut tensors = vec![f32_tensor("exps", &[inputs, outputs, num], &experts)];
    if shared > 0 {
        tensors.push(f32_tensor("shexp", &shape(shared), &of(num, shared)));
    }
    tensors
}

/// Returns the golden model in F32 with its feed-forwards in parts.
fn file_of_parts(name: &str) -> TempFile {
    let file = in_float(&testdata::file(&format!("arch/{name}.gguf")), |name| name.contains(".ffn_"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
    let hidden = spec.hidden_size;
    let mut writer = Writer::with_keys(gguf.metadata());
    let matrices: Vec<(String, usize, &str)> = (0..spec.layers.len())
        .flat_map(|i| ["ffn_gate", "ffn_up", "ffn_down"].map(|name| (of_layer(i, &format!("{name}.weight")), i, name)))
        .collect();
    for info in gguf.tensors() {
        let view = gguf.view(info);
        let Some((_, index, name)) = matrices.iter().find(|(matrix, ..)| *matrix == info.name) else {
            writer = writer.tensor(Tensor::new(&info.name, &info.shape, view.ggml_type, view.data));
            continue;
        };
        let data: Vec<f32> = view.data.chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
        for tensor in split(*index, name, &data, data.len() / hidden, hidden) {
            writer = writer.tensor(tensor);
        }
    }
    for index in 0..spec.layers.len() {
        let [num, _] = parts(index);
        let zeros = vec![0; 4 * num * hidden];
        let (name, shape) = (of_layer(index, "ffn_gate_inp.weight"), [hidden as u64, num as u64]);
        writer = writer.tensor(Tensor::new(&name, &shape, GgmlType::F32, &zeros));
    }
    testdata::temp_file("parts.gguf", &writer.bytes())
}

/// Computes a whole prompt, and single tokens of two sequences. Each must be within `bound` of the golden logits,
/// relative to the largest.
pub(in crate::tests) fn check_experts_in_any_place<L: Loader>(loader: impl Fn() -> L, dtype: KvCacheDtype, bound: f32) {
    for name in GOLDEN {
        let file = file_of_parts(name);
        let z = testdata::npz(&format!("arch/{name}"));
        let (tokens, expected) = (tokens(&z), z.f32("logits"));
        let mut model: Model<L::Backend> = try_load_with(loader(), &file, dtype, Some(MAX_MODEL_LEN), |spec| {
            let hidden = spec.hidden_size;
            let layers = spec.layers.iter().enumerate();
            spec.layers = layers.map(|(index, layer)| in_parts(layer, index, hidden)).collect();
        })
        .unwrap();
        let vocab = expected.len() / tokens.len();
        let near = |what: &str, got: &[f32], expected: &[f32]| {
            let relative = distance(got, expected).0 / max_abs(expected);
            println!("{name}, {what}: {relative:.2e} of the largest logit");
            assert!(relative < bound, "{name}, {what}: {relative:.2e} of the largest logit");
        };
        near("in one piece", &model.logits(&tokens, 0), &expected);
        model.step(&[(&tokens[..20], 0), (&tokens[..33], 0)]).unwrap();
        let got = model.step(&[(&tokens[..21], 20), (&tokens[..34], 33)]).unwrap();
        near("a single token", &got[..vocab], &expected[20 * vocab..][..vocab]);
        near("a single token", &got[vocab..], &expected[33 * vocab..][..vocab]);
    }
}

#[test]
fn experts_may_be_in_any_place() {
    check_experts_in_any_place(|| CpuLoader::new(2, MAX_TOKENS).unwrap(), KvCacheDtype::F32, 1e-3);
}

/// The models above cover all places of experts in a layer.
#[test]
fn the_golden_models_have_all_places() {
    let places = GOLDEN.map(|name| {
        let gguf = GgufFile::open(&testdata::file(&format!("arch/{name}.gguf")).0).unwrap();
        let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
        let LayerSpec { ffn_norms: Norms { before, after, .. }, parallel, .. } = spec.layers[0];
        assert!(spec.layers.len() > 1, "{name}: experts of one kind only");
        (before.is_some(), after.is_some(), parallel)
    });
    assert_eq!(places, [(true, true, false), (false, true, false), (false, false, true)]);
}
