//! Samples from the part of a row that a device selected. The result is always the token that the whole row would give.
//!
//! The best few tokens are enough if no others are in play. Every later number has the same inputs and order as for a
//! whole row, so the draw is identical to the last bit. If more tokens are in play, the device draws, and `drawn`
//! verifies the result. If neither is certain, the row has to be read.

use std::slice::from_ref;

use super::math::per_logit;
use super::select::{key, key_id};
use super::{Sampler, SequenceSampler, TokenLogprob, TokenLogprobs, failed, impossible};
use crate::config::MAX_LOGPROBS;
use crate::selection::{BestTokens, Draw, MAX_TOP, NO_TOKEN, Ranked, SamplingRequest, Selected, TokenMask, Wanted};
use crate::{Error, Result};

// A device always returns enough tokens for the log-probabilities.
const _: () = assert!(MAX_LOGPROBS <= MAX_TOP);

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Picked {
    pub token: u32,
    /// Log-probabilities, if they are requested.
    pub logprobs: Option<TokenLogprobs>,
}

impl SequenceSampler {
    /// Returns what the sampling of a token needs of its row of logits, `ahead` tokens after the next one. With a mask,
    /// only its tokens are allowed.
    pub fn sampling_request<'a>(
        &'a self,
        vocab_size: usize,
        ahead: usize,
        mask: Option<&'a TokenMask>,
    ) -> SamplingRequest<'a> {
        let own = !self.alters_logits() && mask.is_none();
        let wanted = self.wanted(vocab_size, ahead, own);
        let unaltered = match (self.params().logprobs, wanted) {
            (None, _) => 0,
            (Some(_), Wanted::Argmax) if own => 0,
            (Some(_), Wanted::Top { .. }) if own => 0,
            // The host picks the token, which is nearly always among the best tokens of the model's own row.
            (Some(_), Wanted::Top { .. }) => MAX_TOP,
            // The device returns the picked token's rank; the logarithm of the sum comes with the best tokens.
            (Some(top), _) => top.max(1),
        };
        let unaltered = unaltered.min(MAX_TOP).min(vocab_size) as u32;
        SamplingRequest { wanted, alteration: self.alteration(), mask, unaltered }
    }

    /// `own`: true if the token is picked from the row as the model left it.
    fn wanted(&self, vocab_size: usize, ahead: usize, own: bool) -> Wanted {
        let p = self.params();
        // The log-probabilities are computed from the row as the model left it.
        let logprobs = if own { p.logprobs.unwrap_or(0) } else { 0 };
        let candidates = match (p.temperature == 0.0, p.top_k) {
            (true, _) if logprobs == 0 => return Wanted::Argmax,
            (true, _) => logprobs,
            (false, 1..=MAX_TOP) => p.top_k,
            (false, _) => return Wanted::Draw(self.draw(ahead)),
        };
        Wanted::Top { k: candidates.max(logprobs).min(vocab_size) as u32 }
    }

    /// Returns how a device should draw the token that comes `ahead` tokens after the next one.
    pub(super) fn draw(&self, ahead: usize) -> Draw {
        let p = self.params();
        Draw {
            per_logit: per_logit(p.temperature),
            min_p: p.min_p,
            top_k: u32::try_from(p.top_k).unwrap_or(u32::MAX),
            top_p: f64::from(p.top_p),
            uniform: self.uniform(ahead),
        }
    }
}

impl Sampler {
    /// Picks the next token of a sequence, with its log-probabilities. Uses the selected part of its row of logits, and
    /// of the row as the model left it (`Selection::unaltered`). Returns `None` if the whole row is needed.
    ///
    /// # Errors
    /// The errors of `pick_from_row`.
    pub fn pick(
        &mut self,
        selected: Selected<'_>,
        unaltered: Option<BestTokens<'_>>,
        sequence: &SequenceSampler,
        mask: Option<&TokenMask>,
    ) -> Result<Option<Picked>> {
        let best = match &selected {
            Selected::Row(row) => return self.pick_from_row(row, sequence, mask).map(Some),
            Selected::Nothing => return Ok(None),
            Selected::Drawn(drawn) => {
                if mask.is_some() && drawn.largest == f32::NEG_INFINITY {
                    return Ok(None);
                }
                let token = self.drawn(drawn, sequence)?;
                return self.with_logprobs(token, unaltered, sequence);
            }
            Selected::Argmax { token: NO_TOKEN, .. } => return Err(not_a_number()),
            // The largest logit decides, however large it is, so the row itself is not needed.
            Selected::Argmax { token, logit, .. }
                if *logit == f32::INFINITY && mask.is_none() && sequence.params().logprobs.is_none() =>
            {
                return Ok(Some(Picked { token: *token, logprobs: None }));
            }
            Selected::Argmax { token, logit, log_sum_exp } => {
                BestTokens { ids: from_ref(token), logits: from_ref(logit), log_sum_exp: *log_sum_exp, chosen: None }
            }
            &Selected::Top { ids, logits, log_sum_exp } => BestTokens { ids, logits, log_sum_exp, chosen: None },
        };
        // If the alteration leaves none of the allowed tokens, the mask takes precedence.
        if mask.is_some() && best.logits.first() == Some(&f32::NEG_INFINITY) && !best.log_sum_exp.is_nan() {
            return Ok(None);
        }
        if !self.check_best(best)? {
            return Ok(None);
        }
        let is_greedy = sequence.params().temperature == 0.0;
        let token = if is_greedy { Some(best.ids[0]) } else { self.draw_from(best, sequence)? };
        let own = if sequence.alters_logits() || mask.is_some() { unaltered } else { Some(best) };
        self.with_logprobs(token, own, sequence)
    }

