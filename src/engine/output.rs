//! The outputs that the engine sends back for a request.

pub(crate) mod records;
pub(crate) mod sink;

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ids::RequestId;
use crate::Error;
use crate::kv_cache::PrefixMiss;
pub use crate::sampler::{TokenLogprob, TokenLogprobs};

/// The reason why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FinishReason {
    /// End-of-generation token, stop token or stop string.
    Stop,
    /// `max_tokens` or the model's length was reached.
    Length,
    /// Aborted by the caller, or the caller is gone.
    Abort,
    /// The request's deadline passed.
    Timeout,
    /// A step failed, or the engine died.
    Error,
}

/// The token or string that stopped a sequence with `FinishReason::Stop`. There is none if the model's own end token
/// ended it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    Token(u32),
    String(String),
}

/// Times of a request, seconds since it arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestMetrics {
    /// The request's arrival, in seconds since the Unix epoch.
    pub arrival_time: f64,
    pub time_in_queue: Option<f64>,
    pub time_to_first_token: Option<f64>,
    pub total_time: Option<f64>,
    pub num_cached_tokens: usize,
    /// The reason why no more of the prompt came from the prefix cache; `None` until that is known.
    pub prefix_miss: Option<PrefixMiss>,
    pub num_preemptions: usize,
}

/// New results of one sequence (`index` of `n`) of a request since the last delivery.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SequenceOutput {
    pub request: RequestId,
    pub index: usize,
    pub token_ids: Vec<u32>,
    pub text: String,
    /// One entry per token in `token_ids`; empty unless logprobs were requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// The sum over all tokens so far, if logprobs were requested.
    pub cumulative_logprob: Option<f64>,
    /// One entry per prompt token (the first is `None`), sent with the first delivery if requested.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    /// The result of a pooling request, sent with its end.
    pub embedding: Option<Vec<f32>>,
    pub finish_reason: Option<FinishReason>,
    pub stop_reason: Option<StopReason>,
    /// Set with `FinishReason::Error` only.
    #[serde(serialize_with = "tell_error", deserialize_with = "told_error")]
    pub error: Option<Error>,
    pub metrics: RequestMetrics,
}

impl SequenceOutput {
    /// Appends a later output of the same sequence, so that undelivered outputs of several steps become one.
    pub fn merge(&mut self, later: Self) {
        self.token_ids.extend(later.token_ids);
        self.text.push_str(&later.text);
        self.logprobs.extend(later.logprobs);
        self.cumulative_logprob = later.cumulative_logprob;
        self.prompt_logprobs = self.prompt_logprobs.take().or(later.prompt_logprobs);
        self.embedding = later.embedding;
        self.finish_reason = later.finish_reason;
        self.stop_reason = later.stop_reason;
        self.error = later.error;
        self.metrics = later.metrics;
    }
}

/// A sequence's error as another process gets it: its kind, as far as Python distinguishes it.
#[derive(Serialize, Deserialize)]
enum ToldError {
    EngineDead(String),
    GrammarFailed(String),
    Internal(String),
    StepFailed(String),
}

fn tell_error<S: Serializer>(error: &Option<Error>, serializer: S) -> Result<S::Ok, S::Error> {
    let told = error.as_ref().map(|error| match error {
        Error::EngineDead { reason } => ToldError::EngineDead(reason.clone()),
        Error::GrammarFailed { problem } => ToldError::GrammarFailed(problem.clone()),
        Error::Internal { problem } => ToldError::Internal(problem.clone()),
        Error::StepFailed { problem } => ToldError::StepFailed(problem.clone()),
        other => ToldError::StepFailed(other.to_string()),
    });
    told.serialize(serializer)
}

fn told_error<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Error>, D::Error> {
    let told = Option::<ToldError>::deserialize(deserializer)?;
    Ok(told.map(|error| match error {
        ToldError::EngineDead(reason) => Error::EngineDead { reason },
        ToldError::GrammarFailed(problem) => Error::GrammarFailed { problem },
        ToldError::Internal(problem) => Error::Internal { problem },
        ToldError::StepFailed(problem) => Error::StepFailed { problem },
    }))
}

/// The receiver of a request's outputs. It is called on the output thread, never on the engine thread. Each call passes
/// everything new for all requests of this sink, in order. It must not block for long. If it returns `false`, its
/// consumer is gone and the requests are aborted.
pub trait OutputSink: Send + Sync {
    fn deliver(&self, outputs: Vec<SequenceOutput>) -> bool;
}

pub type SharedSink = Arc<dyn OutputSink>;

/// True if both are the same object, whatever vtables their pointers carry.
pub(super) fn same_sink(a: &SharedSink, b: &SharedSink) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(token: u32) -> SequenceOutput {
        SequenceOutput {
            request: RequestId(1),
            index: 0,
            token_ids: vec![token],
            text: token.to_string(),
            logprobs: vec![vec![TokenLogprob { token_id: token, logprob: -1.0, rank: 1 }]],
            cumulative_logprob: Some(-f64::from(token)),
            prompt_logprobs: None,
            embedding: None,
            finish_reason: None,
            stop_reason: None,
            error: None,
            metrics: RequestMetrics { num_cached_tokens: token as usize, ..Default::default() },
        }
    }

    /// A23, A24: nothing of either part is lost; totals come from the later part.
    #[test]
    fn merged_outputs_are_one() {
        let mut merged = SequenceOutput { prompt_logprobs: Some(vec![None]), ..part(1) };
        merged.merge(part(2));
        let error = Some(Error::StepFailed { problem: "no".into() });
        let stop_reason = Some(StopReason::Token(3));
        merged.merge(SequenceOutput { finish_reason: Some(FinishReason::Error), stop_reason, error, ..part(3) });
        assert_eq!((merged.token_ids, merged.text.as_str()), (vec![1, 2, 3], "123"));
        assert_eq!(merged.logprobs.iter().map(|top| top[0].token_id).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((merged.cumulative_logprob, merged.metrics.num_cached_tokens), (Some(-3.0), 3));
        assert_eq!(merged.prompt_logprobs, Some(vec![None]));
        assert_eq!((merged.finish_reason, merged.stop_reason), (Some(FinishReason::Error), Some(StopReason::Token(3))));
        assert!(merged.error.is_some());
    }
}
