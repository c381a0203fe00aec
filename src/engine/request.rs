//! The state of a live request: small, on the host, dropped when the request ends.

pub(crate) mod pooling;
pub(crate) mod sequence;
pub(crate) mod stop;

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;

use super::delivery::Delivery;
use super::guidance::Rule;
use super::ids::{RequestId, request_of, seq_id};
use super::output::{FinishReason, RequestMetrics, SequenceOutput, SharedSink};
use super::speculation::Proposal;
use crate::config::SamplingParams;
use crate::sampler::{Picked, Sampler, SequenceSampler, TokenLogprobs};
use crate::scheduler::{ScheduledSeq, SeqId};
use crate::selection::{Needs, SamplingRequest, Selection, Wanted};
use crate::{Error, Result};
use pooling::Pooled;
use sequence::Sequence;

/// A token that was sampled for a sequence in this step.
#[derive(Debug)]
pub(super) struct Pick {
    pub seq: SeqId,
    pub token: u32,
    /// The parent, for a sequence that starts here as a copy of it.
    pub fork_of: Option<SeqId>,
    pub logprobs: Option<TokenLogprobs>,
}

/// The results of a step for its sequences.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub picks: Vec<Pick>,
    /// Rows of sequences whose masks were not ready.
    pub rows: Vec<(SeqId, Vec<f32>)>,
}

/// The logits row or the picked tokens with which a parked sequence waits.
#[derive(Debug)]
pub(super) enum Parked {
    /// The row from which its next token is picked.
    Row(Vec<f32>),
    /// Its next tokens, and the first tokens of its forks.
    Picks(Vec<Pick>),
}

pub(super) struct Request {
    pub id: RequestId,
    pub name: Arc<str>,
    pub prompt: Arc<[u32]>,
    /// Microseconds of the engine's clock.
    pub arrival: u64,
    pub deadline: Option<u64>,
    /// True if the request has run, so it no longer counts for the queue.
    pub started: bool,
    pub metrics: RequestMetrics,
    pub work: Work,
}

pub(super) enum Work {
    Generate(Generation),
    Pool(Pooled),
    /// The rows of logits so far.
    PromptLogits {
        rows: Vec<f32>,
        reply: Sender<Result<Vec<f32>>>,
    },
}

pub(super) struct Generation {
    pub params: Arc<SamplingParams>,
    pub sink: SharedSink,
    pub sequences: Vec<Sequence>,
    /// Log-probabilities of the prompt, until the first delivery takes them.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprobs>>>,
}

/// Reserves room for all logits of a prompt at once, since growing step by step could take twice as much.
fn reserve_rows(rows: &mut Vec<f32>, count: usize, vocab_size: usize) -> Result<()> {
    let len = count.saturating_mul(vocab_size);
    rows.try_reserve_exact(len).map_err(|_| Error::OutOfMemory {
        what: format!("the logits of {count} prompt tokens"),
        requested: (len as u64).saturating_mul(size_of::<f32>() as u64),
        available: 0,
        advice: "ask for the logits of a shorter prompt",
    })
}

/// Picks one token by its rule, from what the device selected of the row, or else from the row itself. A forced token
/// does not depend on the row.
fn pick(
    rule: Rule<'_>,
    row: usize,
    selection: &mut Selection<'_>,
    sampler: &mut Sampler,
    sequence: &SequenceSampler,
) -> Result<Picked> {
    let mask = match rule {
        Rule::Forced(token) => {
            let top = sequence.params().logprobs;
            let logprobs = top.map(|top| sampler.logprobs(selection.whole_row(row)?, token, top)).transpose()?;
            return Ok(Picked { token, logprobs });
        }
        Rule::Masked(mask) => Some(mask),
        Rule::Free => None,
        Rule::Awaited => return Err(Error::internal("a token was picked without its mask")),
    };
    match sampler.pick(selection.row(row), selection.unaltered(row), sequence, mask)? {
        Some(picked) => Ok(picked),
        None => sampler.pick_from_row(selection.whole_row(row)?, sequence, mask),
    }
}

