//! Finds the cut: the token at which the sum of the weights, best token first, reaches a given mass, without sorting
//! all tokens.
//!
//! The weights are summed up by bucket, an interval of logits. Only the bucket in which the running sum reaches the
//! mass can hold the cut, so its tokens alone are divided into finer buckets, until they are few enough to be sorted.

use std::cmp::Reverse;

use super::CHUNK;
use super::math::{row_min, sum};
use super::select::{key, key_logit};
use crate::selection::MAX_TOP;

/// Tokens that are sorted at once. A device brings back at most so many candidates, so that a cut among candidates sums
/// up in the same order as one among a row's tokens.
const FEW: usize = MAX_TOP;
/// The number of values of a byte, which holds a token's bucket.
const BUCKETS: usize = 256;
/// Sums of each bucket, taken in turn: an addition need not wait for the one before, even if all tokens share a bucket.
const LANES: usize = 8;

/// Intervals of logits, all of one width but the last, in which is everything below.
#[derive(Clone, Copy)]
struct Buckets {
    largest: f32,
    per_logit: f32,
}

impl Buckets {
    /// `range` below the `largest` logit is divided.
    fn new(largest: f32, range: f32) -> Self {
        // Finite and not zero: the largest logit is in the first bucket, whatever is far enough below it in another.
        let per_logit = BUCKETS as f32 / range.clamp(f32::MIN_POSITIVE, f32::MAX);
        Self { largest, per_logit: per_logit.min(f32::MAX) }
    }

    /// A better token is never in a later bucket: every operation is monotonic, with its rounding.
    #[inline]
    fn place(self, logit: f32) -> u8 {
        const LAST: f32 = (BUCKETS - 1) as f32;
        // Added to a small number, 2^23 rounds it and leaves it in the low mantissa bits. Unlike a conversion, that
        // vectorises.
        const ROUND: f32 = 8_388_608.0;
        let place = (self.largest - logit) * self.per_logit;
        // All tokens are in the last bucket when the largest logit is infinite.
        let place = if place < LAST { place } else { LAST };
        (place + ROUND).to_bits() as u8
    }
}

/// Reusable memory.
#[derive(Debug, Default)]
pub(super) struct CutScratch {
    /// The bucket of every token.
    places: Vec<u8>,
    /// Tokens among which the cut is, by ascending id.
    tokens: Vec<(u64, f32)>,
}

impl CutScratch {
    /// Key of the token at which the weights of a row, best token first, add up to `share` of their total. `range`,
    /// from the `largest` logit down, is where the cut is looked for most closely.
    pub(super) fn cut_row(
        &mut self,
        logits: &[f32],
        weights: &[f32],
        share: f64,
        largest: f32,
        range: f32,
    ) -> Option<u64> {
        self.tokens.clear();
        if logits.len() <= FEW {
            let tokens = (0u32..).zip(logits).map(|(id, &logit)| key(logit, id)).zip(weights.iter().copied());
            self.tokens.extend(tokens.filter(|&(_, weight)| weight > 0.0));
            return self.cut(mass(share, sum(weights)));
        }
        let buckets = Buckets::new(largest, range.min(largest - row_min(logits)));
        self.places.clear();
        self.places.extend(logits.iter().map(|&logit| buckets.place(logit)));
        let sums = self.sum_up(weights.iter().copied());
        let (place, mass) = reach(&sums, mass(share, sums.iter().sum()))?;
        for (chunk, start) in self.places.chunks(CHUNK).zip((0..).step_by(CHUNK)) {
            if chunk.iter().fold(0, |any, &x| any | u8::from(x == place)) != 0 {
                let ids = (start..).zip(chunk).filter(|&(id, &x)| x == place && weights[id] > 0.0);
                self.tokens.extend(ids.map(|(id, _)| (key(logits[id], id as u32), weights[id])));
            }
        }
        self.cut(mass)
    }

    /// Does the same as `cut_row` for the tokens named by `keys`.
    pub(super) fn cut_keys(&mut self, keys: &[u64], weights: &[f32], share: f64) -> Option<u64> {
        self.tokens.clear();
        let tokens = keys.iter().copied().zip(weights.iter().copied());
        self.tokens.extend(tokens.filter(|&(_, weight)| weight > 0.0));
        self.cut(mass(share, sum(weights)))
    }

    /// Key of the one of `tokens` at which they reach `mass`; of the last if rounding leaves them below it.
    fn cut(&mut self, mut mass: f64) -> Option<u64> {
        while self.tokens.len() > FEW {
            let before = self.tokens.len();
            let (best, worst) = self.tokens.iter().fold((0, u64::MAX), |(b, w), t| (t.0.max(b), t.0.min(w)));
            let buckets = Buckets::new(key_logit(best), key_logit(best) - key_logit(worst));
            self.places.clear();
            self.places.extend(self.tokens.iter().map(|&(key, _)| buckets.place(key_logit(key))));
            let sums = self.sum_up(self.tokens.iter().map(|&(_, weight)| weight));
            let (place, left) = reach(&sums, mass)?;
            mass = left;
            let mut places = self.places.iter();
            self.tokens.retain(|_| places.next() == Some(&place));
            if self.tokens.len() == before {
                // Equal logits: sorted by their ids already.
                break;
            }
        }
        self.tokens.sort_unstable_by_key(|&(key, _)| Reverse(key));
        let reached = self.tokens.iter().find(|&&(_, weight)| {
            mass -= f64::from(weight);
            mass <= 0.0
        });
        reached.or(self.tokens.last()).map(|&(key, _)| key)
    }

    /// Sums of the weights in each bucket.
    fn sum_up(&self, weights: impl Iterator<Item = f32>) -> [f64; BUCKETS] {
        let mut lanes = [[0.0; LANES]; BUCKETS];
        for (i, (&place, weight)) in self.places.iter().zip(weights).enumerate() {
            lanes[usize::from(place)][i % LANES] += f64::from(weight);
        }
        lanes.map(|lanes| lanes.iter().sum())
    }
}

/// The mass at which `share` of the total is reached.
fn mass(share: f64, total: f64) -> f64 {
    total - (1.0 - share) * total
}

/// The bucket in which the running sum reaches `mass` (the last with any weight if none does), and what of the mass is
/// left for it.
fn reach(sums: &[f64; BUCKETS], mass: f64) -> Option<(u8, f64)> {
    let mut left = mass;
    let mut reached = None;
    for (place, &sum) in (0..=u8::MAX).zip(sums) {
        if sum > 0.0 {
            reached = Some((place, left));
            left -= sum;
            if left <= 0.0 {
                break;
            }
        }
    }
    reached
}
