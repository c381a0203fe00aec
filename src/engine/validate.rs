//! What is checked of a request on its caller's thread, before it takes a place in the queue.

use crate::config::{EngineConfig, SamplingParams};
use crate::kv_cache::KvCache;
use crate::scheduler::SchedulerConfig;
use crate::{Error, Result};

/// Bytes of a request's name, and of its salt.
const MAX_NAME_BYTES: usize = 1024;

/// What the checks compare with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits<'a> {
    pub config: &'a EngineConfig,
    pub vocab_size: usize,
    pub has_tokenizer: bool,
}

/// The scheduler's share of the configuration.
pub(super) fn scheduler_config(config: &EngineConfig) -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_prompt_logits: config.max_prompt_logits,
        max_model_len: config.max_model_len,
        max_queue_size: config.max_queue_size,
        max_num_partial_prefills: config.max_num_partial_prefills,
        max_long_partial_prefills: config.max_long_partial_prefills,
        long_prefill_token_threshold: config.long_prefill_token_threshold,
    }
}

impl Limits<'_> {
    pub(super) fn check_text(&self, what: &'static str, text: &str) -> Result<()> {
        if text.is_empty() || text.len() > MAX_NAME_BYTES {
            let got = format!("{} bytes", text.len());
            return Err(Error::invalid(what, got, format!("1 to {MAX_NAME_BYTES} bytes")));
        }
        Ok(())
    }

    /// A prompt must leave room for at least `max_tokens.min(1)` tokens below the model's length.
    pub(super) fn check_prompt(&self, prompt: &[u32], max_tokens: usize, kv_cache: &KvCache) -> Result<()> {
        if prompt.is_empty() {
            return Err(Error::invalid("prompt", "no tokens", "at least one token"));
        }
        let (len, context_length) = (self.config.max_model_len, self.config.context_length);
        let longest = len.saturating_sub(max_tokens.min(1));
        if prompt.len() > longest {
            let advice = match len < context_length {
                true => {
                    format!("shorten it, or load with a larger max_model_len (the model's limit is {context_length})")
                }
                false => "the model was made for no more: shorten it".to_owned(),
            };
            let expected = format!("at most {longest} (max_model_len is {len}); {advice}");
            return Err(Error::invalid("prompt length in tokens", prompt.len(), expected));
        }
        scheduler_config(self.config).check_length(prompt.len(), max_tokens, kv_cache)?;
        if let Some(bad) = prompt.iter().find(|&&token| token as usize >= self.vocab_size) {
            return Err(Error::invalid("prompt token id", bad, format!("less than {}", self.vocab_size)));
        }
        Ok(())
    }

    pub(super) fn check_params(&self, params: &SamplingParams) -> Result<()> {
        params.validate()?;
        // More could never be served at once: those without a place wait.
        let most = self.config.max_num_seqs.saturating_add(self.config.max_queue_size);
        if params.n > most {
            let expected = format!("at most max_num_seqs + max_queue_size, which is {most}");
            return Err(Error::invalid("n", params.n, expected));
        }
        if !self.has_tokenizer && !params.stop.is_empty() {
            return Err(Error::invalid("stop", "stop strings", "stop_token_ids: this engine has no tokenizer"));
        }
        let biased = params.logit_bias.iter().map(|&(token, _)| ("logit_bias token id", token));
        let stops = params.stop_token_ids.iter().map(|&token| ("stop_token_ids", token));
        for (what, token) in biased.chain(stops) {
            if token as usize >= self.vocab_size {
                return Err(Error::invalid(what, token, format!("less than {}", self.vocab_size)));
            }
        }
        Ok(())
    }
}