impl Request {
    /// Writes the sampling requests of the sequence's rows to `sampling_requests`, which covers all rows of the step.
    pub(super) fn want_logits<'a>(
        &'a self,
        scheduled: &ScheduledSeq,
        vocab_size: usize,
        sampling_requests: &mut [SamplingRequest<'a>],
    ) {
        let wanted = if matches!(self.work, Work::Pool(_)) { Wanted::Hidden } else { Wanted::Row };
        sampling_requests[scheduled.logits.clone()].fill(wanted.into());
        if let Work::Generate(generation) = &self.work {
            let (_, index) = request_of(scheduled.id);
            let sequence = &generation.sequences[index];
            for (ahead, row) in scheduled.samples.clone().enumerate() {
                // Penalties of a later row also count the tokens before it; only the host does that.
                let is_host_work = ahead > 0 && sequence.sampler().alters_logits();
                sampling_requests[row] = match sequence.rule(ahead) {
                    Ok(Rule::Free) if is_host_work => continue,
                    Ok(Rule::Masked(_)) if ahead > 0 => continue,
                    // Its token, or the row for it, is already known.
                    _ if sequence.parked => Wanted::Argmax.into(),
                    Ok(Rule::Awaited) => continue,
                    Ok(Rule::Free) => sequence.sampler().sampling_request(vocab_size, ahead, None),
                    Ok(Rule::Masked(mask)) => sequence.sampler().sampling_request(vocab_size, ahead, Some(mask)),
                    Ok(Rule::Forced(_)) if generation.params.logprobs.is_some() => continue,
                    // Nothing of the row is needed, and this request is the cheapest. A failed rule ends its request.
                    Ok(Rule::Forced(_)) | Err(_) => Wanted::Argmax.into(),
                };
            }
        }
    }

    /// Returns the kind of results that the request needs from a step.
    pub(super) fn needs(&self) -> Needs {
        let hidden = matches!(self.work, Work::Pool(_));
        Needs { logits: !hidden, hidden }
    }

    /// True if log-probabilities of generated tokens are requested.
    pub(super) fn wants_logprobs(&self) -> bool {
        matches!(&self.work, Work::Generate(generation) if generation.params.logprobs.is_some())
    }

    /// True if its sequences are constrained in the tokens that they may use.
    pub(super) fn is_guided(&self) -> bool {
        match &self.work {
            Work::Generate(generation) => generation.sequences.iter().any(Sequence::is_guided),
            Work::PromptLogits { .. } | Work::Pool(_) => false,
        }
    }

    /// Returns the sequence that gets tokens in this step, if any.
    fn sampled(&mut self, scheduled: &ScheduledSeq) -> Option<&mut Sequence> {
        match &mut self.work {
            Work::Generate(generation) if !scheduled.samples.is_empty() => {
                Some(&mut generation.sequences[request_of(scheduled.id).1])
            }
            _ => None,
        }
    }

    /// Starts computing the next mask if the sequence gets a token in this step. Returns true if that takes time.
    pub(super) fn prepare(&mut self, scheduled: &ScheduledSeq) -> bool {
        self.sampled(scheduled).is_some_and(|sequence| {
            sequence.prepare();
            sequence.is_awaited()
        })
    }

    /// Takes the computed mask if it is ready by the deadline.
    pub(super) fn settle_by(&mut self, scheduled: &ScheduledSeq, deadline: Instant) {
        if let Some(sequence) = self.sampled(scheduled) {
            sequence.settle_by(deadline);
        }
    }

