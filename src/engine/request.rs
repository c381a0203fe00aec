//! A request while it lives: light, on the host, gone with its end.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::delivery::Delivery;
use super::guidance::Rule;
use super::ids::{RequestId, request_of, seq_id};
use super::output::{FinishReason, RequestMetrics, SequenceOutput, SharedSink};
use super::pooling::Pooled;
use super::sequence::Sequence;
use super::speculation::Guesses;
use crate::config::SamplingParams;
use crate::sampler::{Picked, Sampler, SequenceSampler, TokenLogprobs};
use crate::scheduler::{ScheduledSeq, SeqId};
use crate::selection::{Needs, Selection, Wanted, Wish};
use crate::{Error, Result};

/// A token that was sampled for a sequence in this step.
#[derive(Debug)]
pub(super) struct Pick {
    pub seq: SeqId,
    pub token: u32,
    /// Set for a sequence that begins here, as a copy of this one.
    pub fork_of: Option<SeqId>,
    pub logprobs: Option<TokenLogprobs>,
}

pub(super) struct Request {
    pub id: RequestId,
    pub name: Arc<str>,
    pub prompt: Arc<[u32]>,
    /// Microseconds of the engine's clock.
    pub arrival: u64,
    pub deadline: Option<u64>,
    /// It has run, so it no longer has a place in the queue.
    pub started: bool,
    pub metrics: RequestMetrics,
    pub work: Work,
}

pub(super) enum Work {
    Generate(Generation),
    Pool(Pooled),
    /// Rows of logits so far.
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

/// Room for all logits of a prompt at once: grown bit by bit they would take up to twice as much.
fn reserve_rows(rows: &mut Vec<f32>, count: usize, vocab_size: usize) -> Result<()> {
    let len = count.saturating_mul(vocab_size);
    rows.try_reserve_exact(len).map_err(|_| Error::OutOfMemory {
        what: format!("the logits of {count} prompt tokens"),
        requested: (len as u64).saturating_mul(size_of::<f32>() as u64),
        available: 0,
        advice: "ask for the logits of a shorter prompt",
    })
}

/// Picks one token by its rule: from what the device selected of the row, or from the row itself where that is not
/// enough. A forced one does not depend on the row.
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
    };
    match sampler.pick(selection.row(row), selection.unaltered(row), sequence, mask)? {
        Some(picked) => Ok(picked),
        None => sampler.pick_from_row(selection.whole_row(row)?, sequence, mask),
    }
}

impl Request {
    /// Writes what the sequence needs of its rows of a step's logits to `wishes`, which holds all rows of the step.
    pub(super) fn want_logits<'a>(&'a self, scheduled: &ScheduledSeq, vocab_size: usize, wishes: &mut [Wish<'a>]) {
        let wanted = if matches!(self.work, Work::Pool(_)) { Wanted::Hidden } else { Wanted::Row };
        wishes[scheduled.logits.clone()].fill(wanted.into());
        if let Work::Generate(generation) = &self.work {
            let (_, index) = request_of(scheduled.id);
            let sequence = &generation.sequences[index];
            for (ahead, row) in scheduled.samples.clone().enumerate() {
                // Penalties of tokens behind others count these as well: the host knows how.
                let is_host_work = ahead > 0 && sequence.sampler().alters_logits();
                wishes[row] = match sequence.rule(ahead) {
                    Ok(Rule::Free) if is_host_work => continue,
                    Ok(Rule::Masked(_)) if ahead > 0 => continue,
                    Ok(Rule::Free) => sequence.sampler().wish(vocab_size, ahead, None),
                    Ok(Rule::Masked(mask)) => sequence.sampler().wish(vocab_size, ahead, Some(mask)),
                    Ok(Rule::Forced(_)) if generation.params.logprobs.is_some() => continue,
                    // Nothing of the row is needed, and this is the least. A rule that failed ends its request.
                    Ok(Rule::Forced(_)) | Err(_) => Wanted::Argmax.into(),
                };
            }
        }
    }

    /// The results that its part in a step is computed for.
    pub(super) fn needs(&self) -> Needs {
        let hidden = matches!(self.work, Work::Pool(_));
        Needs { logits: !hidden, hidden }
    }

    /// Whether log-probabilities of its tokens are wanted.
    pub(super) fn wants_logprobs(&self) -> bool {
        matches!(&self.work, Work::Generate(generation) if generation.params.logprobs.is_some())
    }

    /// Whether rules say which tokens its sequences may go on with.
    pub(super) fn is_guided(&self) -> bool {
        match &self.work {
            Work::Generate(generation) => generation.sequences.iter().any(Sequence::is_guided),
            Work::PromptLogits { .. } | Work::Pool(_) => false,
        }
    }

    /// The sequence that gets tokens in this step, if it does.
    fn sampled(&mut self, scheduled: &ScheduledSeq) -> Option<&mut Sequence> {
        match &mut self.work {
            Work::Generate(generation) if !scheduled.samples.is_empty() => {
                Some(&mut generation.sequences[request_of(scheduled.id).1])
            }
            _ => None,
        }
    }

    /// Has it computed what the sequence may go on with, if it gets a token in this step. Whether that takes time.
    pub(super) fn prepare(&mut self, scheduled: &ScheduledSeq) -> bool {
        self.sampled(scheduled).is_some_and(|sequence| {
            sequence.prepare();
            sequence.is_awaited()
        })
    }

