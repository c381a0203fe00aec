//! Sampling from the best few tokens of a row, where they decide: always the token that the whole row would give.
//!
//! Everything the sampler does is a cut in the order of tokens, so what it needs of the tokens behind the candidates is
//! one number, the sum of their weights. It is known within bounds, from the row's log-sum-exp: where both bounds cut at
//! the same candidate, so does the row; where they do not, the row has to be read. With that many candidates it is rare.
//!
//! Once the tokens that pass the filters are known, what follows is computed from the same numbers in the same order as
//! from a row, so the draw among them is the same to the last bit.

use std::slice::from_ref;

use super::select::{key, key_id};
use super::{Sampler, SequenceSampler, TokenLogprob, TokenLogprobs, failed};
use crate::selection::{MAX_TOP, NO_TOKEN, Selected, Wanted};
use crate::{Error, Result};

/// Relative error of a weight at most, from all its roundings: `exp_nonpositive` is within 2 units in the last place, and
/// its argument, at most 88, within one.
const WEIGHT_ERROR: f64 = 2e-5;
/// Relative error of the sum of all weights, whose error is that of the large ones, against the device's log-sum-exp.
const TOTAL_ERROR: f64 = 1e-5;
/// More than the rounding of sums in double precision.
const SUM_ERROR: f64 = 1e-9;

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Picked {
    pub token: u32,
    /// Where the settings ask for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// The best tokens of a row, in order.
#[derive(Clone, Copy)]
struct Best<'a> {
    ids: &'a [u32],
    logits: &'a [f32],
    log_sum_exp: f32,
}

impl SequenceSampler {
    /// What the next token needs of its row of logits.
    pub fn wanted(&self, vocab_size: usize) -> Wanted {
        let p = self.params();
        if self.alters_logits() {
            return Wanted::Row;
        }
        let logprobs = p.logprobs.unwrap_or(0);
        let candidates = if p.temperature == 0.0 {
            if logprobs == 0 {
                return Wanted::Argmax;
            }
            logprobs
        } else if p.top_k > 0 {
            p.top_k.min(vocab_size)
        } else if p.min_p > 0.0 || p.temperature <= 1.0 {
            MAX_TOP.min(vocab_size)
        } else {
            // A flatter distribution than the model's: its tail is not known well enough to be of use.
            return Wanted::Row;
        };
        if candidates > MAX_TOP { Wanted::Row } else { Wanted::Top(candidates.max(logprobs).min(vocab_size) as u32) }
    }
}

impl Sampler {
    /// The next token of a sequence, and its log-probabilities, from what came back of its row of logits; `None` when
    /// only the whole row can tell.
    ///
    /// # Errors
    /// As `pick_from_row`.
    pub fn pick(&mut self, selected: Selected<'_>, sequence: &SequenceSampler) -> Result<Option<Picked>> {
        let best = match selected {
            Selected::Row(row) => return self.pick_from_row(row, sequence).map(Some),
            Selected::Argmax { token, logit, log_sum_exp } => {
                if token == NO_TOKEN {
                    return Err(not_a_number());
                }
                return self
                    .pick_from_best(Best { ids: from_ref(&token), logits: from_ref(&logit), log_sum_exp }, sequence);
            }
            Selected::Top { ids, logits, log_sum_exp } => Best { ids, logits, log_sum_exp },
        };
        self.pick_from_best(best, sequence)
    }

    /// The next token of a sequence, and its log-probabilities, from its row of logits.
    ///
    /// # Errors
    /// `StepFailed` when the row has the wrong length, holds a NaN, or leaves no token possible.
    pub fn pick_from_row(&mut self, row: &[f32], sequence: &SequenceSampler) -> Result<Picked> {
        let token = self.sample(row, sequence)?;
        let logprobs = sequence.params().logprobs.map(|top| self.logprobs(row, token, top)).transpose()?;
        Ok(Picked { token, logprobs })
    }

    fn pick_from_best(&mut self, best: Best<'_>, sequence: &SequenceSampler) -> Result<Option<Picked>> {
        self.check_best(best)?;
        let params = sequence.params();
        // Infinite logits are equals that a sum cannot tell apart.
        if sequence.alters_logits() || !best.log_sum_exp.is_finite() {
            return Ok(None);
        }
        let token = if params.temperature == 0.0 { Some(best.ids[0]) } else { self.draw_from(best, sequence)? };
        let Some(token) = token else { return Ok(None) };
        let logprobs = match params.logprobs {
            None => None,
            Some(top) => match self.logprobs_of(best, token, top) {
                Some(logprobs) => Some(logprobs),
                None => return Ok(None),
            },
        };
        Ok(Some(Picked { token, logprobs }))
    }

    fn check_best(&self, best: Best<'_>) -> Result<()> {
        let Best { ids, logits, log_sum_exp } = best;
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
        let total = self.total_bounds(best, params.temperature);
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

    /// Bounds of the sum of all tokens' weights as `sum` would give it, with the candidates in play, best first.
    fn total_bounds(&self, best: Best<'_>, temperature: f32) -> (f64, f64) {
        let max = f64::from(best.logits[0]);
        let known: f64 = self.weights.iter().copied().map(f64::from).sum();
        let worst = self.weights.last().copied().map_or(0.0, f64::from);
        // No token behind the candidates weighs more than the last of them.
        let others = (self.vocab_size - best.ids.len()) as f64;
        let mut tail = (0.0, others * worst);
        // The log-sum-exp is in single precision, and so are the logits that were subtracted.
        let log_sum_exp = f64::from(best.log_sum_exp);
        let error = TOTAL_ERROR + f64::from(f32::EPSILON) * (log_sum_exp.abs() + max.abs());
        let total = (log_sum_exp - max).exp();
        if temperature == 1.0 {
            tail.0 = total * (1.0 - error) - known;
            tail.1 = tail.1.min(total * (1.0 + error) - known);
        } else if temperature < 1.0 {
            // w^(1/T) = w * w^(1/T - 1), and the second factor is at most that of the last candidate.
            let above = |logit: f32| f64::from(logit) - max;
            let plain: f64 = best.logits.iter().map(|&logit| above(logit).exp()).sum();
            let last = best.logits.last().copied().map_or(0.0, above);
            let sharpened = (last * (1.0 / f64::from(temperature) - 1.0)).exp();
            tail.1 = tail.1.min((total * (1.0 + error) - plain).max(0.0) * sharpened);
        }
        let (low, high) = (tail.0.max(0.0), tail.1.max(0.0) * (1.0 + WEIGHT_ERROR));
        ((known + low) * (1.0 - SUM_ERROR), (known + high) * (1.0 + SUM_ERROR))
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
        // What `cut` neglects must lie behind the cut for certain, too.
        let negligible = (1.0 - share) * high / self.vocab_size as f64;
        let counts = f64::from(self.weights[cut]) > negligible * (1.0 + WEIGHT_ERROR);
        (counts && place(high) == Some(cut)).then_some(cut)
    }

    /// `None` when the candidates are fewer than the `top` tokens asked for.
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
