//! Logits to tokens: one `Sampler` (scratch memory) per engine, one `SequenceSampler` (settings, counts, random
//! stream) per sequence.
//!
//! The order is vLLM's: logit bias, end tokens masked until `min_tokens`, penalties (repetition over prompt and output,
//! then frequency and presence over the output), temperature, min-p, top-k, top-p, draw. Log-probabilities are those of
//! the model itself, before all of that.
//!
//! Every filter is a cut in ONE total order of the tokens, (logit descending, id ascending), so nothing is ever sorted
//! in full: a step over 150,000 tokens is a few linear passes. Nothing here depends on the batch.

mod logprobs;
mod math;
mod select;
mod sequence;
#[cfg(test)]
mod tests;

pub use logprobs::{TokenLogprob, TokenLogprobs};
pub use sequence::SequenceSampler;

use crate::{Error, Result};
use math::{exp_weights, row_max, sum};
use select::{NarrowScratch, key, top_k};

/// Tokens per partial sum of a draw.
const DRAW_BLOCK: usize = 1024;

/// Reusable memory for one row at a time; allocates only until it has seen the largest case.
#[derive(Debug)]
pub struct Sampler {
    vocab_size: usize,
    /// The row after bias, masks and penalties.
    logits: Vec<f32>,
    /// The tokens still in play, by ascending id; empty while `all` is set.
    ids: Vec<u32>,
    all: bool,
    /// Unnormalised probabilities of the tokens in play; the likeliest has 1.
    weights: Vec<f32>,
    keys: Vec<u64>,
    narrow: NarrowScratch,
    block_sums: Vec<f64>,
}

impl Sampler {
    pub fn new(vocab_size: usize) -> Self {
        Self {
            vocab_size,
            logits: Vec::new(),
            ids: Vec::new(),
            all: true,
            weights: Vec::new(),
            keys: Vec::new(),
            narrow: NarrowScratch::default(),
            block_sums: Vec::new(),
        }
    }

    /// The next token of a sequence from its row of logits, `[vocab_size]`. Does not change the sequence's state:
    /// `SequenceSampler::accept` does.
    ///
    /// # Errors
    /// `StepFailed` when the row has the wrong length, holds a NaN, or leaves no token possible.
    pub fn sample(&mut self, row: &[f32], sequence: &SequenceSampler) -> Result<u32> {
        let mut max = self.check(row)?;
        let mut altered = std::mem::take(&mut self.logits);
        let logits = if sequence.alters_logits() {
            altered.clear();
            altered.extend_from_slice(row);
            sequence.alter(&mut altered);
            max = row_max(&altered).0;
            &altered[..]
        } else {
            row
        };
        let token = if max == f32::NEG_INFINITY {
            Err(failed("every token has probability zero"))
        } else if sequence.params().temperature == 0.0 {
            logits.iter().position(|&x| x == max).map(|i| i as u32).ok_or_else(|| failed("no largest logit"))
        } else {
            self.draw(logits, max, sequence)
        };
        self.logits = altered;
        token
    }

    /// The row's largest value.
    fn check(&self, row: &[f32]) -> Result<f32> {
        if row.len() != self.vocab_size {
            return Err(failed(format!("{} logits where the vocabulary has {}", row.len(), self.vocab_size)));
        }
        let (max, has_nan) = row_max(row);
        if has_nan {
            let at = row.iter().position(|x| x.is_nan()).unwrap_or_default();
            return Err(failed(format!("the logit of token {at} is not a number")));
        }
        if max == f32::NEG_INFINITY {
            return Err(failed("every token has probability zero"));
        }
        Ok(max)
    }

    fn draw(&mut self, logits: &[f32], max: f32, sequence: &SequenceSampler) -> Result<u32> {
        let params = sequence.params();
        self.weigh(logits, max, params.temperature, params.top_k);
        if params.min_p > 0.0 {
            self.retain(|_, weight| weight >= params.min_p);
        }
        if params.top_p < 1.0 {
            let total = sum(&self.weights);
            let spare = (1.0 - f64::from(params.top_p)) * total;
            // Tokens below this weight cannot add up to more than what top-p leaves out, so none of them is in the
            // smallest set that reaches it: what has to be searched shrinks from the vocabulary to a few hundred.
            let negligible = spare / self.weights.len() as f64;
            self.retain(|_, weight| f64::from(weight) >= negligible);
            let candidates = Candidates { ids: &self.ids, weights: &self.weights };
            let cut = self.narrow.top_p_cut(candidates, logits, total - spare);
            self.retain(|id, _| key(logits[id as usize], id) >= cut);
        }
        self.pick(sequence.uniform()).ok_or_else(|| failed("every token has probability zero"))
    }

    /// Brings the `k` best tokens (0 = all) into play with their weights `exp((logit - max) / temperature)`.
    fn weigh(&mut self, logits: &[f32], max: f32, temperature: f32, k: usize) {
        self.ids.clear();
        self.weights.clear();
        self.all = k == 0 || k >= logits.len();
        if self.all {
            exp_weights(logits, max, temperature, &mut self.weights);
            return;
        }
        top_k(logits, k, &mut self.keys);
        let cut = self.keys.iter().copied().min().unwrap_or_default();
        let ids = (0u32..).zip(logits).filter(|&(id, &x)| key(x, id) >= cut).map(|(id, _)| id);
        self.ids.extend(ids);
        // `keys` has served; `logits` of the kept tokens go through the same vectorised exponential.
        let kept = self.narrow.logits_of(&self.ids, logits);
        exp_weights(kept, max, temperature, &mut self.weights);
    }

    fn retain(&mut self, keep: impl Fn(u32, f32) -> bool) {
        if self.all {
            self.ids.extend(0..self.weights.len() as u32);
            self.all = false;
        }
        let mut kept = 0;
        for i in 0..self.ids.len() {
            let (id, weight) = (self.ids[i], self.weights[i]);
            self.ids[kept] = id;
            self.weights[kept] = weight;
            kept += usize::from(keep(id, weight));
        }
        self.ids.truncate(kept);
        self.weights.truncate(kept);
    }

    /// Inverse transform in the order of ids: the first token whose cumulative weight exceeds `u` of the total.
    fn pick(&mut self, u: f64) -> Option<u32> {
        self.block_sums.clear();
        self.block_sums.extend(self.weights.chunks(DRAW_BLOCK).map(sum));
        let mut left = u * self.block_sums.iter().sum::<f64>();
        let mut chosen = None;
        for (block, &block_sum) in self.block_sums.iter().enumerate() {
            if block_sum <= 0.0 {
                continue;
            }
            let start = block * DRAW_BLOCK;
            let end = self.weights.len().min(start + DRAW_BLOCK);
            // Rounding may leave a little after the last token: the last possible one then is it.
            chosen = (start..end).rev().find(|&i| self.weights[i] > 0.0);
            if left >= block_sum {
                left -= block_sum;
                continue;
            }
            for i in start..end {
                left -= f64::from(self.weights[i]);
                if left < 0.0 {
                    chosen = Some(i);
                    break;
                }
            }
            break;
        }
        chosen.map(|i| if self.all { i as u32 } else { self.ids[i] })
    }
}

/// Tokens in play: ids ascending, and their weights.
#[derive(Clone, Copy)]
struct Candidates<'a> {
    ids: &'a [u32],
    weights: &'a [f32],
}

fn failed(problem: impl ToString) -> Error {
    Error::StepFailed { problem: problem.to_string() }
}
