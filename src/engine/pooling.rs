//! A request for one vector: the hidden states of its prompt as they come, chunk by chunk, and what becomes of them.

use std::sync::Arc;

use super::ids::RequestId;
use super::output::{FinishReason, RequestMetrics, SequenceOutput, SharedSink};
use crate::config::Pooling;
use crate::model::RankHead;
use crate::scheduler::ScheduledSeq;
use crate::selection::Selection;
use crate::{Error, Result};

pub(super) struct Pooled {
    pooling: Pooling,
    normalize: bool,
    head: Option<Arc<RankHead>>,
    pub sink: SharedSink,
    /// Sum of the hidden states so far; positions are added in their order, however the prompt is cut into chunks.
    sum: Vec<f64>,
    count: usize,
    vector: Vec<f32>,
}

impl Pooled {
    /// `head`: of a model that ranks, where its number is asked for.
    pub(super) fn new(pooling: Pooling, normalize: bool, head: Option<Arc<RankHead>>, sink: SharedSink) -> Self {
        let pooling = head.as_ref().map_or(pooling, |head| head.input());
        Self { pooling, normalize, head, sink, sum: Vec::new(), count: 0, vector: Vec::new() }
    }

    /// Whether all of the prompt's positions are wanted, and not the last one alone: none may come from the prefix
    /// cache, which does not keep hidden states.
    pub(super) fn wants_all(&self) -> bool {
        matches!(self.pooling, Pooling::Mean | Pooling::Cls)
    }

    /// Reads the step's hidden states of the prompt; `true` when the vector is there.
    ///
    /// # Errors
    /// `StepFailed` where hidden states were no numbers.
    pub(super) fn read(&mut self, scheduled: &ScheduledSeq, rows: &Selection<'_>) -> Result<bool> {
        let first = scheduled.start + scheduled.num_tokens - scheduled.logits.len();
        let is_done = !scheduled.samples.is_empty();
        for (position, row) in (first..).zip(scheduled.logits.clone()) {
            let is_wanted = match self.pooling {
                Pooling::Mean => true,
                Pooling::Cls => position == 0,
                Pooling::Last | Pooling::Rank => is_done && row + 1 == scheduled.logits.end,
            };
            if is_wanted {
                self.add(rows.hidden(row)?);
            }
        }
        if is_done {
            self.vector = self.pooled()?;
        }
        Ok(is_done)
    }

    fn add(&mut self, hidden: &[f32]) {
        self.sum.resize(hidden.len(), 0.0);
        self.sum.iter_mut().zip(hidden).for_each(|(sum, &value)| *sum += f64::from(value));
        self.count += 1;
    }

    fn pooled(&self) -> Result<Vec<f32>> {
        let length = self.sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        if !length.is_finite() {
            return Err(Error::StepFailed { problem: "the hidden states hold values that are no numbers".into() });
        }
        if let Some(head) = &self.head {
            let hidden: Vec<f64> = self.sum.iter().map(|sum| sum / self.count as f64).collect();
            return Ok(vec![head.relevance(&hidden) as f32]);
        }
        let divisor = if self.normalize { length } else { self.count as f64 };
        let scale = if divisor > 0.0 { 1.0 / divisor } else { 0.0 };
        Ok(self.sum.iter().map(|value| (value * scale) as f32).collect())
    }

    /// The one output of the request, with the vector if it ends because that is there.
    pub(super) fn end(
        &mut self,
        request: RequestId,
        reason: FinishReason,
        error: Option<Error>,
        metrics: RequestMetrics,
    ) -> SequenceOutput {
        let embedding = (reason == FinishReason::Stop).then(|| std::mem::take(&mut self.vector));
        SequenceOutput {
            request,
            index: 0,
            token_ids: Vec::new(),
            text: String::new(),
            logprobs: Vec::new(),
            cumulative_logprob: None,
            prompt_logprobs: None,
            embedding,
            finish_reason: Some(reason),
            stop_reason: None,
            error,
            metrics,
        }
    }
}
