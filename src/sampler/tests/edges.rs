use std::sync::Arc;

use super::{LARGE_VOCAB, logits, sequence};
use crate::Error;
use crate::config::SamplingParams;
use crate::{Sampler, SequenceSampler};

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..Default::default() }
}

#[test]
fn greedy_takes_the_lowest_id_of_equal_logits() {
    for (row, expected) in [
        (vec![1.0f32, 3.0, 3.0, -2.0], 1),
        (vec![-0.0, 0.0, -1.0], 0),
        (vec![f32::NEG_INFINITY, -3.0e38, f32::NEG_INFINITY], 1),
        (vec![f32::INFINITY, f32::INFINITY, 0.0], 0),
        (vec![5.0], 0),
    ] {
        assert_eq!(Sampler::new(row.len()).sample(&row, &sequence(greedy(), 0)).unwrap(), expected, "{row:?}");
    }
    let mut row = logits(LARGE_VOCAB, 2);
    row[151_935] = 100.0;
    assert_eq!(Sampler::new(LARGE_VOCAB).sample(&row, &sequence(greedy(), 0)).unwrap(), 151_935);
}

/// A NaN anywhere, even under a mask or outside top-k, is an error and never a token.
#[test]
fn nan_is_an_error() {
    for at in [0, 15, 16, 63, 99] {
        let mut row = logits(100, 3);
        row[at] = f32::NAN;
        let masked = SamplingParams { min_tokens: 5, ..greedy() };
        let cases = [
            sequence(greedy(), 0),
            sequence(SamplingParams::default(), 0),
            sequence(SamplingParams { top_k: 3, ..Default::default() }, 0),
            SequenceSampler::new(Arc::new(masked), 0, 0, &[], Arc::from([at as u32])),
        ];
        for case in &cases {
            let error = Sampler::new(100).sample(&row, case).unwrap_err();
            assert!(matches!(&error, Error::StepFailed { problem } if problem.contains(&at.to_string())), "{error}");
            assert!(Sampler::new(100).logprobs(&row, 1, 2).is_err());
        }
    }
}

#[test]
fn infinite_logits() {
    let mut row = logits(100, 3);
    row[40] = f32::INFINITY;
    row[60] = f32::INFINITY;
    row[5] = f32::NEG_INFINITY;
    let cases = [
        SamplingParams::default(),
        SamplingParams { top_p: 0.9, top_k: 7, min_p: 0.1, ..Default::default() },
        SamplingParams { temperature: 1e-30, ..Default::default() },
    ];
    for params in cases {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            seen.insert(Sampler::new(100).sample(&row, &sequence(params.clone(), seed)).unwrap());
        }
        assert_eq!(seen, [40, 60].into(), "{params:?}");
    }
}

#[test]
fn a_row_without_a_possible_token_is_an_error() {
    let impossible = vec![f32::NEG_INFINITY; 20];
    for params in [greedy(), SamplingParams::default(), SamplingParams { top_k: 2, top_p: 0.5, ..Default::default() }] {
        assert!(matches!(
            Sampler::new(20).sample(&impossible, &sequence(params.clone(), 0)),
            Err(Error::StepFailed { .. })
        ));
        // Every remaining token is masked until `min_tokens`.
        let mut row = impossible.clone();
        row[3] = 1.0;
        let params = SamplingParams { min_tokens: 1, ..params };
        let masked = SequenceSampler::new(Arc::new(params), 0, 0, &[], Arc::from([3]));
        assert!(matches!(Sampler::new(20).sample(&row, &masked), Err(Error::StepFailed { .. })));
    }
}

#[test]
fn a_row_of_the_wrong_length_is_an_error() {
    assert!(matches!(Sampler::new(20).sample(&[0.0; 19], &sequence(greedy(), 0)), Err(Error::StepFailed { .. })));
}

/// Temperatures from the smallest to huge ones cause no overflow, and the limit is greedy.
#[test]
fn extreme_temperatures() {
    let row = logits(500, 8);
    let best = Sampler::new(500).sample(&row, &sequence(greedy(), 0)).unwrap();
    for temperature in [f32::MIN_POSITIVE, 1e-20, 1e-4] {
        for seed in 0..20 {
            let params = SamplingParams { temperature, ..Default::default() };
            assert_eq!(Sampler::new(500).sample(&row, &sequence(params, seed)).unwrap(), best);
        }
    }
    let params = SamplingParams { temperature: 1e30, ..Default::default() };
    let drawn: Vec<u32> =
        (0..50).map(|seed| Sampler::new(500).sample(&row, &sequence(params.clone(), seed)).unwrap()).collect();
    assert!(drawn.iter().any(|token| *token != drawn[0]));
}

/// End tokens are impossible before `min_tokens`, and possible right after.
#[test]
fn min_tokens_masks_the_end() {
    let row = [0.0f32, 9.0, 1.0, 8.0];
    let params = SamplingParams { min_tokens: 2, ..greedy() };
    let mut sequence = SequenceSampler::new(Arc::new(params), 0, 0, &[], Arc::from([1, 3]));
    let mut sampler = Sampler::new(4);
    let tokens: Vec<u32> = (0..3)
        .map(|_| {
            let token = sampler.sample(&row, &sequence).unwrap();
            sequence.accept(token);
            token
        })
        .collect();
    assert_eq!(tokens, [2, 2, 1]);
}

/// S14: settings of one sequence do not leak into the next one sampled.
#[test]
fn two_sequences_with_different_settings() {
    let row = logits(400, 6);
    let biased = SamplingParams { logit_bias: vec![(7, 1e6)], ..greedy() };
    let mut sampler = Sampler::new(400);
    let plain = sampler.sample(&row, &sequence(greedy(), 0)).unwrap();
    assert_ne!(plain, 7);
    assert_eq!(sampler.sample(&row, &sequence(biased, 0)).unwrap(), 7);
    assert_eq!(sampler.sample(&row, &sequence(greedy(), 0)).unwrap(), plain);
}
