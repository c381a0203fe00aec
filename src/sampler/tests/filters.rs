use std::sync::Arc;

use proptest::prelude::*;

use super::reference::{Reference, inverse};
use super::{LARGE_VOCAB, logits};
use crate::config::SamplingParams;
use crate::{Sampler, SequenceSampler};

/// Draws `steps` tokens and compares each with the reference's for the same random number.
fn compare(row: &[f32], params: &SamplingParams, prompt: &[u32], end_tokens: &[u32], steps: usize) {
    let mut sampler = Sampler::new(row.len());
    let mut sequence = SequenceSampler::new(Arc::new(params.clone()), 7, 0, prompt, Arc::from(end_tokens));
    let mut output = Vec::new();
    for step in 0..steps {
        let reference = Reference { params, prompt, output: &output, end_tokens };
        let distribution = reference.distribution(row);
        let token = sampler.sample(row, &sequence).unwrap();
        assert!(distribution[token as usize] > 0.0, "step {step}: token {token} was filtered out; {params:?}");
        let (expected, distance) = inverse(&distribution, sequence.uniform(0));
        // Rounding in single precision may make a difference if the random number is at a border.
        assert!(token == expected || distance < 1e-5, "step {step}: {token} for {expected}; {params:?}");
        sequence.accept(token);
        output.push(token);
    }
}

/// S14, G21: tests each filter alone, and all together, with the vocabulary of Qwen.
#[test]
fn filters_at_a_large_vocabulary() {
    let row = logits(LARGE_VOCAB, 1);
    let base = SamplingParams { temperature: 0.8, ..Default::default() };
    let cases = [
        SamplingParams { temperature: 0.0, ..base.clone() },
        base.clone(),
        SamplingParams { temperature: 3.0, ..base.clone() },
        SamplingParams { top_k: 1, ..base.clone() },
        SamplingParams { top_k: 50, ..base.clone() },
        SamplingParams { top_k: LARGE_VOCAB - 1, ..base.clone() },
        SamplingParams { top_k: LARGE_VOCAB + 5, ..base.clone() },
        SamplingParams { top_p: 0.1, ..base.clone() },
        SamplingParams { top_p: 0.95, ..base.clone() },
        SamplingParams { top_p: 0.9999, temperature: 5.0, ..base.clone() },
        SamplingParams { min_p: 0.03, ..base.clone() },
        SamplingParams { top_k: 40, top_p: 0.9, min_p: 0.02, ..base },
    ];
    for params in cases {
        compare(&row, &params, &[], &[], 4);
    }
}

/// A flat distribution is the worst case of top-p, since no token is negligible.
#[test]
fn top_p_of_equal_logits_keeps_the_lowest_ids() {
    let row = vec![0.5f32; 1000];
    let params = SamplingParams { top_p: 0.125, ..Default::default() };
    let mut sampler = Sampler::new(row.len());
    let mut sequence = SequenceSampler::new(Arc::new(params), 3, 0, &[], Arc::from([]));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..3000 {
        let token = sampler.sample(&row, &sequence).unwrap();
        seen.insert(token);
        sequence.accept(token);
    }
    assert_eq!(seen, (0..125).collect());
}

#[test]
fn equal_logits_at_the_edge_of_top_k_keep_the_lowest_ids() {
    let mut row = vec![-1.0f32; 500];
    for id in [17, 80, 200, 333, 499] {
        row[id] = 2.0;
    }
    row[90] = 3.0;
    let params = SamplingParams { top_k: 3, temperature: 10.0, ..Default::default() };
    let mut sampler = Sampler::new(row.len());
    let mut sequence = SequenceSampler::new(Arc::new(params), 3, 0, &[], Arc::from([]));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..300 {
        let token = sampler.sample(&row, &sequence).unwrap();
        seen.insert(token);
        sequence.accept(token);
    }
    assert_eq!(seen, [17, 80, 90].into());
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let shape = (0usize..40, prop_oneof![Just(1.0f32), 0.01f32..1.0], prop_oneof![Just(0.0f32), 0.0f32..0.5]);
    let penalties = (prop_oneof![Just(1.0f32), 0.5f32..2.0], -2.0f32..2.0, -2.0f32..2.0);
    let rest =
        (prop_oneof![Just(0.0f32), 0.05f32..4.0], prop::collection::vec((0u32..60, -5.0f32..5.0), 0..4), 0usize..5);
    (shape, penalties, rest).prop_map(|((top_k, top_p, min_p), (repetition, presence, frequency), rest)| {
        let (temperature, logit_bias, min_tokens) = rest;
        SamplingParams {
            top_k,
            top_p,
            min_p,
            repetition_penalty: repetition,
            presence_penalty: presence,
            frequency_penalty: frequency,
            temperature,
            logit_bias,
            min_tokens,
            ..Default::default()
        }
    })
}

proptest! {
    /// S14: compares any combination of settings, including penalties and masks, with the reference.
    #[test]
    fn any_settings_follow_the_reference(
        params in any_params(),
        seed in any::<u64>(),
        vocab_size in 60usize..200,
        prompt in prop::collection::vec(0u32..60, 0..8),
        end_tokens in prop::collection::vec(0u32..60, 0..3),
    ) {
        compare(&logits(vocab_size, seed), &params, &prompt, &end_tokens, 6);
    }
}