    /// Picks the next token of a sequence, with its log-probabilities, from its row of logits. With a mask, only its
    /// tokens are allowed. Log-probabilities are the model's own.
    ///
    /// # Errors
    /// `StepFailed` if the row has the wrong length, holds a NaN, or leaves no token possible.
    pub fn pick_from_row(
        &mut self,
        row: &[f32],
        sequence: &SequenceSampler,
        mask: Option<&TokenMask>,
    ) -> Result<Picked> {
        let token = self.sample_under(row, sequence, mask)?;
        let logprobs = sequence.params().logprobs.map(|top| self.logprobs(row, token, top)).transpose()?;
        Ok(Picked { token, logprobs })
    }

    /// Adds the requested log-probabilities to a token, if it is known. `own` are the best tokens of the row as the
    /// model left it.
    fn with_logprobs(
        &self,
        token: Option<u32>,
        own: Option<BestTokens<'_>>,
        sequence: &SequenceSampler,
    ) -> Result<Option<Picked>> {
        if let Some(own) = own
            && !self.check_best(own)?
        {
            return Ok(None);
        }
        let Some(token) = token else { return Ok(None) };
        let logprobs = match sequence.params().logprobs {
            None => None,
            Some(top) => match own.and_then(|own| self.logprobs_of(own, token, top)) {
                Some(logprobs) => Some(logprobs),
                None => return Ok(None),
            },
        };
        Ok(Some(Picked { token, logprobs }))
    }

    /// Checks candidates. Returns true if they are enough to determine their row's token. Infinite logits are not,
    /// since a sum cannot tell them apart.
    fn check_best(&self, best: BestTokens<'_>) -> Result<bool> {
        let BestTokens { ids, logits, log_sum_exp, .. } = best;
        if log_sum_exp.is_nan() {
            return Err(not_a_number());
        }
        let known = ids.iter().all(|&id| (id as usize) < self.vocab_size);
        let tokens = || ids.iter().zip(logits).map(|(&id, &logit)| key(logit, id));
        if ids.is_empty() || ids.len() != logits.len() || !known || !tokens().is_sorted_by(|a, b| a > b) {
            return Err(Error::internal(format!(
                "{} candidates with {} logits are not the best tokens of {} in order",
                ids.len(),
                logits.len(),
                self.vocab_size
            )));
        }
        if logits[0] == f32::NEG_INFINITY {
            return Err(impossible());
        }
        Ok(log_sum_exp.is_finite())
    }

    /// Draws one of the candidates; `None` if other tokens are in play.
    fn draw_from(&mut self, best: BestTokens<'_>, sequence: &SequenceSampler) -> Result<Option<u32>> {
        let params = sequence.params();
        let in_play = if params.top_k == 0 { self.vocab_size } else { params.top_k.min(self.vocab_size) };
        if best.ids.len() < in_play {
            return Ok(None);
        }
        self.keys.clear();
        let candidates = best.ids.iter().zip(best.logits).take(in_play);
        self.keys.extend(candidates.map(|(&id, &logit)| key(logit, id)));
        // Sorted in the order that they have when they come from a row.
        self.keys.sort_unstable_by_key(|&key| key_id(key));
        self.weigh_keys(best.logits[0], params.temperature);
        self.choose(&[], sequence).map(Some)
    }

    /// Returns `None` if there are fewer candidates than the `top` requested tokens, or if the picked token's rank is
    /// unknown.
    fn logprobs_of(&self, best: BestTokens<'_>, token: u32, top: usize) -> Option<TokenLogprobs> {
        if best.ids.len() < top.min(self.vocab_size) {
            return None;
        }
        let entry = |token_id: u32, Ranked { logit, rank }| {
            // Rounding must not make the probability of a certain token exceed 1.
            let logprob = f64::from(logit) - f64::from(best.log_sum_exp);
            TokenLogprob { token_id, logprob: logprob.min(0.0) as f32, rank }
        };
        let at = |place: usize| Ranked { logit: best.logits[place], rank: place as u32 + 1 };
        let chosen = best.chosen.or_else(|| best.ids.iter().position(|&id| id == token).map(at))?;
        let best_ones = (0..top.min(best.ids.len())).map(|place| entry(best.ids[place], at(place)));
        Some(std::iter::once(entry(token, chosen)).chain(best_ones).collect())
    }
}

pub(super) fn not_a_number() -> Error {
    failed("a logit is not a number")
}
