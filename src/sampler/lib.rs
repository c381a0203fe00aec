//! Turns logits into tokens, with one `Sampler` (scratch memory) per engine and one `SequenceSampler` (settings,
//! counts, random stream) per sequence.
//!
//! The order of operations is vLLM's:
//!
//! - the mask of a grammar, logit bias, and end tokens masked until `min_tokens`;
//! - penalties: repetition over prompt and output, then frequency and presence over the output;
//! - temperature, min-p, top-k, top-p, draw.
//!
//! Log-probabilities are those of the model itself, before all of these.
//!
//! Every filter is a cut in one total order of the tokens: logit descending, then id ascending. The draw is a cut as
//! well: the token at which the running sum of the probabilities, best token first, reaches a random share. Nothing is
//! ever sorted in full, so a step over 150,000 tokens takes a few linear passes.
//!
//! Often the best few tokens are enough, or the device finds the token, so that it need not send the row (`candidates`,
//! `drawn`). Nothing here depends on the batch.
//!
//! Start with `Sampler::sample` here, then `sequence`. Of the workspace, this crate knows only `rocmforge_core`: a
//! request's settings, and what devices select.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod candidates;
mod cut;
mod drawn;
mod logprobs;
mod math;
mod select;
mod sequence;
#[cfg(test)]
mod tests;

// The crates below, by the names that the files of this one use.
use rocmforge_core::{Error, Result, config, selection};

pub use candidates::Picked;
pub use logprobs::{TokenLogprob, TokenLogprobs};
pub use sequence::SequenceSampler;

use crate::selection::TokenMask;
use cut::CutScratch;
use math::{exp_weights, row_max};
use select::{key, key_id, key_logit, top_k};

/// The number of tokens that are skipped together if few of a row are kept.
const CHUNK: usize = 64;

/// Reusable memory for one row at a time; allocates only until it has seen the largest case.
#[derive(Debug)]
pub struct Sampler {
    vocab_size: usize,
    /// The row after bias, masks and penalties.
    logits: Vec<f32>,
    /// Keys of the tokens in play, by ascending id; empty while `all` is set.
    keys: Vec<u64>,
    all: bool,
    /// The largest logit in play.
    max: f32,
    /// Unnormalized probabilities of the tokens in play; the likeliest has 1.
    weights: Vec<f32>,
    /// The best tokens of a row, unordered.
    best: Vec<u64>,
    /// Logits of the tokens in `keys`.
    key_logits: Vec<f32>,
    cut: CutScratch,
}

impl Sampler {
    pub fn new(vocab_size: usize) -> Self {
        Self {
            vocab_size,
            logits: Vec::new(),
            keys: Vec::new(),
            all: true,
            max: f32::NEG_INFINITY,
            weights: Vec::new(),
            best: Vec::new(),
            key_logits: Vec::new(),
            cut: CutScratch::default(),
        }
    }

    /// Samples the next token of a sequence from its row of logits, `[vocab_size]`. Does not change the sequence's
    /// state; `SequenceSampler::accept` does.
    ///
    /// # Errors
    /// `StepFailed` if the row has the wrong length, holds a NaN, or leaves no token possible.
    pub fn sample(&mut self, row: &[f32], sequence: &SequenceSampler) -> Result<u32> {
        self.sample_under(row, sequence, None)
    }

    /// Does the same as `sample`, with only the tokens that the mask allows.
    fn sample_under(&mut self, row: &[f32], sequence: &SequenceSampler, mask: Option<&TokenMask>) -> Result<u32> {
        let mut max = self.check(row)?;
        let mut altered = std::mem::take(&mut self.logits);
        let alteration = sequence.alteration();
        let logits = if mask.is_some() || alteration.is_some() {
            let masked = |altered: &mut Vec<f32>| {
                altered.clear();
                altered.extend_from_slice(row);
                mask.iter().for_each(|mask| mask.apply(altered));
            };
            masked(&mut altered);
            alteration.iter().for_each(|alteration| alteration.apply(&mut altered));
            max = row_max(&altered).0;
            // A text must end where its grammar allows nothing else, regardless of `min_tokens`.
            if mask.is_some() && max == f32::NEG_INFINITY {
                masked(&mut altered);
                max = row_max(&altered).0;
            }
            &altered[..]
        } else {
            row
        };
        let token = if max == f32::NEG_INFINITY {
            Err(impossible())
        } else if sequence.params().temperature == 0.0 {
            logits.iter().position(|&x| x == max).map(|i| i as u32).ok_or_else(|| failed("no largest logit"))
        } else {
            self.draw(logits, max, sequence)
        };
        self.logits = altered;
        token
    }

