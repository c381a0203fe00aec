//! The merged progress of one request.

use crate::Error;
use crate::config::SamplingParams;
use crate::engine::{FinishReason, RequestMetrics, SequenceOutput, StopReason, TokenLogprobs};

/// One of the `n` sequences of a request.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    pub(super) token_ids: Vec<u32>,
    pub(super) text: String,
    pub(super) logprobs: Vec<TokenLogprobs>,
    pub(super) cumulative_logprob: Option<f64>,
    pub(super) finish_reason: Option<FinishReason>,
    pub(super) stop_reason: Option<StopReason>,
    pub(super) error: Option<Error>,
    /// Something came since the last `take`.
    has_news: bool,
}

/// What has come for a request and has not been taken. Each token is handed over, and converted, once: who wants all so
/// far puts the pieces together.
pub(super) struct Progress {
    /// Everything is kept for one delivery at the end.
    final_only: bool,
    sequences: Vec<Sequence>,
    num_unfinished: usize,
    /// Its consumer was told, and has not taken yet.
    announced: bool,
    wants_logprobs: bool,
    prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    metrics: RequestMetrics,
}

impl Progress {
    pub(super) fn new(params: &SamplingParams, final_only: bool) -> Self {
        Self {
            final_only,
            sequences: (0..params.n).map(|_| Sequence::default()).collect(),
            num_unfinished: params.n,
            announced: false,
            wants_logprobs: params.logprobs.is_some(),
            prompt_logprobs: None,
            metrics: RequestMetrics::default(),
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.num_unfinished == 0
    }

    /// Generated tokens that have not been taken.
    pub(super) fn num_tokens(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.token_ids.len()).sum()
    }

    /// Adds what is new (outputs come in order of time); `true` when the consumer is to be told.
    pub(super) fn merge(&mut self, output: SequenceOutput) -> bool {
        let Some(sequence) = self.sequences.get_mut(output.index) else { return false };
        if sequence.finish_reason.is_some() {
            return false;
        }
        sequence.token_ids.extend(output.token_ids);
        sequence.text.push_str(&output.text);
        sequence.logprobs.extend(output.logprobs);
        sequence.cumulative_logprob = output.cumulative_logprob.or(sequence.cumulative_logprob);
        sequence.finish_reason = output.finish_reason;
        sequence.stop_reason = output.stop_reason;
        sequence.error = output.error.filter(|_| output.finish_reason == Some(FinishReason::Error));
        sequence.has_news = true;
        self.num_unfinished -= usize::from(output.finish_reason.is_some());
        self.prompt_logprobs = output.prompt_logprobs.or(self.prompt_logprobs.take());
        self.metrics = output.metrics;
        let tell = !self.announced && (self.is_finished() || !self.final_only);
        self.announced |= tell;
        tell
    }

    /// `None` when nothing came since the last call.
    pub(super) fn take(&mut self) -> Option<Update> {
        if !std::mem::take(&mut self.announced) {
            return None;
        }
        Some(Update {
            sequences: self.take_sequences(),
            finished: self.is_finished(),
            wants_logprobs: self.wants_logprobs,
            prompt_logprobs: self.prompt_logprobs.take(),
            metrics: self.metrics,
        })
    }

    fn take_sequences(&mut self) -> Vec<(usize, Sequence)> {
        let fresh = |sequence: &mut Sequence| {
            let rest = Sequence {
                cumulative_logprob: sequence.cumulative_logprob,
                finish_reason: sequence.finish_reason,
                ..Sequence::default()
            };
            std::mem::replace(sequence, rest)
        };
        self.sequences.iter_mut().enumerate().filter(|(_, s)| s.has_news).map(|(i, s)| (i, fresh(s))).collect()
    }
}

/// What a consumer takes at once; `update.rs` converts it to Python.
pub(super) struct Update {
    /// Sequences with news, each with its index.
    pub(super) sequences: Vec<(usize, Sequence)>,
    pub(super) finished: bool,
    pub(super) wants_logprobs: bool,
    pub(super) prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    pub(super) metrics: RequestMetrics,
}
