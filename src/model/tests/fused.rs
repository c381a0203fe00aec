//! Tensors in alternative forms of converters, and tensors of other parts than the text model.

mod scales;

use std::collections::HashSet;

use super::{CpuLoader, MAX_TOKENS, distance, float_file, max_abs, tokens, try_load_file};
use crate::backend::Loader;
use crate::config::KvCacheDtype;
use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{GgufFile, TensorInfo};
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::quant::GgmlType;
use crate::testdata::{self, TempFile};
use crate::{ModelSpec, ModelTensors};

/// Returns the file with q, k and v of each layer in one tensor, like llama.cpp's converter with `--fuse-qkv`, and the
/// number of fused tensors.
fn fused(file: &TempFile) -> (TempFile, usize) {
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut writer = Writer::with_keys(gguf.metadata());
    let (mut done, mut count) = (HashSet::new(), 0);
    for info in gguf.tensors() {
        let parts = parts(&gguf, &info.name);
        if done.contains(&info.name) {
            continue;
        }
        let parts = parts.unwrap_or_else(|| vec![info]);
        let name = if parts.len() > 1 { parts[0].name.replace("attn_q.", "attn_qkv.") } else { info.name.clone() };
        let mut shape = info.shape.clone();
        if let Some(last) = shape.last_mut().filter(|_| parts.len() > 1) {
            *last = parts.iter().map(|part| part.shape.last().unwrap()).sum();
            count += 1;
        }
        let data: Vec<u8> = parts.iter().flat_map(|part| gguf.view(part).data).copied().collect();
        writer = writer.tensor(Tensor::new(&name, &shape, gguf.view(info).ggml_type, &data));
        done.extend(parts.iter().map(|part| part.name.clone()));
    }
    (testdata::temp_file("fused.gguf", &writer.bytes()), count)
}

/// Returns q, k and v if `name` is one of them and all three exist.
fn parts<'a>(gguf: &'a GgufFile, name: &str) -> Option<Vec<&'a TensorInfo>> {
    let kind = ["attn_q.", "attn_k.", "attn_v."].into_iter().find(|kind| name.contains(kind))?;
    let all = ["attn_q.", "attn_k.", "attn_v."].map(|other| gguf.tensor(&name.replace(kind, other)));
    all.into_iter().collect()
}

/// Compares the logits of the fused file with the golden ones.
fn check_fused<L: Loader>(loader: L, name: &str, bound: f32) {
    let path = format!("arch/{name}");
    let (file, count) = fused(&float_file(name));
    assert!(count > 0, "{name}: nothing to fuse");
    let z = testdata::npz(&path);
    let expected = z.f32("logits");
    let mut model = try_load_file(loader, &file, KvCacheDtype::F32).unwrap();
    let relative = distance(&model.logits(&tokens(&z), 0), &expected).0 / max_abs(&expected);
    println!("{name}, fused: {relative:.2e} of the largest logit");
    assert!(relative < bound, "{name}, fused: {relative:.2e} of the largest logit");
}

/// Models with q, k and v: with and without biases, with gates, with norms, and beside other mixers.
const FUSED: [&str; 12] = [
    "llama_tied",
    "llama_bias",
    "qwen2",
    "qwen3",
    "qwen35",
    "qwen3next",
    "gpt_oss",
    "glm4moe_nextn",
    "granitehybrid",
    "lfm2",
    "gemma3",
    "olmo3",
];

/// F5: q, k and v in one tensor, in any family that has them.
#[test]
fn queries_keys_and_values_may_be_one_tensor() {
    for name in FUSED {
        check_fused(CpuLoader::new(2, MAX_TOKENS).unwrap(), name, 1e-3);
    }
}

#[test]
fn they_may_be_one_tensor_on_a_gpu() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    for name in ["llama_bias", "qwen35"] {
        check_fused(devices::loader(&device, MAX_TOKENS), name, 1e-2);
    }
    assert_eq!(device.0.allocated_bytes(), 0);
}

/// Returns the golden model with additional tensors, or with renamed ones.
fn with_tensors(path: &str, names: &[&str], rename: impl Fn(&str) -> String) -> TempFile {
    let file = testdata::file(&format!("{path}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut writer = Writer::with_keys(gguf.metadata());
    for info in gguf.tensors() {
        let view = gguf.view(info);
        writer = writer.tensor(Tensor::new(&rename(&info.name), &info.shape, view.ggml_type, view.data));
    }
    for name in names {
        writer = writer.tensor(Tensor::new(name, &[32], GgmlType::F32, &[0; 128]));
    }
    testdata::temp_file("tensors.gguf", &writer.bytes())
}

fn collect(file: &TempFile) -> crate::Result<()> {
    let gguf = GgufFile::open(&file.0)?;
    let spec = ModelSpec::from_gguf(&gguf, None)?;
    ModelTensors::collect(&gguf, &spec).map(|_| ())
}

/// F5: image and audio encoders in a text model's file are left out. Any other unknown tensor is an error.
#[test]
fn encoders_in_the_file_are_left_out() {
    let of_encoders = ["v.patch_embd.weight", "mm.0.weight", "a.conv1d.1.weight"];
    collect(&with_tensors("arch/gemma3", &of_encoders, str::to_owned)).unwrap();
    for name in ["vision.weight", "blk.0.v.weight", "x.weight"] {
        let error = collect(&with_tensors("arch/gemma3", &[name], str::to_owned)).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("is not a tensor of a gemma3 model"), "{error}");
    }
}

/// F5: LFM2's output norm under the name that it has in every other family.
#[test]
fn the_output_norm_of_lfm2_has_two_names() {
    let file = with_tensors("arch/lfm2", &[], |name| name.replace("token_embd_norm", "output_norm"));
    let z = testdata::npz("arch/lfm2");
    let expected = z.f32("logits");
    let mut model = try_load_file(CpuLoader::new(2, MAX_TOKENS).unwrap(), &file, KvCacheDtype::F32).unwrap();
    assert!(distance(&model.logits(&tokens(&z), 0), &expected).0 / max_abs(&expected) < 1e-3);
}
