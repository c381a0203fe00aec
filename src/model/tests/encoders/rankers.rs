//! Scores of reranking encoders, compared with those of transformers. The models are golden encoders with heads, whose
//! weights come from a formula.

use super::hidden;
use crate::backend::Loader;
use crate::config::{KvCacheDtype, Pooling};
use crate::cpu::{CpuLoader, Isa};
use crate::gguf::GgufFile;
use crate::testdata::{self, TempFile};
use crate::testmodels::{HIDDEN, RANKERS, golden, ranker};
use crate::tests::{MAX_TOKENS, load_spec};
use crate::{Head, ModelSpec, ModelTensors};

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
pub(in crate::tests) fn check_rankers<L: Loader>(loader: impl Fn() -> L, dtype: KvCacheDtype, bound: f64, exact: bool) {
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
