//! The merged progress of one request.

use crate::Error;
use crate::config::RequestParams;
use crate::engine::{FinishReason, RequestId, RequestMetrics, SequenceOutput, TokenLogprobs};

/// One of the `n` sequences of a request.
#[derive(Default)]
struct Sequence {
    /// News since the last `take`.
    news: Option<SequenceOutput>,
    ended: bool,
}

/// The news of a request that have not been taken. Each token is delivered and converted once. A caller that needs all
/// tokens so far joins the parts.
pub(in crate::python) struct Progress {
    /// True if everything is kept for one delivery at the end.
    final_only: bool,
    sequences: Vec<Sequence>,
    num_unfinished: usize,
    /// True if the consumer was notified and has not taken the news yet.
    announced: bool,
    wants_logprobs: bool,
    metrics: RequestMetrics,
}

impl Progress {
    pub(in crate::python) fn new(params: &RequestParams, final_only: bool) -> Self {
        let n = params.n();
        Self {
            final_only,
            sequences: (0..n).map(|_| Sequence::default()).collect(),
            num_unfinished: n,
            announced: false,
            wants_logprobs: matches!(params, RequestParams::Sampling(params) if params.logprobs.is_some()),
            metrics: RequestMetrics::default(),
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.num_unfinished == 0
    }

    /// Returns the number of generated tokens that have not been taken.
    pub(in crate::python) fn num_tokens(&self) -> usize {
        self.sequences.iter().flat_map(|sequence| &sequence.news).map(|news| news.token_ids.len()).sum()
    }

    /// Adds new output, in order of time. Returns true if the consumer has to be notified.
    pub(super) fn merge(&mut self, output: SequenceOutput) -> bool {
        let Some(sequence) = self.sequences.get_mut(output.index) else { return false };
        if sequence.ended {
            return false;
        }
        sequence.ended = output.finish_reason.is_some();
        self.num_unfinished -= usize::from(sequence.ended);
        self.metrics = output.metrics;
        match &mut sequence.news {
            Some(news) => news.merge(output),
            None => sequence.news = Some(output),
        }
        let tell = !self.announced && (self.is_finished() || !self.final_only);
        self.announced |= tell;
        tell
    }

    /// Ends the unfinished sequences with an error. Returns true if the consumer has to be notified.
    pub(in crate::python) fn fail(&mut self, request: RequestId, error: &Error) -> bool {
        let mut tell = false;
        for index in 0..self.sequences.len() {
            tell |= self.merge(SequenceOutput {
                request,
                index,
                token_ids: Vec::new(),
                text: String::new(),
                logprobs: Vec::new(),
                cumulative_logprob: None,
                prompt_logprobs: None,
                embedding: None,
                finish_reason: Some(FinishReason::Error),
                stop_reason: None,
                error: Some(error.clone()),
                metrics: self.metrics,
            });
        }
        tell
    }

    /// Takes the news; `None` if there are none since the last call.
    pub(in crate::python) fn take(&mut self) -> Option<Update> {
        if !std::mem::take(&mut self.announced) {
            return None;
        }
        let mut sequences: Vec<_> = self.sequences.iter_mut().filter_map(|sequence| sequence.news.take()).collect();
        Some(Update {
            finished: self.is_finished(),
            wants_logprobs: self.wants_logprobs,
            prompt_logprobs: sequences.iter_mut().find_map(|output| output.prompt_logprobs.take()),
            embedding: sequences.iter_mut().find_map(|output| output.embedding.take()),
            metrics: self.metrics,
            sequences,
        })
    }
}

/// The news that a consumer takes at once. `update.rs` converts it to Python.
pub(in crate::python) struct Update {
    /// One output for each sequence with news.
    pub(super) sequences: Vec<SequenceOutput>,
    pub(super) finished: bool,
    pub(super) wants_logprobs: bool,
    pub(in crate::python) prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
    pub(in crate::python) embedding: Option<Vec<f32>>,
    pub(in crate::python) metrics: RequestMetrics,
}
