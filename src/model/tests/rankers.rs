//! Scores of reranking encoders, compared with those of transformers. The models are golden encoders with heads, whose
//! weights come from a formula.

use super::encoders::hidden;
use super::{MAX_TOKENS, load_spec};
use crate::backend::Loader;
use crate::backend::cpu::{CpuLoader, Isa};
use crate::config::{KvCacheDtype, Pooling};
use crate::gguf::writer::{Tensor, Writer};
use crate::gguf::{GgufFile, Value};
use crate::model::{Head, ModelSpec, ModelTensors};
use crate::quant::GgmlType;
use crate::testdata::{self, TempFile};

pub(crate) const RANKERS: [&str; 5] =
    ["bert", "bert_without_dense", "xlm_roberta", "modern_bert_cls", "modern_bert_mean"];

const HIDDEN: usize = 64;

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
pub(crate) fn ranker(name: &str) -> TempFile {
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
pub(crate) fn golden(name: &str) -> Vec<(Vec<u32>, f64)> {
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

fn relevance(head: &Head, states: &[Vec<f32>]) -> f64 {
    let mean = |i: usize| states.iter().map(|state| f64::from(state[i])).sum::<f64>() / states.len() as f64;
    match head.input(Pooling::Rank) {
        Pooling::Cls => head.apply(&states[0].iter().map(|&x| f64::from(x)).collect::<Vec<_>>())[0],
        Pooling::Mean => head.apply(&(0..HIDDEN).map(mean).collect::<Vec<_>>())[0],
        other => panic!("a head of {other:?}"),
    }
}

/// Compares the scores of pairs with golden ones, alone and in a batch as large as a step. With `exact`, both are
/// bitwise equal.
fn check_scores<L: Loader>(
    loader: L,
    file: &TempFile,
    (name, pairs): (&str, &[(Vec<u32>, f64)]),
    dtype: KvCacheDtype,
    (bound, exact): (f64, bool),
    change: impl FnOnce(&mut ModelSpec),
) {
    let gguf = GgufFile::open(&file.0).unwrap();
    let mut spec = ModelSpec::from_gguf(&gguf, None).unwrap();
    change(&mut spec);
    let head = ModelTensors::collect(&gguf, &spec).unwrap().head().unwrap().unwrap();
    let mut model = load_spec(loader, &gguf, &spec, dtype).unwrap();
    let (mut worst, mut alone) = (0.0f64, Vec::new());
    for (ids, score) in pairs {
        let got = relevance(&head, &hidden(&mut model, &[ids])[0]);
        worst = worst.max((got - score).abs());
        alone.push(got);
    }
    println!("{name}, {dtype:?} cache: {worst:.2e}");
    assert!(worst < bound, "{name}, {dtype:?} cache: {worst:.2e}");
    let mut room = MAX_TOKENS;
    let fits = |&i: &usize| room.checked_sub(pairs[i].0.len()).map(|left| room = left).is_some();
    let chosen: Vec<usize> = (0..pairs.len()).rev().filter(fits).collect();
    assert!(chosen.len() > 1);
    let together = hidden(&mut model, &chosen.iter().map(|&i| &pairs[i].0[..]).collect::<Vec<_>>());
    for (&i, states) in chosen.iter().zip(&together) {
        let error = (relevance(&head, states) - alone[i]).abs();
        assert!(if exact { error == 0.0 } else { error < bound }, "{name}: pair {i} of {chosen:?}: {error:.2e}");
    }
}

/// Checks the scores of all models on a device.
pub(super) fn check_rankers<L: Loader>(loader: impl Fn() -> L, dtype: KvCacheDtype, bound: f64, exact: bool) {
    for name in RANKERS {
        check_scores(loader(), &ranker(name), (name, &golden(name)), dtype, (bound, exact), |_| {});
    }
}

/// M13: each architecture and each pooling before the head, with and without a dense matrix.
#[test]
fn scores_are_those_of_transformers() {
    for (dtype, bound) in [(KvCacheDtype::F32, 2e-5), (KvCacheDtype::F16, 3e-3)] {
        for isa in Isa::available() {
            check_rankers(|| CpuLoader::new(2, MAX_TOKENS).unwrap().with_isa(isa), dtype, bound, true);
        }
    }
}

/// M13: the document's tokens have the second type, as in the tokenizer of transformers. With one type for all tokens,
/// scores differ, and again equal those of transformers.
#[test]
fn the_second_text_is_of_the_second_type() {
    let file = ranker("bert");
    let check = |pairs: &str, separator: Option<u32>| {
        let loader = CpuLoader::new(2, MAX_TOKENS).unwrap();
        let golden = golden(pairs);
        check_scores(loader, &file, (pairs, &golden), KvCacheDtype::F32, (2e-5, true), |spec| {
            assert_eq!(spec.embedding.separator, Some(102));
            spec.embedding.separator = separator;
        });
    };
    check("bert", Some(102));
    check("bert_of_one_type", None);
    let (two, one) = (golden("bert"), golden("bert_of_one_type"));
    assert!(two.iter().zip(&one).any(|(two, one)| (two.1 - one.1).abs() > 0.1));
    let json = testdata::json("embedding/rankers.json");
    for ((ids, _), types) in two.iter().zip(json["models"]["bert"]["types"].as_array().unwrap()) {
        let second = ids.iter().position(|&id| id == 102).unwrap() + 1;
        let types = types.as_array().unwrap().iter().map(|kind| kind.as_u64().unwrap());
        assert!(types.enumerate().all(|(at, kind)| kind == u64::from(at >= second)));
    }
    // Without two types, the texts are not distinguished.
    for name in ["xlm_roberta", "modern_bert_cls"] {
        let spec = ModelSpec::from_gguf(&GgufFile::open(&ranker(name).0).unwrap(), None).unwrap();
        assert_eq!((spec.embedding.separator, spec.pooling), (None, Pooling::Rank));
    }
}
