//! Expected values come from a float64 reference that sorts the whole vocabulary.

mod candidates;
mod cut;
mod draws;
mod edges;
mod filters;
mod logprobs;
mod math;
mod reference;

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::SequenceSampler;
use crate::config::SamplingParams;

/// The largest vocabulary in use (Qwen).
const LARGE_VOCAB: usize = 151_936;

/// Returns logits distributed like a language model's: bell-shaped, with a few outliers.
fn logits(vocab_size: usize, seed: u64) -> Vec<f32> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = move || (generator.next_u32() >> 8) as f32 / (1 << 24) as f32;
    (0..vocab_size)
        .map(|_| {
            let bell: f32 = (0..6).map(|_| uniform()).sum::<f32>() - 3.0;
            bell * 4.0 + if uniform() < 0.01 { 8.0 * uniform() } else { 0.0 }
        })
        .collect()
}

fn sequence(params: SamplingParams, seed: u64) -> SequenceSampler {
    SequenceSampler::new(Arc::new(params), seed, 0, &[], Arc::from([]))
}
