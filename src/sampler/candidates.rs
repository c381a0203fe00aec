//! Sampling from the best few tokens of a row, where they decide: always the token that the whole row would give.
//!
//! Everything the sampler does is a cut in the order of tokens, so what it needs of the tokens behind the candidates is
//! one number, the sum of all weights. A device computes it in single precision, so it is known within bounds: where
//! both bounds cut at the same candidate, so does the row; where they do not, or the cut lies behind the candidates,
//! the row has to be read.
//!
//! Once the tokens that pass the filters are known, what follows is computed from the same numbers in the same order as
//! from a row, so the draw among them is the same to the last bit.

use std::slice::from_ref;

use super::select::{key, key_id};
use super::{Sampler, SequenceSampler, TokenLogprob, TokenLogprobs, failed};
use crate::selection::{MAX_TOP, NO_TOKEN, Selected, TokenMask, Wanted, Wish};
use crate::{Error, Result};

/// Relative error of a weight at most, from all its roundings: `exp_nonpositive` is within 2 units in the last place,
/// and its argument, at most 88, within one and a half.
const WEIGHT_ERROR: f64 = 2e-5;
/// Relative error of the sum of all weights against the device's: the roundings of weights far below the largest, which
/// are the inexact ones, hardly count in it.
const TOTAL_ERROR: f64 = 1e-5;
/// More than the rounding of sums in double precision.
const SUM_ERROR: f64 = 1e-9;

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Picked {
    pub token: u32,
    /// Log-probabilities, if the settings ask for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// The best tokens of a row, in order.
#[derive(Clone, Copy)]
struct Best<'a> {
    ids: &'a [u32],
    logits: &'a [f32],
    log_sum_exp: f32,
    log_total: f32,
}

impl SequenceSampler {
    /// The part of its row of logits that the next token needs, where the tokens of the mask may come, or all.
    pub fn wish<'a>(&'a self, vocab_size: usize, mask: Option<&'a TokenMask>) -> Wish<'a> {
        let own = !self.alters_logits() && mask.is_none();
        let wanted = self.wanted(vocab_size, own);
        if wanted == Wanted::Row {
            return wanted.into();
        }
        // The best tokens of the model's own row name the chosen one nearly always, and the device sorts as many
        // anyhow.
        let apart = !own && self.params().logprobs.is_some();
        let unaltered = if apart { MAX_TOP.min(vocab_size) as u32 } else { 0 };
        Wish { wanted, alteration: self.alteration(), mask, unaltered }
    }

    /// `own`: the token is chosen of the row as the model left it.
    fn wanted(&self, vocab_size: usize, own: bool) -> Wanted {
        let p = self.params();
        // They are taken of the row as the model left it.
        let logprobs = if own { p.logprobs.unwrap_or(0) } else { 0 };
        let candidates = match (p.temperature == 0.0, p.top_k) {
            (true, _) if logprobs == 0 => return Wanted::Argmax,
            (true, _) => logprobs,
            (false, 0) => MAX_TOP.min(vocab_size),
            (false, top_k) => top_k.min(vocab_size),
        };
        if candidates > MAX_TOP {
            return Wanted::Row;
        }
        let k = candidates.max(logprobs).min(vocab_size) as u32;
        let temperature = if p.temperature == 0.0 { 1.0 } else { p.temperature.max(f32::MIN_POSITIVE) };
        Wanted::Top { k, temperature }
    }
}

impl Sampler {
    /// The next token of a sequence, and its log-probabilities, from what came back of its row of logits, and of the
    /// row as the model left it (`Selection::unaltered`); `None` when only the whole row can tell.
    ///
    /// # Errors
    /// The errors of `pick_from_row`.
    pub fn pick(
        &mut self,
        selected: Selected<'_>,
        unaltered: Option<Selected<'_>>,
        sequence: &SequenceSampler,
        mask: Option<&TokenMask>,
    ) -> Result<Option<Picked>> {
        let best = match &selected {
            Selected::Row(row) => return self.pick_from_row(row, sequence, mask).map(Some),
            Selected::Nothing => return Ok(None),
            Selected::Argmax { token: NO_TOKEN, .. } => return Err(not_a_number()),
            Selected::Argmax { token, logit, log_sum_exp } => Best {
                ids: from_ref(token),
                logits: from_ref(logit),
                log_sum_exp: *log_sum_exp,
                log_total: f32::INFINITY,
            },
            &Selected::Top { ids, logits, log_sum_exp, log_total } => Best { ids, logits, log_sum_exp, log_total },
        };
        let unaltered = match unaltered {
            Some(Selected::Top { ids, logits, log_sum_exp, log_total }) => {
                Some(Best { ids, logits, log_sum_exp, log_total })
            }
            _ => None,
        };
        // Where the alteration leaves none of the allowed tokens, the mask goes first.
        if mask.is_some() && best.logits.first() == Some(&f32::NEG_INFINITY) && !best.log_sum_exp.is_nan() {
            return Ok(None);
        }
        let own = if sequence.alters_logits() || mask.is_some() { unaltered } else { Some(best) };
        self.pick_from_best(best, own, sequence)
    }

    /// The next token of a sequence, and its log-probabilities, from its row of logits, where the tokens of the mask
    /// may come, or all. Log-probabilities are the model's own.
    ///
    /// # Errors
    /// `StepFailed` when the row has the wrong length, holds a NaN, or leaves no token possible.
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

