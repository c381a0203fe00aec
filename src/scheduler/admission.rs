//! Checks a sequence against the scheduler's limits. The engine calls these checks on the thread of the request's
//! caller, before the request has a place in the queue.

use super::SchedulerConfig;
use crate::images::{SeqImages, Sight};
use crate::kv_cache::KvCache;
use crate::{Error, Result};

impl SchedulerConfig {
    /// Returns the largest number of tokens that a sequence can reach.
    ///
    /// # Errors
    /// `InvalidRequest` for an empty prompt, and for one that leaves no room for a requested token. Also for a prompt
    /// that must fit in one step and does not, and for a sequence that the whole KV pool cannot hold.
    pub fn check_length(&self, prompt_len: usize, max_tokens: usize, kv: &KvCache) -> Result<usize> {
        if prompt_len == 0 {
            return Err(Error::invalid("prompt", "an empty prompt (no tokens)", "at least one token"));
        }
        let Self { max_model_len, context_length, max_num_batched_tokens, .. } = *self;
        if kv.config().is_bidirectional() && (max_num_batched_tokens + 1..=context_length).contains(&prompt_len) {
            let expected = format!(
                "at most {max_num_batched_tokens} (max_num_batched_tokens), since the model attends in both directions. \
                 Shorten the prompt, or load with larger max_num_batched_tokens and max_model_len (the model's limit \
                 is {context_length})"
            );
            return Err(Error::invalid("prompt length in tokens", prompt_len, expected));
        }
        let longest = max_model_len.saturating_sub(max_tokens.min(1));
        if prompt_len > longest {
            let advice = match max_model_len < context_length {
                true => {
                    format!("shorten it, or load with a larger max_model_len (the model's limit is {context_length})")
                }
                false => "the model was made for no more: shorten it".to_owned(),
            };
            let expected = format!("at most {longest} (max_model_len is {max_model_len}); {advice}");
            return Err(Error::invalid("prompt length in tokens", prompt_len, expected));
        }
        let max_len = prompt_len.saturating_add(max_tokens).min(max_model_len);
        // The last token is sampled but never computed.
        let max_computed = prompt_len.max(max_len.saturating_sub(1));
        if !kv.can_ever_hold(max_computed, max_num_batched_tokens) {
            let tokens = kv.longest_sequence(max_num_batched_tokens);
            let expected =
                format!("what the KV cache holds ({tokens} tokens); lower max_tokens or raise kv_cache_memory");
            return Err(Error::invalid("prompt length + max_tokens", max_len, expected));
        }
        Ok(max_len)
    }

    /// Checks that a step has room for each image that it may not cut.
    ///
    /// # Errors
    /// `InvalidRequest` for an image with too many tokens.
    pub fn check_images(&self, images: &SeqImages) -> Result<()> {
        // The others that run may take a token each.
        let room = self.max_num_batched_tokens - (self.max_num_seqs - 1);
        let room = room.min(self.max_prefill_beside_newcomers);
        let largest = images.spans.iter().map(|span| span.num_tokens() as usize).max().unwrap_or(0);
        if images.sight != Sight::Causal && largest > room {
            let expected = format!(
                "at most {room}, since its tokens attend to each other and are computed in one step; load with a larger \
                 max_num_batched_tokens or a smaller max_num_seqs"
            );
            return Err(Error::invalid("tokens of an image", largest, expected));
        }
        Ok(())
    }

    /// Checks that there is a place in the queue after `waiting` others.
    ///
    /// # Errors
    /// `QueueFull`.
    pub fn check_queue(&self, waiting: usize) -> Result<()> {
        let limit = self.max_queue_size;
        if waiting < limit { Ok(()) } else { Err(Error::QueueFull { waiting, limit }) }
    }
}
