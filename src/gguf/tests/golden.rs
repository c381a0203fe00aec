//! Files of real converters. Expected values were read from them with gguf-py.

use std::collections::BTreeMap;

use super::validate_values;
use crate::quant::{GgmlType, can_dequantize, dequantize};
use crate::testdata;
use crate::{Array, GgufFile, TensorInfo, Value};

/// Returns the 64-bit FNV-1a hash, which is one line of code in any language.
fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Returns hashes of the directory as lines of text, and of all tensors' bytes.
fn hashes(file: &GgufFile) -> (u64, u64) {
    let line = |t: &TensorInfo| {
        format!("{} {:?} {} {} {}\n", t.name, t.shape, t.ggml_type.name(), t.offset, t.num_bytes).into_bytes()
    };
    let directory = fnv1a(file.tensors().iter().flat_map(line));
    (directory, fnv1a(file.tensors().iter().flat_map(|t| file.view(t).data.iter().copied())))
}

fn types(file: &GgufFile) -> BTreeMap<&'static str, usize> {
    file.tensors().iter().fold(BTreeMap::new(), |mut counts, t| {
        *counts.entry(t.ggml_type.name()).or_default() += 1;
        counts
    })
}

#[test]
fn test_directory_and_data_of_a_converted_model() {
    let path = testdata::file("arch/qwen2.gguf");
    let file = GgufFile::open(&path.0).unwrap();
    assert_eq!(file.version(), 3);
    assert_eq!(file.tensors().len(), 26);
    assert_eq!(file.tensor_bytes(), 1_612_416);
    assert_eq!(types(&file), BTreeMap::from([("F16", 15), ("F32", 11)]));
    assert_eq!(hashes(&file), (0x2c2a_89da_87d0_6b2f, 0x9cdf_fb62_654d_ac1d));

    let info = file.tensor("blk.0.ffn_down.weight").unwrap();
    assert_eq!((info.shape.as_slice(), info.offset, info.num_bytes), (&[320, 224][..], 304_416, 143_360));
    let view = file.view(info);
    assert_eq!((view.name, view.cols, view.rows), ("blk.0.ffn_down.weight", 320, 224));
    assert_eq!(view.data.len(), view.rows * view.ggml_type.row_bytes(view.cols).unwrap());
    let vector = file.view(file.tensor("output_norm.weight").unwrap());
    assert_eq!((vector.cols, vector.rows, vector.ggml_type), (224, 1, GgmlType::F32));
    assert!(file.tensor("output.weight").is_none());
    validate_values(&file).unwrap();
}

#[test]
fn test_metadata_of_a_converted_model() {
    let path = testdata::file("arch/qwen2.gguf");
    let file = GgufFile::open(&path.0).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.path(), path.0);
    assert_eq!(metadata.iter().count(), 21);
    let first: Vec<&str> = metadata.iter().map(|(key, _)| key).take(3).collect();
    assert_eq!(first, ["general.architecture", "general.type", "general.name"]);
    assert_eq!(metadata.str("general.size_label").unwrap(), "805K");
    assert_eq!(metadata.u32("qwen2.feed_forward_length").unwrap(), 320);
    assert_eq!(metadata.f32("qwen2.rope.freq_base").unwrap(), 1e6);
    assert_eq!(metadata.f32("qwen2.attention.layer_norm_rms_epsilon").unwrap(), 1e-6);
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
    assert_eq!((tokens.len(), tokens[0].as_str(), tokens[639].as_str()), (640, "!", "<|im_end|>"));
    let merges = metadata.strings("tokenizer.ggml.merges").unwrap();
    assert_eq!((merges.len(), merges[0].as_str(), merges[380].as_str()), (381, "t h", "i le"));
    let kinds = metadata.opt_ints("tokenizer.ggml.token_type").unwrap().unwrap();
    assert_eq!((kinds.len(), kinds[0], kinds[639]), (640, 1, 3));
    assert!(matches!(metadata.get("tokenizer.ggml.token_type"), Some(Value::Array(Array::I32(_)))));
    assert_eq!(metadata.str("tokenizer.chat_template").unwrap().matches("<|im_start|>").count(), 2);
}

/// L8: real mixes of types, and every type decodes. "Q4_0" and "Q4_K_M" files also contain Q6_K.
#[test]
fn test_quantised_models_as_shipped() {
    let expected = [
        ("Q4_0", BTreeMap::from([("Q4_0", 15), ("F32", 5), ("Q6_K", 1)]), 849_920),
        ("Q4_K_M", BTreeMap::from([("Q4_K", 13), ("F32", 5), ("Q6_K", 3)]), 892_160),
    ];
    for (name, want_types, want_bytes) in expected {
        let path = testdata::file(&format!("quant_models/{name}.gguf"));
        let file = GgufFile::open(&path.0).unwrap();
        assert_eq!(types(&file), want_types, "{name}");
        assert_eq!(file.tensor_bytes(), want_bytes, "{name}");
        assert!(file.tensors().iter().all(|t| can_dequantize(t.ggml_type)));
        validate_values(&file).unwrap();
    }
    let path = testdata::file("quant_models/Q4_K_M.gguf");
    assert_eq!(hashes(&GgufFile::open(&path.0).unwrap()), (0x950c_138e_a93f_611f, 0x7fc7_11cb_7472_4e51));
}

/// Vocabulary-only files have no tensors.
#[test]
fn test_vocabulary_only_file() {
    let path = testdata::file("tokenizers/llama-spm.gguf");
    let file = GgufFile::open(&path.0).unwrap();
    assert_eq!((file.tensors().len(), file.tensor_bytes()), (0, 0));
    assert_eq!(file.metadata().strings("tokenizer.ggml.tokens").unwrap().len(), 32_000);
    assert_eq!(file.metadata().opt_f32s("tokenizer.ggml.scores").unwrap().unwrap().len(), 32_000);
    validate_values(&file).unwrap();
}

/// M5: the first dimension varies fastest, so a row of a view is one token's embedding.
#[test]
fn test_row_order_of_embeddings() {
    let path = testdata::file("arch/llama_tied.gguf");
    let file = GgufFile::open(&path.0).unwrap();
    let view = file.view(file.tensor("token_embd.weight").unwrap());
    let hidden = file.metadata().u32("llama.embedding_length").unwrap() as usize;
    let vocabulary = file.metadata().strings("tokenizer.ggml.tokens").unwrap().len();
    assert_eq!((view.cols, view.rows), (hidden, vocabulary));
    let row_bytes = view.ggml_type.row_bytes(view.cols).unwrap();
    let mut last = vec![0.0; view.cols];
    dequantize(view.ggml_type, &view.data[(view.rows - 1) * row_bytes..], &mut last).unwrap();
    assert_eq!(last[..3], [-0.118_461_974, 0.129_445_37, -0.188_886_21]);
    assert_eq!(last[view.cols - 1], 0.112_232_37);
}
