//! Compares the cut of a row with a full sort.

use std::cmp::Reverse;

use proptest::prelude::*;

use super::{LARGE_VOCAB, logits};
use crate::cut::CutScratch;
use crate::math::{exp_weights, row_max};
use crate::select::key;

const SHARES: [f64; 7] = [0.0, 1e-9, 0.3, 0.5, 0.9, 0.9999, 1.0 - f64::EPSILON / 2.0];

/// Every cut is where a full sort puts it, unless the share is closer to a border than the accuracy of sums.
fn compare(scratch: &mut CutScratch, row: &[f32], temperature: f32, range: f32) {
    let max = row_max(row).0;
    let mut weights = Vec::new();
    exp_weights(row, max, temperature, &mut weights);
    let keys: Vec<u64> = (0u32..).zip(row).map(|(id, &logit)| key(logit, id)).collect();
    let mut order: Vec<(u64, f64)> =
        keys.iter().copied().zip(weights.iter().copied().map(f64::from)).filter(|&(_, weight)| weight > 0.0).collect();
    order.sort_by_key(|&(key, _)| Reverse(key));
    let total: f64 = order.iter().map(|&(_, weight)| weight).sum();
    for share in SHARES {
        let mass = share * total;
        for cut in [
            scratch.cut_row(row, &weights, share, max, range).unwrap(),
            scratch.cut_keys(&keys, &weights, share).unwrap(),
        ] {
            let place = order.iter().position(|&(key, _)| key == cut).expect("a token without weight");
            let before: f64 = order[..place].iter().map(|&(_, weight)| weight).sum();
            let rounding = 1e-12 * total;
            let reached = before + order[place].1;
            assert!(before <= mass + rounding && reached >= mass - rounding, "{before}..{reached} for {mass}");
        }
    }
}

/// Tests shapes that suit buckets and shapes that do not.
#[test]
fn rows_of_every_shape() {
    let mut scratch = CutScratch::default();
    let bell = logits(LARGE_VOCAB, 2);
    let powers = |base: f32| (0..5000).map(|i| -base.powi(i % 60)).collect::<Vec<_>>();
    let mut infinite = logits(3000, 1);
    infinite[..1000].fill(f32::INFINITY);
    let mut masked = logits(3000, 1);
    masked[500..].fill(f32::NEG_INFINITY);
    let rows = [
        (bell.clone(), 1.0),
        (bell.clone(), 0.01),
        (bell.iter().map(|x| x * 1e-3).collect(), 1.0),
        (bell, 1e30),
        (vec![0.5; 5000], 1.0),
        (powers(3.0), 1e20),
        (powers(0.3), 1.0),
        ((0..5000u32).map(|i| f32::from_bits(1 + i % 7)).collect(), 1.0),
        ((0..5000).map(|i| if i % 2 == 0 { f32::MAX } else { f32::MIN }).collect(), f32::MAX),
        (infinite, 1.0),
        (masked, 1.0),
        (logits(256, 3), 1.0),
        (logits(257, 3), 1.0),
        (vec![1.0], 1.0),
    ];
    for (row, temperature) in rows {
        for range in [0.0, 1e-3 * temperature, 13.0 * temperature, f32::INFINITY] {
            compare(&mut scratch, &row, temperature, range);
        }
    }
}

proptest! {
    #[test]
    fn any_row(
        seed in any::<u64>(),
        vocab_size in 1usize..3000,
        spread in prop_oneof![Just(0.0f32), 0.001f32..30.0],
        steps_of in prop_oneof![Just(0.0f32), Just(0.5f32)],
        range in 0.0f32..100.0,
    ) {
        let row = logits(vocab_size, seed).into_iter().map(|x| x * spread);
        let rounded = row.map(|x| if steps_of > 0.0 { (x / steps_of).round() * steps_of } else { x });
        compare(&mut CutScratch::default(), &rounded.collect::<Vec<_>>(), 1.0, range);
    }
}
