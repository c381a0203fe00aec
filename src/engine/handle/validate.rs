//! Checks a request on its caller's thread, before it takes a place in the queue.

use crate::config::{EngineConfig, Pooling, PoolingParams, SamplingParams};
use crate::executor::Executor;
use crate::scheduler::{BesideDecodes, SchedulerConfig};
use crate::{Error, Result};

/// Maximum bytes of a request's name, and of its salt.
const MAX_NAME_BYTES: usize = 1024;

/// The most prompt tokens of a step next to new requests, on a device whose steps cannot be interrupted. A decode of
/// many sequences takes some milliseconds there, and about twice as long with this many prompt tokens.
const PREFILL_BESIDE_NEWCOMERS: usize = 160;

/// Limits of steps on a device where they may take seconds: a full step of a CPU with a long context. The client of a
/// stream notices gaps of more than a tenth of a second. Fewer prompt tokens than these would not use the CPU well.
const BESIDE_DECODES: BesideDecodes = BesideDecodes { step_micros: 100_000, min_prefill: 16 };

/// The limits that requests are checked against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub config: &'a EngineConfig,
    pub vocab_size: usize,
    pub has_tokenizer: bool,
}

/// Returns the scheduler's part of the configuration, for the executor that runs its steps.
pub(crate) fn scheduler_config(config: &EngineConfig, executor: &dyn Executor) -> SchedulerConfig {
    let can_stop = executor.interrupt().is_some();
    SchedulerConfig {
        max_num_seqs: config.max_num_seqs,
        max_num_batched_tokens: config.max_num_batched_tokens,
        max_drafts: config.max_drafts,
        max_model_len: config.max_model_len,
        context_length: config.context_length,
        max_queue_size: config.max_queue_size,
        max_num_partial_prefills: config.max_num_partial_prefills,
        max_long_partial_prefills: config.max_long_partial_prefills,
        long_prefill_token_threshold: config.long_prefill_token_threshold,
        max_prefill_beside_newcomers: match can_stop || config.is_bidirectional() {
            true => config.max_num_batched_tokens,
            false => PREFILL_BESIDE_NEWCOMERS,
        },
        beside_decodes: can_stop.then_some(BESIDE_DECODES),
        draft_lags: executor.draft_lags(),
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

    pub(super) fn check_token_ids(&self, what: &'static str, mut token_ids: impl Iterator<Item = u32>) -> Result<()> {
        match token_ids.find(|&token| token as usize >= self.vocab_size) {
            Some(bad) => Err(Error::invalid(what, bad, format!("less than {}", self.vocab_size))),
            None => Ok(()),
        }
    }

    /// Rejects generation with a bidirectional model: it sees the tokens after each position, so it cannot predict
    /// them.
    pub(super) fn check_generates(&self) -> Result<()> {
        match self.config.is_bidirectional() {
            false => Ok(()),
            true => {
                let got = "an embedding model (its attention is bidirectional)";
                Err(Error::invalid("model", got, "one that generates; request embeddings of this one (embed)"))
            }
        }
    }

    /// Checks the pooling type: a rank head requires an explicit type, and other models have no rank.
    pub(super) fn check_pooling(&self, params: &PoolingParams) -> Result<()> {
        let of_file = self.config.pooling;
        match params.pooling {
            Some(Pooling::Rank) if of_file != Pooling::Rank => {
                let expected = "another one: the model has no rank head (tensor cls.output.weight)";
                Err(Error::invalid("pooling", "rank", expected))
            }
            None if of_file == Pooling::Rank => {
                let expected = "'last', 'mean' or 'cls': the model ranks, which is what score is for";
                Err(Error::invalid("pooling", "auto", expected))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check_params(&self, params: &SamplingParams) -> Result<()> {
        params.validate()?;
        // More sequences could never be served at once, since those without a slot wait in the queue.
        let most = self.config.max_num_seqs.saturating_add(self.config.max_queue_size);
        if params.n > most {
            let expected = format!("at most max_num_seqs + max_queue_size, which is {most}");
            return Err(Error::invalid("n", params.n, expected));
        }
        if !self.has_tokenizer && !params.stop.is_empty() {
            return Err(Error::invalid("stop", "stop strings", "stop_token_ids: this engine has no tokenizer"));
        }
        self.check_token_ids("logit_bias token id", params.logit_bias.iter().map(|&(token, _)| token))?;
        self.check_token_ids("thinking_end_token_id", params.thinking_end_token_id.into_iter())?;
        let begin = params.structured_outputs.as_ref().and_then(|outputs| outputs.begin);
        self.check_token_ids("begin_token_id", begin.map(|begin| begin.id).into_iter())?;
        self.check_token_ids("stop_token_ids", params.stop_token_ids.iter().copied())
    }
}
