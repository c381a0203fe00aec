//! Verifies tokens that a device drew. A device sums weights in integers, and the sampler in double precision, so each
//! knows the other's sums only within bounds. The weights themselves have the same bits. If the token is the same for
//! every rounding of the sums, it is the row's token. Otherwise the row has to be read.

use super::candidates::not_a_number;
use super::{Sampler, SequenceSampler, impossible};
use crate::Result;
use crate::selection::{Cut, Draw, Drawn, FRACTION_BITS, NO_TOKEN};

/// A bound on the relative rounding error of a sum of a million weights in double precision.
const SUM_ERROR: f64 = 1e-11;

/// Bounds of the sums of a row's weights.
struct Sums {
    largest: f32,
    draw: Draw,
    /// The largest error of each sum.
    error: f64,
}

impl Sampler {
    /// Returns the token that a device drew; `None` if the whole row is needed.
    ///
    /// # Errors
    /// `StepFailed` if the row holds a NaN, or leaves no token possible.
    pub(super) fn drawn(&self, drawn: &Drawn, sequence: &SequenceSampler) -> Result<Option<u32>> {
        let largest = drawn.largest;
        if largest.is_nan() {
            return Err(not_a_number());
        }
        if largest == f32::NEG_INFINITY {
            return Err(impossible());
        }
        // Weights cannot tell infinite logits apart.
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
    /// Returns the sum of the weights up to and including the cut's token, if `share` of the total is certainly reached
    /// there.
    fn at(&self, cut: &Cut, share: f64, total: f64) -> Option<f64> {
        if cut.token == NO_TOKEN {
            return None;
        }
        let before = sum_of(cut.before);
        let with = before + f64::from(self.draw.weight(cut.logit, self.largest));
        let mass = total - (1.0 - share) * total;
        // The error of the mass is at most that of the total.
        (before + 2.0 * self.error < mass && mass + 2.0 * self.error < with).then_some(with)
    }
}

fn sum_of(units: u64) -> f64 {
    units as f64 / (1u64 << FRACTION_BITS) as f64
}
