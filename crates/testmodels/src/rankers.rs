//! Reranking encoders: golden encoders with heads whose weights come from a formula, and their scores in transformers.

use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{GgufFile, Value};
use crate::quant::GgmlType;
use crate::testdata::{self, TempFile};

pub const RANKERS: [&str; 5] = ["bert", "bert_without_dense", "xlm_roberta", "modern_bert_cls", "modern_bert_mean"];

pub const HIDDEN: usize = 64;

/// Returns the weights of a head.
fn weights([rows, cols]: [usize; 2], offset: usize, scale: f32, plus: f32) -> Vec<f32> {
    let weight = |r: usize, c: usize| plus + (((r * 37 + c * 101 + r * c * 7 + offset) % 127) as f32 - 63.0) / scale;
    (0..rows).flat_map(|r| (0..cols).map(move |c| weight(r, c))).collect()
}

/// Returns the tensors of a model's head. BERT's has three labels.
fn head(name: &str) -> Vec<Tensor> {
    let labels = if name.starts_with("bert") { 3 } else { 1 };
    let tensor = |name: &str, shape: [usize; 2], values: Vec<f32>| {
        let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let [rows, cols] = shape.map(|n| n as u64);
        let shape = if rows == 1 && !name.ends_with("output.weight") { vec![cols] } else { vec![cols, rows] };
        Tensor::new(name, &shape, GgmlType::F32, &data)
    };
    let matrix = |name: &str, rows: usize, offset, scale| {
        tensor(name, [rows, HIDDEN], weights([rows, HIDDEN], offset, scale, 0.0))
    };
    let vector =
        |name: &str, len: usize, offset, scale, plus| tensor(name, [1, len], weights([1, len], offset, scale, plus));
    let mut tensors =
        vec![matrix("cls.output.weight", labels, 3, 128.0), vector("cls.output.bias", labels, 90, 256.0, 0.0)];
    if name != "bert_without_dense" {
        tensors.push(matrix("cls.weight", HIDDEN, 5, 512.0));
    }
    match name {
        "bert" | "xlm_roberta" => tensors.push(vector("cls.bias", HIDDEN, 11, 256.0, 0.0)),
        "modern_bert_cls" | "modern_bert_mean" => tensors.push(vector("cls.norm.weight", HIDDEN, 40, 512.0, 1.0)),
        _ => {}
    }
    tensors
}

/// Returns a file of one of `RANKERS`. Except for `bert`, it has no pooling key, like the files of llama.cpp's
/// converter.
pub fn ranker(name: &str) -> TempFile {
    let body = if name.starts_with("modern") { "modern_bert" } else { "bert" };
    let file = testdata::file(&format!("embedding/{body}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter() {
        let value = match (key, name) {
            ("bert.pooling_type", "bert") => &Value::U32(4),
            ("bert.pooling_type" | "modern-bert.pooling_type", _) => continue,
            // Without the key, the head reads the mean.
            ("modern-bert.classifier.pooling_type", "modern_bert_mean") => continue,
            ("tokenizer.ggml.token_type_count", "xlm_roberta") => &Value::U32(1),
            _ => value,
        };
        writer = writer.key(key, value);
    }
    for info in gguf.tensors() {
        let (mut shape, mut data) = (info.shape.clone(), gguf.view(info).data);
        if name == "xlm_roberta" && info.name == "token_types.weight" {
            (shape[1], data) = (1, &data[..4 * HIDDEN]);
        }
        writer = writer.tensor(Tensor::new(&info.name, &shape, gguf.view(info).ggml_type, data));
    }
    writer = head(name).into_iter().fold(writer, Writer::tensor);
    testdata::temp_file(&format!("{name}.gguf"), &writer.bytes())
}

/// Returns the token ids of pairs, and their scores in transformers: sigmoids of the first label's logits.
pub fn golden(name: &str) -> Vec<(Vec<u32>, f64)> {
    let (model, logits) = match name {
        "bert_without_dense" => ("bert", "logits_without_dense"),
        "bert_of_one_type" => ("bert", "logits_of_one_type"),
        "modern_bert_cls" => ("modern_bert", "logits_cls"),
        "modern_bert_mean" => ("modern_bert", "logits_mean"),
        _ => (name, "logits"),
    };
    let model = &testdata::json("embedding/rankers.json")["models"][model];
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let ids = model["ids"].as_array().unwrap().iter().map(|ids| numbers(ids).iter().map(|&id| id as u32).collect());
    let scores = numbers(&model[logits]).into_iter().map(|logit| 1.0 / (1.0 + (-logit).exp()));
    let pairs: Vec<_> = ids.zip(scores).collect();
    assert_eq!(pairs.len(), 6, "{name}");
    pairs
}
