//! Random draws on a device. The device finds the token that the sampler would find in the whole row. It also returns
//! the sums that led to it, so that the sampler can verify it.
//!
//! The weight of a token is a single-precision number with the same bits on every device. A device sums weights as
//! integers in units of `2^-FRACTION_BITS`. The arithmetic exists once here and once in `kernels/sampling/draw.h`, with
//! the same operations.

use super::NO_TOKEN;

/// The fractional bits of a sum of weights. A weight is at most 1, so the sum of a million fits in 64 bits.
pub const FRACTION_BITS: u32 = 42;

/// Describes how a token is drawn from a row. A token weighs `exp((logit - largest) * per_logit)`. Tokens below `min_p`
/// are out of play, and so are all but the best `top_k`. Of the rest, the best that reach `top_p` of all weights are
/// kept. The drawn token is the kept one at which the weights, best token first (logit descending, id ascending), reach
/// a random share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// The inverse of the temperature, finite.
    pub per_logit: f32,
    pub min_p: f32,
    /// 0 keeps all tokens.
    pub top_k: u32,
    /// 1 keeps all tokens.
    pub top_p: f64,
    /// The random share, from 0 to 1.
    pub uniform: f64,
}

/// The token at which the sum of the weights, best token first, reaches some part of the total.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    /// `NO_TOKEN` if the device did not find it.
    pub token: u32,
    pub logit: f32,
    /// The sum of the weights of all better tokens in play, in units of `2^-FRACTION_BITS`, each rounded down.
    pub before: u64,
}

impl Cut {
    /// The value that a device returns if it did not find the token.
    pub const NONE: Self = Self { token: NO_TOKEN, logit: 0.0, before: 0 };
}

/// A token drawn from a row, and the sums that led to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// The largest logit; NaN if the row holds one.
    pub largest: f32,
    /// The sum of the weights of all tokens in play, in the units of `Cut::before`. It is 0 if the device did not find
    /// the last token that `top_k` keeps.
    pub total: u64,
    /// The last token that `top_p` keeps, if `top_p` is below 1.
    pub last_kept: Cut,
    pub token: Cut,
}

impl Draw {
    /// Returns the weight of a logit that is no larger than the largest.
    pub fn weight(&self, logit: f32, largest: f32) -> f32 {
        exp_nonpositive((logit - largest) * self.per_logit)
    }

    /// Sorts a row to find what a device should find in it.
    pub fn of_row(&self, row: &[f32]) -> Drawn {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let nothing = Drawn { largest, total: 0, last_kept: Cut::NONE, token: Cut::NONE };
        if row.iter().any(|x| x.is_nan()) {
            return Drawn { largest: f32::NAN, ..nothing };
        }
        if !largest.is_finite() {
            return nothing;
        }
        let weighed = (0..).zip(row).map(|(id, &logit)| (id, logit, self.weight(logit, largest)));
        let in_play = weighed.filter(|&(_, _, weight)| weight >= self.min_p && whole(weight) > 0);
        let mut tokens: Vec<(u32, f32, u64)> = in_play.map(|(id, logit, weight)| (id, logit, whole(weight))).collect();
        // Adding zero makes -0.0 and 0.0 equal. The sort is stable.
        tokens.sort_by(|a, b| (b.1 + 0.0).total_cmp(&(a.1 + 0.0)));
        if self.top_k > 0 {
            tokens.truncate(self.top_k as usize);
        }
        let total = tokens.iter().map(|token| token.2).sum();
        let cut_at = |part: u64| {
            let mut before = 0;
            let reached = tokens.iter().find(|token| {
                before += token.2;
                before >= part
            });
            reached.map_or((Cut::NONE, 0), |&(token, logit, weight)| {
                (Cut { token, logit, before: before - weight }, before)
            })
        };
        let (last_kept, kept) = if self.top_p < 1.0 { cut_at(part_of(total, self.top_p)) } else { (Cut::NONE, total) };
        Drawn { largest, total, last_kept, token: cut_at(part_of(kept, self.uniform)).0 }
    }
}

/// Returns a weight in units of `2^-FRACTION_BITS`, rounded down.
fn whole(weight: f32) -> u64 {
    (weight * (1u64 << FRACTION_BITS) as f32) as u64
}

/// Returns the part of a sum that is first reached at the token.
fn part_of(sum: u64, share: f64) -> u64 {
    ((sum as f64 * share) as u64 + 1).min(sum)
}

/// Returns `e^x` for `x <= 0`, within 2 units in the last place. Subnormal results become 0.
///
/// `e^x = 2^n * e^r` with `n = round(x / ln 2)` and `|r| <= ln 2 / 2`. There the Taylor series of `e^r` up to the
/// seventh power has an error below `0.347^8 / 8! < 6e-9`. The code is branch-free, so that it vectorizes. The function
/// of libm does not vectorize, and differs between machines.
#[inline]
pub fn exp_nonpositive(x: f32) -> f32 {
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer and leaves it in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts: the first has few enough bits for `n * LN2_HIGH` to be exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Below this the result is subnormal.
    const SMALLEST: f32 = -87.33;
    let clamped = if x > SMALLEST { x } else { SMALLEST };
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    if x > SMALLEST { p * f32::from_bits(exponent) } else { 0.0 }
}