    /// Checks a row and returns its largest value.
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
            return Err(impossible());
        }
        Ok(max)
    }

    fn draw(&mut self, logits: &[f32], max: f32, sequence: &SequenceSampler) -> Result<u32> {
        let params = sequence.params();
        self.weigh(logits, max, params.temperature, params.top_k);
        self.choose(logits, sequence)
    }

    /// Picks one of the tokens in play. `logits` is the row; it is read only while `all` tokens are in play.
    fn choose(&mut self, logits: &[f32], sequence: &SequenceSampler) -> Result<u32> {
        let params = sequence.params();
        if params.min_p > 0.0 {
            self.keep_weights(logits, params.min_p);
        }
        if params.top_p < 1.0
            && let Some(cut) = self.cut(logits, f64::from(params.top_p), params.temperature)
        {
            if self.all {
                // Removes nearly all tokens after the cut and none before it: a better token weighs less only by
                // rounding.
                self.keep_weights(logits, self.weights[key_id(cut) as usize] * (1.0 - 1e-6));
            }
            self.retain(|key, _| key >= cut);
        }
        self.draw_one(logits, sequence)
    }

    /// Brings the `k` best tokens (0 = all) into play with weights `exp((logit - max) / temperature)`.
    fn weigh(&mut self, logits: &[f32], max: f32, temperature: f32, k: usize) {
        self.keys.clear();
        self.max = max;
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

    /// Computes the weights of the tokens in `keys`.
    fn weigh_keys(&mut self, max: f32, temperature: f32) {
        self.all = false;
        self.max = max;
        self.key_logits.clear();
        self.key_logits.extend(self.keys.iter().map(|&key| key_logit(key)));
        self.weights.clear();
        exp_weights(&self.key_logits, max, temperature, &mut self.weights);
    }

    /// Removes tokens whose weight is below `least` from play.
    fn keep_weights(&mut self, logits: &[f32], least: f32) {
        if !self.all {
            return self.retain(|_, weight| weight >= least);
        }
        self.all = false;
        let mut kept = 0;
        for start in (0..logits.len()).step_by(CHUNK) {
            let chunk = start..logits.len().min(start + CHUNK);
            if !self.weights[chunk.clone()].iter().fold(false, |any, &weight| any | (weight >= least)) {
                continue;
            }
            for id in chunk {
                let weight = self.weights[id];
                if weight >= least {
                    self.keys.push(key(logits[id], id as u32));
                    self.weights[kept] = weight;
                    kept += 1;
                }
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
        let cut = self.cut(logits, sequence.uniform(0), sequence.params().temperature);
        cut.map(key_id).ok_or_else(impossible)
    }

    /// Returns the key of the token at which the weights, best token first, reach `share` of the total.
    fn cut(&mut self, logits: &[f32], share: f64, temperature: f32) -> Option<u64> {
        if !self.all {
            return self.cut.cut_keys(&self.keys, &self.weights, share);
        }
        // The total is at least 1. So tokens below this weight cannot add up to the mass after the cut, and the cut is
        // above them.
        let negligible = (1.0 - share) / logits.len() as f64;
        let range = temperature * -negligible.ln() as f32;
        self.cut.cut_row(logits, &self.weights, share, self.max, range)
    }
}

fn impossible() -> Error {
    failed("every token has probability zero")
}

fn failed(problem: impl ToString) -> Error {
    Error::StepFailed { problem: problem.to_string() }
}
