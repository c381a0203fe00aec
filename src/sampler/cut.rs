//! Finds the cut: the token at which the sum of the weights, best token first, reaches a given mass. It does so without
//! sorting all tokens.
//!
//! The weights are summed by bucket, an interval of logits. Only the bucket in which the running sum reaches the mass
//! can hold the cut. So only its tokens are divided into finer buckets, until they are few enough to be sorted.

use std::cmp::Reverse;

use super::CHUNK;
use super::math::{row_min, sum};
use super::select::{key, key_logit};
use crate::selection::MAX_TOP;

/// The number of tokens that are sorted at once. A device returns at most this many candidates. So a cut among
/// candidates sums up in the same order as one among a row's tokens.
const FEW: usize = MAX_TOP;
/// The number of values of a byte, which holds a token's bucket.
const BUCKETS: usize = 256;
/// The number of sums per bucket, used in turn. An addition need not wait for the previous one, even within one bucket.
const LANES: usize = 8;

/// Intervals of logits of equal width. The last one also holds everything below.
#[derive(Clone, Copy)]
struct Buckets {
    largest: f32,
    per_logit: f32,
}

impl Buckets {
    /// Divides `range` below the `largest` logit.
    fn new(largest: f32, range: f32) -> Self {
        // The factor is finite and not zero. So the largest logit is in the first bucket, and any sufficiently lower
        // one is in another.
        let per_logit = BUCKETS as f32 / range.clamp(f32::MIN_POSITIVE, f32::MAX);
        Self { largest, per_logit: per_logit.min(f32::MAX) }
    }

    /// A better token is never in a later bucket, since every operation is monotonic including its rounding.
    #[inline]
    fn place(self, logit: f32) -> u8 {
        const LAST: f32 = (BUCKETS - 1) as f32;
        // Adding 2^23 rounds a small number and leaves it in the low mantissa bits. Unlike a conversion, this
        // vectorizes.
        const ROUND: f32 = 8_388_608.0;
        let place = (self.largest - logit) * self.per_logit;
        // All tokens are in the last bucket if the largest logit is infinite.
        let place = if place < LAST { place } else { LAST };
        (place + ROUND).to_bits() as u8
    }
}

/// Reusable memory.
#[derive(Debug, Default)]
pub(super) struct CutScratch {
    /// The bucket of each token.
    places: Vec<u8>,
    /// The tokens that may be the cut, by ascending id.
    tokens: Vec<(u64, f32)>,
}

impl CutScratch {
    /// Returns the key of the token at which the weights of a row, best token first, add up to `share` of their total.
    /// The buckets are finest within `range` below the `largest` logit.
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

    /// Does the same as `cut_row` for the tokens in `keys`.
    pub(super) fn cut_keys(&mut self, keys: &[u64], weights: &[f32], share: f64) -> Option<u64> {
        self.tokens.clear();
        let tokens = keys.iter().copied().zip(weights.iter().copied());
        self.tokens.extend(tokens.filter(|&(_, weight)| weight > 0.0));
        self.cut(mass(share, sum(weights)))
    }

    /// Returns the key of the token at which `tokens` reach `mass`, or of the last one if rounding leaves them below
    /// it.
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
                // The logits are equal, so the tokens are already sorted by id.
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

    /// Returns the sum of the weights in each bucket.
    fn sum_up(&self, weights: impl Iterator<Item = f32>) -> [f64; BUCKETS] {
        let mut lanes = [[0.0; LANES]; BUCKETS];
        for (i, (&place, weight)) in self.places.iter().zip(weights).enumerate() {
            lanes[usize::from(place)][i % LANES] += f64::from(weight);
        }
        lanes.map(|lanes| lanes.iter().sum())
    }
}

/// Returns the mass at which `share` of the total is reached.
fn mass(share: f64, total: f64) -> f64 {
    total - (1.0 - share) * total
}

/// Returns the bucket in which the running sum reaches `mass`, and the rest of the mass there. If none reaches it,
/// returns the last bucket with any weight.
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
