//! Changes to a row of logits before a token is picked: bias, forbidden tokens and penalties. They affect only the
//! tokens that a sequence lists. So a device gets this list, and changes those logits in place.
//!
//! The arithmetic exists once here and once in `alter_logits` of `kernels/sampling/sampling.hip`. Both use the same
//! operations in single precision. A device's row has the same bits as the host's, so the token is the same wherever it
//! is picked.

/// A token whose logit changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlteredToken {
    pub id: u32,
    /// The number added to the logit; minus infinity makes the token impossible.
    pub bias: f32,
    /// 0 if the token has not occurred. Otherwise one more than its number of generations: 1 if it is only in the
    /// prompt.
    pub seen: u32,
}

/// The penalties of a sequence on tokens that have occurred.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// Positive logits are divided by it, others multiplied.
    pub repetition: f32,
    /// Subtracted once for each time that the token was generated.
    pub frequency: f32,
    /// Subtracted if the token was generated.
    pub presence: f32,
}

/// All changes of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alteration<'a> {
    /// The tokens whose logits change, each once.
    pub tokens: &'a [AlteredToken],
    pub penalties: Penalties,
}

impl Penalties {
    /// Returns the token's changed logit. A NaN stays a NaN, since it is an error of the model that no mask may hide.
    pub fn apply(&self, token: AlteredToken, logit: f32) -> f32 {
        let forbidden = token.bias == f32::NEG_INFINITY && !logit.is_nan();
        let biased = if forbidden { token.bias } else { logit + token.bias };
        if token.seen == 0 {
            return biased;
        }
        let repeated = if biased > 0.0 { biased / self.repetition } else { biased * self.repetition };
        let presence = if token.seen > 1 { self.presence } else { 0.0 };
        repeated - self.frequency * (token.seen - 1) as f32 - presence
    }
}

impl Alteration<'_> {
    /// Changes the row in place. Tokens outside of it are skipped.
    pub fn apply(&self, row: &mut [f32]) {
        for &token in self.tokens {
            if let Some(logit) = row.get_mut(token.id as usize) {
                *logit = self.penalties.apply(token, *logit);
            }
        }
    }
}