    /// Reads a step's logits. Samples into `taken` the next tokens of the sequence, up to the first that differs from
    /// its draft, and the first tokens of its forks. For a request that samples nothing, keeps the requested results of
    /// the prompt. Returns `true` if a request that samples nothing is complete.
    pub(super) fn read_logits(
        &mut self,
        scheduled: &ScheduledSeq,
        drafts: &[u32],
        logits: &mut Selection<'_>,
        sampler: &mut Sampler,
        taken: &mut Taken,
    ) -> Result<bool> {
        match &mut self.work {
            Work::PromptLogits { rows, .. } => {
                if rows.is_empty() {
                    reserve_rows(rows, self.prompt.len(), logits.cols())?;
                }
                // Positions that are recomputed after a preemption come without logits. A step that was interrupted
                // between two pieces of its rows returns the rows that were read already once more.
                let num_read = rows.len() / logits.cols().max(1);
                for (_, row) in scheduled.positions().filter(|(position, _)| *position >= num_read) {
                    rows.extend_from_slice(logits.whole_row(row)?);
                }
                Ok(!scheduled.samples.is_empty())
            }
            Work::Pool(pooled) => pooled.read(scheduled, logits),
            Work::Generate(generation) => {
                generation.read_prompt(scheduled, &self.prompt, logits, sampler)?;
                generation.sample(self.id, scheduled, drafts, logits, sampler, taken)?;
                Ok(false)
            }
        }
    }

    /// Returns the next tokens of a sequence as far as only one continuation is possible.
    pub(super) fn forced(&self, seq: SeqId) -> &[u32] {
        match &self.work {
            Work::Generate(generation) => generation.sequences[request_of(seq).1].forced(),
            Work::PromptLogits { .. } | Work::Pool(_) => &[],
        }
    }

    /// Proposes draft tokens to follow these next tokens of a sequence.
    pub(super) fn propose(&mut self, seq: SeqId, tokens: &[u32]) -> Option<Proposal> {
        self.generation()?.sequences[request_of(seq).1].propose(tokens)
    }

    /// Takes the draft tokens that the model has computed for a sequence.
    pub(super) fn drafted(&mut self, seq: SeqId, tokens: &[u32]) {
        if let Some(generation) = self.generation() {
            generation.sequences[request_of(seq).1].drafted(tokens);
        }
    }

    pub(super) fn generation(&mut self) -> Option<&mut Generation> {
        match &mut self.work {
            Work::Generate(generation) => Some(generation),
            Work::Pool(_) | Work::PromptLogits { .. } => None,
        }
    }

    /// Returns the consumer of its outputs; a request for prompt logits has none.
    pub(super) fn sink(&self) -> Option<&SharedSink> {
        match &self.work {
            Work::Generate(generation) => Some(&generation.sink),
            Work::Pool(pooled) => Some(&pooled.sink),
            Work::PromptLogits { .. } => None,
        }
    }

    /// Ends all sequences that are still live. Returns their last outputs with the consumer.
    pub(super) fn end_all(&mut self, reason: FinishReason, error: Option<&Error>) -> Vec<Delivery> {
        let (id, metrics) = (self.id, self.metrics);
        match &mut self.work {
            Work::Generate(generation) => {
                let outputs = generation.end_all(id, reason, error, metrics);
                outputs.into_iter().map(|output| (Arc::clone(&generation.sink), output)).collect()
            }
            Work::Pool(pooled) => {
                vec![(Arc::clone(&pooled.sink), pooled.end(id, reason, error.cloned(), metrics))]
            }
            Work::PromptLogits { reply, .. } => {
                let error = error.cloned().unwrap_or_else(|| Error::EngineDead { reason: "it was closed".into() });
                // The caller may have stopped waiting.
                let _ = reply.send(Err(error));
                Vec::new()
            }
        }
    }

    /// Returns the result of a request that samples nothing, with its consumer.
    pub(super) fn complete(&mut self) -> Option<Delivery> {
        match &mut self.work {
            Work::Generate(_) => None,
            Work::Pool(pooled) => {
                let output = pooled.end(self.id, FinishReason::Stop, None, self.metrics);
                Some((Arc::clone(&pooled.sink), output))
            }
            Work::PromptLogits { rows, reply } => {
                let _ = reply.send(Ok(std::mem::take(rows)));
                None
            }
        }
    }

    pub(super) fn generated_tokens(&self) -> usize {
        match &self.work {
            Work::Generate(generation) => generation.sequences.iter().map(Sequence::generated).sum(),
            Work::Pool(_) | Work::PromptLogits { .. } => 0,
        }
    }
}