    /// `own` are the best tokens of the row as the model left it.
    fn pick_from_best(
        &mut self,
        best: Best<'_>,
        own: Option<Best<'_>>,
        sequence: &SequenceSampler,
    ) -> Result<Option<Picked>> {
        for best in std::iter::once(best).chain(own) {
            self.check_best(best)?;
            // Infinite logits are equals that a sum cannot tell apart.
            if !best.log_sum_exp.is_finite() {
                return Ok(None);
            }
        }
        let params = sequence.params();
        let token = if params.temperature == 0.0 { Some(best.ids[0]) } else { self.draw_from(best, sequence)? };
        let Some(token) = token else { return Ok(None) };
        let logprobs = match params.logprobs {
            None => None,
            Some(top) => match own.and_then(|own| self.logprobs_of(own, token, top)) {
                Some(logprobs) => Some(logprobs),
                None => return Ok(None),
            },
        };
        Ok(Some(Picked { token, logprobs }))
    }

    fn check_best(&self, best: Best<'_>) -> Result<()> {
        let Best { ids, logits, log_sum_exp, log_total } = best;
        if log_sum_exp.is_nan() || log_total.is_nan() {
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
            return Err(failed("every token has probability zero"));
        }
        Ok(())
    }

    fn draw_from(&mut self, best: Best<'_>, sequence: &SequenceSampler) -> Result<Option<u32>> {
        let params = sequence.params();
        let in_play = if params.top_k == 0 { self.vocab_size } else { params.top_k.min(self.vocab_size) };
        let best = best.first(in_play);
        self.bring_in(best, params.temperature);
        let worst = self.weights.last().copied().map_or(0.0, f64::from);
        let min_p_passes_no_other = worst * (1.0 + WEIGHT_ERROR) < f64::from(params.min_p);
        if best.ids.len() == in_play || min_p_passes_no_other {
            self.order_by_id(best, params.temperature);
            return self.choose(&[], sequence).map(Some);
        }
        if params.min_p > 0.0 || params.top_k > 0 {
            return Ok(None);
        }
        let total = self.total_bounds(best);
        if params.top_p == 1.0 {
            return Ok(self.certain_cut(sequence.uniform(), total).map(|cut| best.ids[cut]));
        }
        let Some(cut) = self.certain_cut(f64::from(params.top_p), total) else { return Ok(None) };
        self.keys.truncate(cut + 1);
        self.order_by_id(best, params.temperature);
        self.draw_one(&[], sequence).map(Some)
    }

    /// Brings the candidates into play, best first.
    fn bring_in(&mut self, best: Best<'_>, temperature: f32) {
        self.keys.clear();
        self.keys.extend(best.ids.iter().zip(best.logits).map(|(&id, &logit)| key(logit, id)));
        self.weigh_keys(best.logits[0], temperature);
    }

    /// Puts the tokens in play into the order that they have when they come from a row.
    fn order_by_id(&mut self, best: Best<'_>, temperature: f32) {
        self.keys.sort_unstable_by_key(|&key| key_id(key));
        self.weigh_keys(best.logits[0], temperature);
    }

    /// Bounds of the sum of all tokens' weights however it is added up, with the candidates in play, best first.
    fn total_bounds(&self, best: Best<'_>) -> (f64, f64) {
        let known: f64 = self.weights.iter().copied().map(f64::from).sum();
        // No token behind the candidates weighs more than the last of them.
        let last = self.weights.last().copied().map_or(0.0, f64::from);
        let most = known + (self.vocab_size - best.ids.len()) as f64 * last * (1.0 + WEIGHT_ERROR);
        let total = f64::from(best.log_total).exp();
        let (low, high) = ((total * (1.0 - TOTAL_ERROR)).max(known), (total * (1.0 + TOTAL_ERROR)).min(most));
        (low * (1.0 - SUM_ERROR), high.max(known) * (1.0 + SUM_ERROR))
    }

    /// Place of the candidate at which `Sampler::cut` would cut the row for every total within the bounds.
    fn certain_cut(&self, share: f64, (low, high): (f64, f64)) -> Option<usize> {
        let place = |total: f64| {
            let mass = total - (1.0 - share) * total;
            let mut sum = 0.0;
            self.weights.iter().position(|&weight| {
                sum += f64::from(weight);
                sum >= mass
            })
        };
        let cut = place(low)?;
        (place(high) == Some(cut)).then_some(cut)
    }

    /// `None` when the candidates are fewer than the `top` tokens asked for, or the chosen one is not among them.
    fn logprobs_of(&self, best: Best<'_>, token: u32, top: usize) -> Option<TokenLogprobs> {
        if best.ids.len() < top.min(self.vocab_size) {
            return None;
        }
        let entry = |place: usize| {
            // Rounding must not make a certain token more than certain.
            let logprob = f64::from(best.logits[place]) - f64::from(best.log_sum_exp);
            TokenLogprob { token_id: best.ids[place], logprob: logprob.min(0.0) as f32, rank: place as u32 + 1 }
        };
        let chosen = best.ids.iter().position(|&id| id == token)?;
        Some(std::iter::once(chosen).chain(0..top.min(best.ids.len())).map(entry).collect())
    }
}

impl Best<'_> {
    fn first(self, n: usize) -> Self {
        let n = n.min(self.ids.len());
        Self { ids: &self.ids[..n], logits: &self.logits[..n], ..self }
    }
}

fn not_a_number() -> Error {
    failed("a logit is not a number")
}
