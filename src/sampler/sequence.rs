//! What one sequence brings to its sampling: settings, the counts that penalties need, and its random stream.

use std::collections::HashMap;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::config::SamplingParams;

/// Sampling state of one sequence. Its random numbers depend on (seed, index, number of tokens generated) alone, so
/// the same seed gives the same tokens whatever the batch, and a preempted sequence goes on as if nothing had been.
#[derive(Debug, Clone)]
pub struct SequenceSampler {
    params: Arc<SamplingParams>,
    seed: u64,
    index: u32,
    generated: usize,
    /// Tokens that must not come before `min_tokens`.
    end_tokens: Arc<[u32]>,
    /// How often each token was generated (0: only in the prompt); kept only for penalties.
    counts: HashMap<u32, u32>,
}

impl SequenceSampler {
    /// `index` of the sequence among the `n` of its request; `end_tokens` are those that would end it.
    pub fn new(params: Arc<SamplingParams>, seed: u64, index: u32, prompt: &[u32], end_tokens: Arc<[u32]>) -> Self {
        let mut counts = HashMap::new();
        if params.repetition_penalty != 1.0 {
            counts.extend(prompt.iter().map(|&token| (token, 0)));
        }
        Self { params, seed, index, generated: 0, end_tokens, counts }
    }

    /// A copy with a random stream of its own, for another sequence of the same request.
    #[must_use]
    pub fn sibling(&self, index: u32) -> Self {
        Self { index, ..self.clone() }
    }

    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Tokens generated so far.
    pub fn generated(&self) -> usize {
        self.generated
    }

    /// Records that `token` is the sequence's next token.
    pub fn accept(&mut self, token: u32) {
        self.generated += 1;
        if self.penalises() {
            *self.counts.entry(token).or_insert(0) += 1;
        }
    }

    /// A number in `[0, 1)` for the next token: a counter-based generator, read at the token's place.
    pub(super) fn uniform(&self) -> f64 {
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..12].copy_from_slice(&self.index.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        // Two 32-bit words per token.
        generator.set_word_pos(2 * self.generated as u128);
        (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn penalises(&self) -> bool {
        let p = &self.params;
        p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0
    }

    pub(super) fn alters_logits(&self) -> bool {
        self.penalises() || !self.params.logit_bias.is_empty() || self.generated < self.params.min_tokens
    }

    /// Bias, masks and penalties, in place. Token ids were checked against the vocabulary when the request came in.
    pub(super) fn alter(&self, logits: &mut [f32]) {
        let p = &self.params;
        for &(token, bias) in &p.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if self.generated < p.min_tokens {
            for &token in self.end_tokens.iter() {
                if let Some(logit) = logits.get_mut(token as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        for (&token, &count) in &self.counts {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            let repeated = if *logit > 0.0 { *logit / p.repetition_penalty } else { *logit * p.repetition_penalty };
            let presence = if count > 0 { p.presence_penalty } else { 0.0 };
            *logit = repeated - p.frequency_penalty * count as f32 - presence;
        }
    }
}
