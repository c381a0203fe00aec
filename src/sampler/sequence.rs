//! The sampling state of one sequence: settings, tokens whose logits change, and random stream.

use std::collections::HashMap;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::config::SamplingParams;
use crate::selection::{Alteration, AlteredToken, Penalties};

/// The sampling state of one sequence. Its random numbers depend only on the seed, the index and the number of
/// generated tokens. So the same seed gives the same tokens in any batch, and a preempted sequence continues unchanged.
#[derive(Debug, Clone)]
pub struct SequenceSampler {
    params: Arc<SamplingParams>,
    seed: u64,
    index: u32,
    generated: usize,
    /// True if the text must not end yet, because its structured output has not begun.
    held: bool,
    /// Tokens that must not occur before `min_tokens`.
    end_tokens: Arc<[u32]>,
    altered: AlteredTokens,
}

/// The tokens with a bias, mask or penalty, each once. They are kept as a list, which is sent to a device in every
/// step.
#[derive(Debug, Clone, Default)]
struct AlteredTokens {
    list: Vec<AlteredToken>,
    /// The index of each token in the list.
    places: HashMap<u32, usize>,
}

impl AlteredTokens {
    fn entry(&mut self, id: u32) -> &mut AlteredToken {
        let place = *self.places.entry(id).or_insert_with(|| {
            self.list.push(AlteredToken { id, bias: 0.0, seen: 0 });
            self.list.len() - 1
        });
        &mut self.list[place]
    }
}

impl SequenceSampler {
    /// `index`: the sequence's index among the `n` of its request. `end_tokens`: the tokens that would end it.
    pub fn new(params: Arc<SamplingParams>, seed: u64, index: u32, prompt: &[u32], end_tokens: Arc<[u32]>) -> Self {
        let mut altered = AlteredTokens::default();
        for &(token, bias) in &params.logit_bias {
            altered.entry(token).bias += bias;
        }
        let held = params.structured_outputs.as_ref().and_then(|form| form.begin).is_some_and(|begin| !begin.optional);
        if params.min_tokens > 0 || held {
            end_tokens.iter().for_each(|&token| altered.entry(token).bias = f32::NEG_INFINITY);
        }
        if params.repetition_penalty != 1.0 {
            prompt.iter().for_each(|&token| altered.entry(token).seen = 1);
        }
        Self { params, seed, index, generated: 0, held, end_tokens, altered }
    }

    /// Returns a copy with its own random stream, for another sequence of the same request.
    #[must_use]
    pub fn sibling(&self, index: u32) -> Self {
        Self { index, ..self.clone() }
    }

    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Returns the number of tokens generated so far.
    pub fn generated(&self) -> usize {
        self.generated
    }

    /// Records that `token` is the sequence's next token.
    pub fn accept(&mut self, token: u32) {
        self.generated += 1;
        if self.penalises() {
            let entry = self.altered.entry(token);
            entry.seen = entry.seen.max(1) + 1;
        }
        if self.generated == self.params.min_tokens {
            self.allow_end();
        }
    }

    /// Records that the structured output has begun, so that its grammar decides where the text may end.
    pub fn begin_output(&mut self) {
        self.held = false;
        self.allow_end();
    }

    /// True if no end token may come next.
    fn must_go_on(&self) -> bool {
        self.held || self.generated < self.params.min_tokens
    }

    /// Restores the end tokens' logits to those of the model and the request's bias, if the text may end.
    fn allow_end(&mut self) {
        if self.must_go_on() {
            return;
        }
        for &token in self.end_tokens.iter() {
            let biases = self.params.logit_bias.iter().filter(|(biased, _)| *biased == token);
            self.altered.entry(token).bias = biases.map(|(_, bias)| bias).sum();
        }
    }

    /// Returns a number in `[0, 1)` for the token that comes `ahead` tokens after the next one. It is read from a
    /// counter-based generator at the token's position.
    pub(super) fn uniform(&self, ahead: usize) -> f64 {
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..12].copy_from_slice(&self.index.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        // Two 32-bit words per token.
        generator.set_word_pos(2 * (self.generated + ahead) as u128);
        (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn penalises(&self) -> bool {
        let p = &self.params;
        p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0
    }

    /// True if its row of logits changes before a token is sampled.
    pub fn alters_logits(&self) -> bool {
        self.penalises() || !self.params.logit_bias.is_empty() || self.must_go_on()
    }

    /// Returns the change that the sequence's row of logits needs; `None` if it needs none.
    pub(super) fn alteration(&self) -> Option<Alteration<'_>> {
        let p = &self.params;
        self.alters_logits().then_some(Alteration {
            tokens: &self.altered.list,
            penalties: Penalties {
                repetition: p.repetition_penalty,
                frequency: p.frequency_penalty,
                presence: p.presence_penalty,
            },
        })
    }
}