impl Generation {
    /// Reads log-probabilities of the prompt's tokens. The logits at one position predict the next token.
    fn read_prompt(
        &mut self,
        scheduled: &ScheduledSeq,
        prompt: &[u32],
        logits: &mut Selection<'_>,
        sampler: &mut Sampler,
    ) -> Result<()> {
        let (Some(top), Some(known)) = (self.params.prompt_logprobs, &mut self.prompt_logprobs) else {
            return Ok(());
        };
        for (position, row) in scheduled.positions() {
            // A step that was interrupted between two pieces of its rows returns the rows that were read already once
            // more.
            if let Some(&next) = prompt.get(position + 1).filter(|_| position + 1 >= known.len()) {
                known.push(Some(sampler.logprobs(logits.whole_row(row)?, next, top)?));
            }
        }
        Ok(())
    }

    /// Samples a token from each of the sequence's rows: one, plus one per draft token. Sampling stops at the first
    /// token that differs from its draft, since later rows belong to another text. If a mask is not ready, the row is
    /// kept.
    fn sample(
        &mut self,
        id: RequestId,
        scheduled: &ScheduledSeq,
        drafts: &[u32],
        logits: &mut Selection<'_>,
        sampler: &mut Sampler,
        taken: &mut Taken,
    ) -> Result<()> {
        let (_, index) = request_of(scheduled.id);
        let rows = scheduled.samples.clone();
        if self.sequences[index].parked {
            return Ok(());
        }
        if let Some(row) = rows.clone().next()
            && matches!(self.sequences[index].rule(0)?, Rule::Awaited)
        {
            taken.rows.push((scheduled.id, logits.whole_row(row)?.to_vec()));
            return Ok(());
        }
        let picks = &mut taken.picks;
        // The sampler's state after the drafts.
        let mut drafted = (rows.len() > 1).then(|| self.sequences[index].sampler().clone());
        for (ahead, row) in rows.enumerate() {
            // Forks start in the sequence's state and share its rule. The device draws for the sequence alone, so the
            // first tokens of its forks are picked from the row.
            let rule = self.sequences[index].rule(ahead)?;
            let forks = if self.sequences[index].forks_now(index) { 1..self.sequences.len() } else { 0..0 };
            for index in std::iter::once(index).chain(forks.clone()) {
                let sequence = drafted.as_ref().unwrap_or_else(|| self.sequences[index].sampler());
                let Picked { token, logprobs } = pick(rule, row, logits, sampler, sequence)?;
                let fork_of = forks.contains(&index).then_some(scheduled.id);
                picks.push(Pick { seq: seq_id(id, index), token, fork_of, logprobs });
            }
            if let (Some(sequence), Some(pick)) = (&mut drafted, picks.last()) {
                // A draft token of the model may end the text, or start structured output.
                let is_right = drafts.get(ahead) == Some(&pick.token);
                if !is_right || self.sequences[index].turns_at(pick.token) {
                    break;
                }
                sequence.accept(pick.token);
            }
        }
        Ok(())
    }

    /// Returns the last output of every sequence that has not ended yet.
    pub(super) fn end_all(
        &mut self,
        id: RequestId,
        reason: FinishReason,
        error: Option<&Error>,
        metrics: RequestMetrics,
    ) -> Vec<SequenceOutput> {
        let mut prompt_logprobs = self.prompt_logprobs.take();
        let live = self.sequences.iter_mut().enumerate().filter(|(_, sequence)| !sequence.ended());
        live.map(|(index, sequence)| SequenceOutput {
            request: id,
            index,
            token_ids: Vec::new(),
            text: sequence.end(),
            logprobs: Vec::new(),
            cumulative_logprob: sequence.cumulative_logprob(),
            prompt_logprobs: prompt_logprobs.take(),
            embedding: None,
            finish_reason: Some(reason),
            stop_reason: None,
            error: error.cloned(),
            metrics,
        })
        .collect()
    }
}