    /// Waits until it is known what the sequence may go on with.
    pub(super) fn settle(&mut self, scheduled: &ScheduledSeq) {
        if let Some(sequence) = self.sampled(scheduled) {
            sequence.settle();
        }
    }

    /// Reads a step's logits: samples the next tokens of the sequence (and the first ones of its forks) into `picks`,
    /// up to the first that differs from its draft, or keeps what was asked of the prompt. `true` when a request that
    /// samples nothing has all it wanted.
    pub(super) fn read_logits(
        &mut self,
        scheduled: &ScheduledSeq,
        drafts: &[u32],
        logits: &mut Selection<'_>,
        sampler: &mut Sampler,
        picks: &mut Vec<Pick>,
    ) -> Result<bool> {
        match &mut self.work {
            Work::PromptLogits { rows, .. } => {
                if rows.is_empty() {
                    reserve_rows(rows, self.prompt.len(), logits.cols())?;
                }
                // Positions that a preemption makes the request compute again come without logits.
                for row in scheduled.logits.clone() {
                    rows.extend_from_slice(logits.whole_row(row)?);
                }
                Ok(!scheduled.samples.is_empty())
            }
            Work::Pool(pooled) => pooled.read(scheduled, logits),
            Work::Generate(generation) => {
                generation.read_prompt(scheduled, &self.prompt, logits, sampler)?;
                generation.sample(self.id, scheduled, drafts, logits, sampler, picks)?;
                Ok(false)
            }
        }
    }

    /// The tokens that are known to be the only ones that may come next in a sequence, one after the other.
    pub(super) fn forced(&self, seq: SeqId) -> &[u32] {
        match &self.work {
            Work::Generate(generation) => generation.sequences[request_of(seq).1].forced(),
            Work::PromptLogits { .. } | Work::Pool(_) => &[],
        }
    }

    /// Guesses what follows these tokens, the next ones of a sequence.
    pub(super) fn guess(&mut self, seq: SeqId, tokens: &[u32]) -> Option<Guesses> {
        self.generation()?.sequences[request_of(seq).1].guess(tokens)
    }

    /// Takes what the model has guessed of the tokens that come next in a sequence.
    pub(super) fn guessed(&mut self, seq: SeqId, tokens: &[u32]) {
        if let Some(generation) = self.generation() {
            generation.sequences[request_of(seq).1].guessed(tokens);
        }
    }

    pub(super) fn generation(&mut self) -> Option<&mut Generation> {
        match &mut self.work {
            Work::Generate(generation) => Some(generation),
            Work::Pool(_) | Work::PromptLogits { .. } => None,
        }
    }

    /// The consumer of its outputs; whoever waits for logits has none.
    pub(super) fn sink(&self) -> Option<&SharedSink> {
        match &self.work {
            Work::Generate(generation) => Some(&generation.sink),
            Work::Pool(pooled) => Some(&pooled.sink),
            Work::PromptLogits { .. } => None,
        }
    }

    /// Ends what has not ended yet: the last outputs of that, with their consumer.
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

    /// Gives the consumer of a request that samples nothing what it wanted.
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
    /// Log-probabilities of the prompt's tokens: the logits at one position are about the next.
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
        let first = scheduled.start + scheduled.num_tokens - scheduled.logits.len();
        for (position, row) in (first + 1..prompt.len()).zip(scheduled.logits.clone()) {
            known.push(Some(sampler.logprobs(logits.whole_row(row)?, prompt[position], top)?));
        }
        Ok(())
    }

    /// Samples a token of each row that the sequence was given for it: one, or where tokens were drafted one more than
    /// there are of these. The first token that is not its draft is the last: rows behind it are about another text.
    fn sample(
        &mut self,
        id: RequestId,
        scheduled: &ScheduledSeq,
        drafts: &[u32],
        logits: &mut Selection<'_>,
        sampler: &mut Sampler,
        picks: &mut Vec<Pick>,
    ) -> Result<()> {
        let (_, index) = request_of(scheduled.id);
        let rows = scheduled.samples.clone();
        // The sequence as it is behind its drafts.
        let mut drafted = (rows.len() > 1).then(|| self.sequences[index].sampler().clone());
        for (ahead, row) in rows.enumerate() {
            // Its forks begin as it does, so that they have one rule. A device draws for the sequence alone: for the
            // first tokens of its forks the row is read.
            let rule = self.sequences[index].rule(ahead)?;
            let forks = if self.sequences[index].forks_now(index) { 1..self.sequences.len() } else { 0..0 };
            for index in std::iter::once(index).chain(forks.clone()) {
                let sequence = drafted.as_ref().unwrap_or_else(|| self.sequences[index].sampler());
                let Picked { token, logprobs } = pick(rule, row, logits, sampler, sequence)?;
                let fork_of = forks.contains(&index).then_some(scheduled.id);
                picks.push(Pick { seq: seq_id(id, index), token, fork_of, logprobs });
            }
            if let (Some(sequence), Some(pick)) = (&mut drafted, picks.last()) {
                // A guess of the model may be a token that ends the text, or behind which a form begins.
                let is_right = drafts.get(ahead) == Some(&pick.token);
                if !is_right || self.sequences[index].turns_at(pick.token) {
                    break;
                }
                sequence.accept(pick.token);
            }
        }
        Ok(())
    }

    /// The last output of every sequence that has not ended yet.
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
