//! Changes to a row of logits before a token is chosen of it: bias, forbidden tokens and penalties. They touch only the
//! tokens that a sequence names, so a device is sent a list of these, and their logits change in place.
//!
//! The arithmetic is in one place here, and in `alter_logits` of `kernels/sampling.hip`, operation by operation in
//! single precision: a device's row has the same bits as the host's, so the token is the same wherever it is chosen.

/// A token whose logit changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlteredToken {
    pub id: u32,
    /// Number added to the logit; minus infinity makes the token impossible.
    pub bias: f32,
    /// 0: the token has not come yet. Else one more than how often it was generated: 1 for a token of the prompt alone.
    pub seen: u32,
}

/// The penalties of a sequence on the tokens that have come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// Logits above 0 are divided by it, others multiplied.
    pub repetition: f32,
    /// Subtracted once for each time that the token was generated.
    pub frequency: f32,
    /// Subtracted if the token was generated.
    pub presence: f32,
}

/// All that changes one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alteration<'a> {
    /// The tokens whose logits change, none twice.
    pub tokens: &'a [AlteredToken],
    pub penalties: Penalties,
}

impl Penalties {
    /// The token's logit, changed. A NaN stays one: it is an error of the model that no mask may hide.
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
    /// Changes the row, in place. Tokens outside of it are passed over.
    pub fn apply(&self, row: &mut [f32]) {
        for &token in self.tokens {
            if let Some(logit) = row.get_mut(token.id as usize) {
                *logit = self.penalties.apply(token, *logit);
            }
        }
    }
}
