//! Log-probabilities of the model's own distribution.

use serde::{Deserialize, Serialize};

use super::Sampler;
use super::math::{exp_weights, sum};
use super::select::{key, key_id, top_k};
use crate::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    pub token_id: u32,
    pub logprob: f32,
    /// The rank; 1 is the most likely token.
    pub rank: u32,
}

/// Log-probabilities of one position: first the picked (or prompt) token, then the most likely ones, best first. The
/// picked token may appear twice.
pub type TokenLogprobs = Vec<TokenLogprob>;

impl Sampler {
    /// Returns the log-probability and rank of `token` in a row of logits, and of the `top` most likely tokens.
    ///
    /// # Errors
    /// `StepFailed` if the row holds a NaN; `Internal` for a token outside the vocabulary.
    pub fn logprobs(&mut self, row: &[f32], token: u32, top: usize) -> Result<TokenLogprobs> {
        let max = self.check(row)?;
        let Some(&chosen) = row.get(token as usize) else {
            return Err(Error::internal(format!("token {token} in a vocabulary of {}", row.len())));
        };
        self.weights.clear();
        exp_weights(row, max, 1.0, &mut self.weights);
        let log_total = sum(&self.weights).ln();
        let logprob = |logit: f32| {
            // Infinite logits have no difference; they share all probability.
            let above = if logit == max { 0.0 } else { f64::from(logit) - f64::from(max) };
            (above - log_total) as f32
        };
        let chosen_key = key(chosen, token);
        let better = (0u32..).zip(row).filter(|&(id, &x)| x >= chosen && key(x, id) > chosen_key).count();
        let mut out = Vec::with_capacity(top + 1);
        out.push(TokenLogprob { token_id: token, logprob: logprob(chosen), rank: better as u32 + 1 });
        top_k(row, top, &mut self.best);
        self.best.sort_unstable_by(|a, b| b.cmp(a));
        let best = (1u32..).zip(&self.best).map(|(rank, &key)| {
            let token_id = key_id(key);
            TokenLogprob { token_id, logprob: logprob(row[token_id as usize]), rank }
        });
        out.extend(best);
        Ok(out)
    }
}
