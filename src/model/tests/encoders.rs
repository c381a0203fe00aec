//! Embeddings of bidirectional models, compared with those of transformers.

mod images;
pub(super) mod rankers;

use super::hidden::unit;
use super::{CpuLoader, MAX_TOKENS, Model, distance, load_within};
use crate::backend::{Backend, Loader};
use crate::config::{KvCacheDtype, Pooling};
use crate::cpu::Isa;
use crate::gguf::GgufFile;
use crate::selection::Wanted;
use crate::testdata;
use crate::{DecoderLimits, Head, ModelSpec, ModelTensors};

/// Returns the hidden states of prompts that are computed together.
pub(super) fn hidden<B: Backend>(model: &mut Model<B>, prompts: &[&[u32]]) -> Vec<Vec<Vec<f32>>> {
    let seqs: Vec<_> = prompts.iter().map(|prompt| (*prompt, 0)).collect();
    let mut rows = model.rows(&seqs, |_| Wanted::Hidden).unwrap().into_iter();
    prompts.iter().map(|prompt| rows.by_ref().take(prompt.len()).collect()).collect()
}

/// Returns the normalized embedding of a prompt.
fn pooled(pooling: Pooling, head: Option<&Head>, states: &[Vec<f32>]) -> Vec<f32> {
    let mean = |i: usize| states.iter().map(|state| f64::from(state[i])).sum::<f64>() / states.len() as f64;
    let pooled: Vec<f64> = match pooling {
        Pooling::Cls => states[0].iter().map(|&x| f64::from(x)).collect(),
        Pooling::Mean => (0..states[0].len()).map(mean).collect(),
        Pooling::Last | Pooling::Rank => panic!("{pooling:?} of an encoder"),
    };
    let vector = head.map_or_else(|| pooled.clone(), |head| head.apply(&pooled));
    unit(&vector.iter().map(|&x| x as f32).collect::<Vec<_>>())
}

/// Tokens of a step with room for every prompt of `LONG_PROMPTS`.
pub(super) const LONG: usize = 512;
/// An encoder of T5 with ReLU, and prompts with distances beyond the last bucket, which begins before 128.
pub(super) const LONG_PROMPTS: &str = "t5encoder_relu";

/// Compares the embeddings of a golden model's sequences with those of transformers, alone and in a batch. With
/// `exact`, both are bitwise equal. `room` is the size of a step; longer sequences are left out.
pub(super) fn check_encoder<L: Loader>(
    loader: L,
    name: &str,
    dtype: KvCacheDtype,
    (bound, exact): (f32, bool),
    room: usize,
) {
    let name = format!("embedding/{name}");
    let z = testdata::npz(&name);
    let (tokens, vectors) = (z.i32("tokens"), z.f32("embeddings"));
    let tokens: Vec<u32> = tokens.iter().map(|&id| id as u32).collect();
    let ends = z.i32("offsets");
    let prompts = ends.windows(2).map(|ends| &tokens[ends[0] as usize..ends[1] as usize]);
    let pairs = prompts.zip(vectors.chunks(z.shape("embeddings")[1])).filter(|(prompt, _)| prompt.len() <= room);
    let (prompts, vectors): (Vec<&[u32]>, Vec<&[f32]>) = pairs.unzip();
    let gguf = testdata::file(&format!("{name}.gguf"));
    let gguf = GgufFile::open(&gguf.0).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, None).unwrap();
    let tensors = ModelTensors::collect(&gguf, &spec).unwrap();
    let (pooling, head) = (spec.pooling, tensors.head().unwrap());
    let limits = DecoderLimits { max_num_batched_tokens: room, max_logits_rows: room };
    let mut model = load_within(loader, &tensors, dtype, limits).unwrap();
    let (mut worst, mut alone) = (0.0f32, Vec::new());
    for (prompt, expected) in prompts.iter().zip(vectors) {
        let states = hidden(&mut model, &[prompt]).remove(0);
        worst = worst.max(distance(&pooled(pooling, head.as_ref(), &states), expected).0);
        alone.push(states);
    }
    println!("{name}, {dtype:?} cache: {worst:.2e}");
    assert!(worst < bound, "{name}, {dtype:?} cache: {worst:.2e}");
    // The first two and the last but one; then as many as fit into a step, in reverse order.
    for chosen in [vec![0, 1, 4], (0..prompts.len()).rev().collect::<Vec<usize>>()] {
        let mut left = room;
        let fits = |&i: &usize| left.checked_sub(prompts[i].len()).map(|now| left = now).is_some();
        let chosen: Vec<usize> = chosen.into_iter().filter(fits).collect();
        assert!(chosen.len() > 1);
        let together = hidden(&mut model, &chosen.iter().map(|&i| prompts[i]).collect::<Vec<_>>());
        for (&i, states) in chosen.iter().zip(&together) {
            let error = distance(&states.concat(), &alone[i].concat()).0;
            // States of single rows, which no mean evens out.
            assert!(
                if exact { error == 0.0 } else { error < 3.0 * bound },
                "{name}: sequence {i} of {chosen:?}: {error:.2e}"
            );
        }
    }
}

/// M1: each architecture with each pooling that it has, float weights. Rounding keys and values to f16 moves the
/// vectors of `modern_bert` by up to 2.4e-3.
#[test]
fn vectors_are_those_of_transformers() {
    for name in testdata::ENCODERS {
        for (dtype, bound) in [(KvCacheDtype::F32, 2e-5), (KvCacheDtype::F16, 3e-3)] {
            for isa in Isa::available() {
                let loader = CpuLoader::new(2, MAX_TOKENS).unwrap().with_isa(isa);
                check_encoder(loader, name, dtype, (bound, true), MAX_TOKENS);
            }
        }
    }
}

#[test]
fn vectors_of_long_prompts_are_those_of_transformers() {
    for (dtype, bound) in [(KvCacheDtype::F32, 2e-5), (KvCacheDtype::F16, 3e-3)] {
        let loader = CpuLoader::new(2, LONG).unwrap();
        check_encoder(loader, LONG_PROMPTS, dtype, (bound, true), LONG);
    }
}

/// The window ends at the right token on both sides: one token more or less changes the vectors.
#[test]
fn windows_end_where_they_should() {
    use crate::batch::GroupKind;
    let name = "embedding/modern_bert";
    let (file, z) = (testdata::file(&format!("{name}.gguf")), testdata::npz(name));
    let ends = z.i32("offsets");
    let tokens: Vec<u32> = z.i32("tokens")[..ends[1] as usize].iter().map(|&id| id as u32).collect();
    let expected = &z.f32("embeddings")[..z.shape("embeddings")[1]];
    for (wrong, is_near) in [(0i32, true), (1, false), (-1, false)] {
        let loader = CpuLoader::new(1, MAX_TOKENS).unwrap();
        let mut model = super::try_load_with(loader, &file, KvCacheDtype::F32, None, |spec| {
            for group in &mut spec.kv_groups {
                if let GroupKind::Bidirectional { reach } = &mut group.kind
                    && *reach < u32::MAX
                {
                    assert_eq!(*reach, 8);
                    *reach = reach.checked_add_signed(wrong).unwrap();
                }
            }
        })
        .unwrap();
        let states = hidden(&mut model, &[&tokens]).remove(0);
        let error = distance(&pooled(Pooling::Cls, None, &states), expected).0;
        assert_eq!(error < 2e-4, is_near, "{wrong}: {error:.2e}");
    }
}
