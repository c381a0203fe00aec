//! What the engine sends back for a request.

use std::sync::Arc;

use super::ids::RequestId;
use crate::Error;
pub use crate::sampler::{TokenLogprob, TokenLogprobs};

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// End-of-generation token, stop token or stop string.
    Stop,
    /// `max_tokens` or the model's length.
    Length,
    /// Aborted by the caller, or the caller is gone.
    Abort,
    /// Its deadline passed.
    Timeout,
    /// A step failed, or the engine died.
    Error,
}

/// What stopped a sequence that finished with `FinishReason::Stop` other than the model's own end token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    Token(u32),
    String(String),
}

/// Times of a request, seconds since it arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RequestMetrics {
    /// When it arrived, seconds since the Unix epoch.
    pub arrival_time: f64,
    pub time_in_queue: Option<f64>,
    pub time_to_first_token: Option<f64>,
    pub total_time: Option<f64>,
    pub num_cached_tokens: usize,
    pub num_preemptions: usize,
}

/// What is new for one sequence (`index` of `n`) of a request since the last delivery.
#[derive(Debug, Clone)]
pub struct SequenceOutput {
    pub request: RequestId,
    pub index: usize,
    pub token_ids: Vec<u32>,
    pub text: String,
    /// One entry per token in `token_ids`, when asked for.
    pub logprobs: Vec<TokenLogprobs>,
    /// Sum over all tokens so far, when logprobs were asked for.
    pub cumulative_logprob: Option<f64>,
    /// Per prompt token (the first is `None`), with the first delivery, when asked for.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    pub finish_reason: Option<FinishReason>,
    pub stop_reason: Option<StopReason>,
    /// Set with `FinishReason::Error` (and `Timeout`, `Abort` where there is more to say).
    pub error: Option<Error>,
    pub metrics: RequestMetrics,
}

/// Where a request's outputs go. Called on the output thread, never on the engine thread, with everything that is
/// new for all of this sink's requests, in order; must not block for long. When a sink says that its consumer is gone
/// (`false`), the requests are aborted.
pub trait OutputSink: Send + Sync {
    fn deliver(&self, outputs: Vec<SequenceOutput>) -> bool;
}

pub type SharedSink = Arc<dyn OutputSink>;

/// The same object, whatever vtable its pointers carry.
pub(super) fn same_sink(a: &SharedSink, b: &SharedSink) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}
