//! Tokens that a device drew, made sure of. A device sums weights as whole numbers, and the sampler in double
//! precision, so either knows the other's sums within bounds. The weights themselves have the same bits. Where the
//! token is the same however the sums are rounded, so it is in the row; where it might not be, the row has to be read.

use super::candidates::not_a_number;
use super::{Sampler, SequenceSampler, impossible};
use crate::Result;
use crate::selection::{Cut, Draw, Drawn, FRACTION_BITS, NO_TOKEN};

/// More than the rounding of sums of a million weights in double precision, in relation to all of them.
const SUM_ERROR: f64 = 1e-11;

/// Bounds of the sums of a row's weights.
struct Sums {
    largest: f32,
    draw: Draw,
    /// Error at most of each sum.
    error: f64,
}

impl Sampler {
    /// The token that a device drew; `None` when only the whole row can tell.
    ///
    /// # Errors
    /// `StepFailed` when the row holds a NaN, or leaves no token possible.
    pub(super) fn drawn(&self, drawn: &Drawn, sequence: &SequenceSampler) -> Result<Option<u32>> {
        let largest = drawn.largest;
        if largest.is_nan() {
            return Err(not_a_number());
        }
        if largest == f32::NEG_INFINITY {
            return Err(impossible());
        }
        // Infinite logits are equals that weights do not tell apart.
        if largest == f32::INFINITY {
            return Ok(None);
        }
        let total = sum_of(drawn.total);
        let error = total * SUM_ERROR + sum_of(self.vocab_size as u64);
        let sums = Sums { largest, draw: sequence.draw(0), error };
        let kept = if sums.draw.top_p < 1.0 { sums.at(&drawn.last_kept, sums.draw.top_p, total) } else { Some(total) };
        let found = kept.and_then(|kept| sums.at(&drawn.token, sums.draw.uniform, kept));
        Ok(found.map(|_| drawn.token.token))
    }
}

impl Sums {
    /// The sum of the weights with that of the cut's token, if `share` of the total is certainly reached there.
    fn at(&self, cut: &Cut, share: f64, total: f64) -> Option<f64> {
        if cut.token == NO_TOKEN {
            return None;
        }
        let before = sum_of(cut.before);
        let with = before + f64::from(self.draw.weight(cut.logit, self.largest));
        let mass = total - (1.0 - share) * total;
        // The mass is off by as much as the total at most.
        (before + 2.0 * self.error < mass && mass + 2.0 * self.error < with).then_some(with)
    }
}

fn sum_of(units: u64) -> f64 {
    units as f64 / (1u64 << FRACTION_BITS) as f64
}
