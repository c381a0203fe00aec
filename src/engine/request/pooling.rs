//! A request for one vector: collects the hidden states of its prompt chunk by chunk and pools them.

use std::sync::Arc;

use crate::config::Pooling;
use crate::ids::RequestId;
use crate::model::Head;
use crate::output::{FinishReason, RequestMetrics, SequenceOutput, SharedSink};
use crate::scheduler::ScheduledSeq;
use crate::selection::Selection;
use crate::{Error, Result};

pub(crate) struct Pooled {
    pooling: Pooling,
    normalize: bool,
    head: Option<Arc<Head>>,
    pub sink: SharedSink,
    /// The sum of the hidden states so far. Positions are added in order, however the prompt is cut into chunks.
    sum: Vec<f64>,
    count: usize,
    vector: Vec<f32>,
}

impl Pooled {
    /// `head`: the model's head, if the request goes through it.
    pub(crate) fn new(pooling: Pooling, normalize: bool, head: Option<Arc<Head>>, sink: SharedSink) -> Self {
        let pooling = head.as_ref().map_or(pooling, |head| head.input(pooling));
        Self { pooling, normalize, head, sink, sum: Vec::new(), count: 0, vector: Vec::new() }
    }

    /// True if all positions of the prompt are needed, not only the last one. Then none may come from the prefix cache,
    /// which does not keep hidden states.
    pub(crate) fn wants_all(&self) -> bool {
        matches!(self.pooling, Pooling::Mean | Pooling::Cls)
    }

    /// Reads the step's hidden states of the prompt; `true` once the vector is complete.
    ///
    /// # Errors
    /// `StepFailed` if a hidden state is not finite.
    pub(crate) fn read(&mut self, scheduled: &ScheduledSeq, rows: &Selection<'_>) -> Result<bool> {
        let is_done = !scheduled.samples.is_empty();
        for (position, row) in scheduled.positions() {
            // A step that was interrupted between two pieces of its rows returns the rows that were read already once
            // more.
            let is_wanted = match self.pooling {
                Pooling::Mean => position >= self.count,
                Pooling::Cls => position == 0 && self.count == 0,
                Pooling::Last | Pooling::Rank => is_done && row + 1 == scheduled.logits.end && self.count == 0,
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
        let length = length(&self.sum);
        if !length.is_finite() {
            return Err(Error::StepFailed { problem: "the hidden states hold values that are no numbers".into() });
        }
        let Some(head) = &self.head else {
            return Ok(divided(&self.sum, if self.normalize { length } else { self.count as f64 }));
        };
        let hidden: Vec<f64> = self.sum.iter().map(|sum| sum / self.count as f64).collect();
        let values = head.apply(&hidden);
        Ok(divided(&values, if self.normalize && head.embeds() { self::length(&values) } else { 1.0 }))
    }

    /// Returns the only output of the request, with the vector if the request ended normally.
    pub(crate) fn end(
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

fn length(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

fn divided(values: &[f64], divisor: f64) -> Vec<f32> {
    let scale = if divisor > 0.0 { 1.0 / divisor } else { 0.0 };
    values.iter().map(|value| (value * scale) as f32).collect()
}
