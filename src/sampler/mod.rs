//! Logits to tokens: one `Sampler` (scratch memory) per engine, one `SequenceSampler` (settings, counts, random
//! stream) per sequence.
//!
//! The order is vLLM's: logit bias, end tokens masked until `min_tokens`, penalties (repetition over prompt and output,
//! then frequency and presence over the output), temperature, min-p, top-k, top-p, draw. Log-probabilities are those of
//! the model itself, before all of that.
//!
//! Every filter is a cut in ONE total order of the tokens, (logit descending, id ascending), and so is the draw: the
//! token at which the running sum of the probabilities, best token first, reaches a random share. Nothing is ever
//! sorted in full: a step over 150,000 tokens is a few linear passes. And the best few tokens nearly always decide, so
//! a device need not send the rest (`candidates`). Nothing here depends on the batch.

mod candidates;
mod logprobs;
mod math;
mod select;
mod sequence;
#[cfg(test)]
mod tests;

pub use candidates::Picked;
pub use logprobs::{TokenLogprob, TokenLogprobs};
pub use sequence::SequenceSampler;

use crate::{Error, Result};
use math::{exp_weights, row_max, sum};
use select::{NarrowScratch, key, key_id, top_k};

/// Reusable memory for one row at a time; allocates only until it has seen the largest case.
#[derive(Debug)]
pub struct Sampler {
    vocab_size: usize,
    /// The row after bias, masks and penalties.
    logits: Vec<f32>,
    /// Keys of the tokens still in play, by ascending id; empty while `all` is set.
    keys: Vec<u64>,
    all: bool,
    /// Unnormalised probabilities of the tokens in play; the likeliest has 1.
    weights: Vec<f32>,
    /// The best tokens of a row, in any order.
    best: Vec<u64>,
    narrow: NarrowScratch,
}

impl Sampler {
    pub fn new(vocab_size: usize) -> Self {
        Self {
            vocab_size,
            logits: Vec::new(),
            keys: Vec::new(),
            all: true,
            weights: Vec::new(),
            best: Vec::new(),
            narrow: NarrowScratch::default(),
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
        self.choose(logits, sequence)
    }

    /// From the tokens in play to one of them. `logits` are the row's, read only while `all` tokens are in play.
    fn choose(&mut self, logits: &[f32], sequence: &SequenceSampler) -> Result<u32> {
        let params = sequence.params();
        if params.min_p > 0.0 {
            self.keep_weights(logits, f64::from(params.min_p));
        }
        if params.top_p < 1.0 {
            let cut = self.cut(logits, f64::from(params.top_p)).unwrap_or_default();
            self.retain(|key, _| key >= cut);
        }
        self.draw_one(logits, sequence)
    }

    /// Brings the `k` best tokens (0 = all) into play with their weights `exp((logit - max) / temperature)`.
    fn weigh(&mut self, logits: &[f32], max: f32, temperature: f32, k: usize) {
        self.keys.clear();
        self.all = k == 0 || k >= logits.len();
        if self.all {
            self.weights.clear();
            exp_weights(logits, max, temperature, &mut self.weights);
            return;
        }
        top_k(logits, k, &mut self.best);
        let cut = self.best.iter().copied().min().unwrap_or_default();
        self.keys.extend((0u32..).zip(logits).map(|(id, &x)| key(x, id)).filter(|&key| key >= cut));
        self.weigh_keys(max, temperature);
    }

    /// Weights of the tokens named by `keys`.
    fn weigh_keys(&mut self, max: f32, temperature: f32) {
        self.all = false;
        self.weights.clear();
        exp_weights(self.narrow.logits_of(&self.keys), max, temperature, &mut self.weights);
    }

    /// Takes tokens whose weight is below `least` out of play.
    fn keep_weights(&mut self, logits: &[f32], least: f64) {
        if !self.all {
            return self.retain(|_, weight| f64::from(weight) >= least);
        }
        self.all = false;
        let mut kept = 0;
        for (id, &logit) in (0u32..).zip(logits) {
            let weight = self.weights[id as usize];
            if f64::from(weight) >= least {
                self.keys.push(key(logit, id));
                self.weights[kept] = weight;
                kept += 1;
            }
        }
        self.weights.truncate(kept);
    }

    fn retain(&mut self, keep: impl Fn(u64, f32) -> bool) {
        let mut kept = 0;
        for i in 0..self.keys.len() {
            let (key, weight) = (self.keys[i], self.weights[i]);
            self.keys[kept] = key;
            self.weights[kept] = weight;
            kept += usize::from(keep(key, weight));
        }
        self.keys.truncate(kept);
        self.weights.truncate(kept);
    }

    /// Draws one of the tokens in play.
    fn draw_one(&mut self, logits: &[f32], sequence: &SequenceSampler) -> Result<u32> {
        let cut = self.cut(logits, sequence.uniform());
        cut.map(key_id).ok_or_else(|| failed("every token has probability zero"))
    }

    /// Key of the token at which the weights, added up best token first, reach `share` of the total.
    fn cut(&mut self, logits: &[f32], share: f64) -> Option<u64> {
        let total = sum(&self.weights);
        let spare = (1.0 - share) * total;
        // Tokens below this weight cannot add up to more than what is left behind the cut, so none of them is before
        // it: what has to be searched shrinks from the vocabulary to a few hundred.
        self.keep_weights(logits, spare / self.weights.len() as f64);
        self.narrow.cut(&self.keys, &self.weights, total - spare)
    }
}

fn failed(problem: impl ToString) -> Error {
    Error::StepFailed { problem: problem.to_string() }
}
