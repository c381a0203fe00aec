use std::sync::Arc;

use super::reference::Reference;
use super::{logits, sequence};
use crate::config::SamplingParams;
use crate::{Sampler, SequenceSampler};

/// Returns Pearson's statistic of `draws` draws against the reference, and its degrees of freedom. Tokens with fewer
/// than ten expected draws form one class.
fn chi_square(row: &[f32], params: &SamplingParams, draws: usize) -> (f64, f64) {
    let reference = Reference { params, prompt: &[], output: &[], end_tokens: &[] };
    let distribution = reference.distribution(row);
    let mut sampler = Sampler::new(row.len());
    let mut counts = vec![0f64; row.len()];
    for seed in 0..draws as u64 {
        counts[sampler.sample(row, &sequence(params.clone(), seed)).unwrap() as usize] += 1.0;
    }
    let (mut statistic, mut classes, mut rare) = (0.0, 0.0, (0.0, 0.0));
    for (&count, &p) in counts.iter().zip(&distribution) {
        let expected = p * draws as f64;
        if expected < 10.0 {
            rare = (rare.0 + count, rare.1 + expected);
        } else {
            statistic += (count - expected).powi(2) / expected;
            classes += 1.0;
        }
    }
    if rare.1 > 0.0 {
        statistic += (rare.0 - rare.1).powi(2) / rare.1;
        classes += 1.0;
    }
    (statistic, classes - 1.0)
}

/// S14, G21: draws follow the distribution. Seeds are fixed, so the result is, too. The limit is five standard
/// deviations of the chi-square distribution.
#[test]
fn draws_follow_the_distribution() {
    let row = logits(300, 11);
    for params in [
        SamplingParams::default(),
        SamplingParams { temperature: 2.0, ..Default::default() },
        SamplingParams { temperature: 1.5, top_k: 20, ..Default::default() },
        SamplingParams { temperature: 1.5, top_p: 0.8, ..Default::default() },
        SamplingParams { temperature: 1.5, min_p: 0.05, ..Default::default() },
    ] {
        let (statistic, freedom) = chi_square(&row, &params, 20_000);
        assert!(freedom >= 3.0, "{freedom} classes say nothing");
        assert!(statistic < freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0, "{statistic} at {freedom}: {params:?}");
    }
}

/// The check must fail for a distribution whose temperature is off by 3 %, or it would prove nothing.
#[test]
fn the_chi_square_check_can_fail() {
    let row = logits(300, 11);
    let (right, freedom) = chi_square(&row, &SamplingParams::default(), 20_000);
    let scaled: Vec<f32> = row.iter().map(|x| x * 1.1).collect();
    let reference = SamplingParams::default();
    let distribution =
        Reference { params: &reference, prompt: &[], output: &[], end_tokens: &[] }.distribution(&scaled);
    let mut sampler = Sampler::new(row.len());
    let mut counts = vec![0f64; row.len()];
    for seed in 0..20_000 {
        counts[sampler.sample(&row, &sequence(reference.clone(), seed)).unwrap() as usize] += 1.0;
    }
    let wrong: f64 = counts
        .iter()
        .zip(&distribution)
        .filter(|&(_, &p)| p * 20_000.0 >= 10.0)
        .map(|(&count, &p)| (count - p * 20_000.0).powi(2) / (p * 20_000.0))
        .sum();
    assert!(right < freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0);
    assert!(wrong > freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0, "{wrong} at {freedom}");
}

/// S14: the seed, the sequence's index and the position in the text all matter, and nothing else does.
#[test]
fn randomness_is_a_function_of_seed_index_and_place() {
    let run = |seed: u64, index: u32, others: usize| -> Vec<u32> {
        let row = logits(1000, 5);
        let params = Arc::new(SamplingParams { temperature: 3.0, ..Default::default() });
        let mut sampler = Sampler::new(row.len());
        let mut sequence = SequenceSampler::new(params.clone(), seed, index, &[], Arc::from([]));
        (0..32)
            .map(|_| {
                // Between the draws, the same sampler samples other sequences.
                for other in 0..others {
                    let noise = SequenceSampler::new(params.clone(), 1000 + other as u64, 0, &[], Arc::from([]));
                    sampler.sample(&row, &noise).unwrap();
                }
                let token = sampler.sample(&row, &sequence).unwrap();
                sequence.accept(token);
                token
            })
            .collect()
    };
    let alone = run(42, 0, 0);
    assert_eq!(alone, run(42, 0, 3));
    assert_ne!(alone, run(43, 0, 0));
    assert_ne!(alone, run(42, 1, 0));
    assert!(alone.iter().any(|token| *token != alone[0]));
}

#[test]
fn a_sibling_differs_only_in_its_random_stream() {
    let parent = sequence(SamplingParams { temperature: 3.0, ..Default::default() }, 9);
    let child = parent.sibling(4);
    let fresh = SequenceSampler::new(Arc::new(parent.params().clone()), 9, 4, &[], Arc::from([]));
    assert_eq!(child.uniform(0), fresh.uniform(0));
    assert_ne!(child.uniform(0), parent.uniform(0));
}
