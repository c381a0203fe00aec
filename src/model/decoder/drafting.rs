//! Drafts tokens before the step that verifies them: token by token, for all sequences of the step at once.

use std::cmp::Reverse;

use super::{Buffers, Decoder, Drafter, Ends, Launched, Model, Models, Ropes, no_logits};
use crate::backend::{Backend, Ops};
use crate::batch::{Batch, GroupTables, StateTables, TO_DRAFT};
use crate::images::BatchImages;
use crate::selection::{SamplingRequest, Selected, Selection, Wanted};
use crate::{Error, Result};

/// The tokens of a sequence that a step still has to draft.
#[derive(Debug, Clone, Copy)]
struct Gap {
    seq: usize,
    /// Index of the first of these tokens in the batch, and their number.
    first: usize,
    len: usize,
}

impl<B: Backend> Decoder<B> {
    /// Replaces each `TO_DRAFT` of a step by a draft token. These follow the sequence's first token in the step.
    ///
    /// Starts by computing `first`. It has the token before the first `TO_DRAFT` of each sequence, and only these
    /// tokens have logits. They follow the tokens of the sequence that a draft model lacks. The sequence with the most
    /// draft tokens comes first. Tokens that the draft model lacks of other sequences come last.
    ///
    /// Drafting writes keys and values into the slots of draft tokens. The step writes those of the MTP block again.
    ///
    /// # Errors
    /// Errors of the backend, including `Interrupted`. After an error the tokens are still to be drafted.
    pub fn draft(&mut self, backend: &mut B, batch: &mut Batch, first: &Batch) -> Result<()> {
        let mut gaps = gaps(batch)?;
        if first.logits_indices.len() != gaps.len() {
            let rows = first.logits_indices.len();
            return Err(Error::internal(format!("{rows} rows of logits for draft tokens of {} sequences", gaps.len())));
        }
        if first.num_tokens() == 0 {
            return Ok(());
        }
        let mut rest;
        let mut part = first;
        for place in 0.. {
            // Sequences with fewer drafts come last, because the rows of each step continue the first rows of the step
            // before.
            gaps.truncate(gaps.partition_point(|gap| gap.len > place));
            if place > 0 {
                if gaps.is_empty() {
                    break;
                }
                rest = part_of(batch, &gaps, place);
                part = &rest;
            }
            // A draft model may have tokens that the main model lacks.
            let vocab_size = self.spec().vocab_size;
            let proposed = self.propose(backend, part, place == 0)?;
            let tokens: Vec<u32> = (0..gaps.len()).map(|row| best(proposed.row(row), vocab_size)).collect();
            for (gap, token) in gaps.iter().zip(tokens) {
                batch.token_ids[gap.first + place] = token;
            }
        }
        Ok(())
    }

    /// Returns the logits of the tokens that follow a step's tokens. With `begins`, the step continues from tokens that
    /// the model has computed. Otherwise it has single rows that continue the last such step.
    pub(crate) fn propose<'a>(&'a mut self, backend: &'a mut B, batch: &Batch, begins: bool) -> Result<Selection<'a>> {
        let (tokens, rows) = (batch.num_tokens(), batch.logits_indices.len());
        if rows > self.limits.max_logits_rows || tokens > self.limits.max_num_batched_tokens {
            let limits = self.limits;
            return Err(Error::internal(format!("{tokens} tokens for {rows} draft tokens; the limits are {limits:?}")));
        }
        // The results of the last step are overwritten.
        self.launched = Launched::default();
        let models = &mut self.models;
        backend.step_apart(batch, &mut |step: &mut B::Step<'_>| models.propose(step, begins))?;
        let Models { main, draft, buffers } = &self.models;
        let cols = draft.as_ref().unwrap_or(main).spec.vocab_size;
        if rows == 0 {
            return Ok(Selection::without_logits(0, cols));
        }
        let logits = buffers.logits.as_ref().ok_or_else(no_logits)?;
        let sampling_requests: Vec<SamplingRequest<'_>> = (0..rows).map(|_| Wanted::Argmax.into()).collect();
        backend.select(logits, cols, &sampling_requests)?;
        backend.collect(logits, rows, cols)
    }
}

impl<B: Backend> Models<B> {
    fn propose(&mut self, step: &mut B::Step<'_>, begins: bool) -> Result<()> {
        let Self { main, draft, buffers } = self;
        match draft {
            Some(draft) => {
                let rows = step.num_logits();
                draft.forward(step, buffers, Ends::Rows { rows, wants_logits: true })
            }
            None => main.propose(step, buffers, begins),
        }
    }
}

impl<B: Backend> Model<B> {
    /// Drafts with the model's MTP block.
    fn propose(&mut self, step: &mut B::Step<'_>, buffers: &mut Buffers<B>, begins: bool) -> Result<()> {
        let block = self.weights.drafter.as_ref().ok_or_else(|| Error::internal("draft tokens without a drafter"))?;
        let ropes = Ropes::of_step(step, &self.weights.ropes, &mut buffers.angles[self.first_angles..])?;
        let drafter = Drafter::new(block, &self.weights, &self.spec, &ropes)?;
        let kv = drafter.kv_layer(&mut self.kv_layers)?;
        let state = self.state_layers.last_mut().filter(|_| begins);
        let Buffers { all, work, drafts, logits, .. } = buffers;
        let logits = logits.as_mut().ok_or_else(no_logits)?;
        drafter.propose(step, kv, state, all, work, (drafts.as_mut(), logits))
    }
}

/// Returns the gaps of a batch, longest first.
fn gaps(batch: &Batch) -> Result<Vec<Gap>> {
    let mut gaps = Vec::new();
    for seq in 0..batch.num_seqs() {
        let tokens = batch.tokens_of(seq);
        let known = batch.token_ids[tokens.clone()].iter().take_while(|&&token| token != TO_DRAFT).count();
        let (first, len) = (tokens.start + known, tokens.len() - known);
        if len > 0 && (known != 1 || batch.token_ids[first..tokens.end].iter().any(|&token| token != TO_DRAFT)) {
            return Err(Error::internal(format!("tokens to draft behind {known} of sequence {seq}, or among others")));
        }
        gaps.extend((len > 0).then_some(Gap { seq, first, len }));
    }
    gaps.sort_by_key(|gap| Reverse(gap.len));
    Ok(gaps)
}

/// Returns the step that proposes the tokens at `place` of the gaps from the tokens before them. `place` is not 0.
fn part_of(batch: &Batch, gaps: &[Gap], place: usize) -> Batch {
    let rows = || gaps.iter().map(|gap| gap.first + place - 1);
    let num_rows = gaps.len() as u32;
    let group = |tables: &GroupTables, group: usize| {
        let slot_mapping = rows().map(|row| tables.slot_mapping[row]).collect();
        let mut part = GroupTables { slot_mapping, block_tables: Vec::new(), cu_blocks: vec![0] };
        for gap in gaps {
            part.block_tables.extend(batch.block_table(group, gap.seq));
            part.cu_blocks.push(part.block_tables.len() as u32);
        }
        part
    };
    Batch {
        token_ids: rows().map(|row| batch.token_ids[row]).collect(),
        chosen: Vec::new(),
        positions: rows().map(|row| batch.positions[row]).collect(),
        cu_seqlens_q: (0..=num_rows).collect(),
        context_lens: rows().map(|row| batch.positions[row] + 1).collect(),
        groups: batch.groups.iter().enumerate().map(|(index, tables)| group(tables, index)).collect(),
        states: match batch.states.reads.is_empty() {
            true => StateTables::default(),
            false => StateTables {
                reads: gaps.iter().map(|gap| batch.states.reads[gap.seq]).collect(),
                writes: Vec::new(),
                cu_writes: vec![0; gaps.len() + 1],
            },
        },
        logits_indices: (0..num_rows).collect(),
        block_copies: Vec::new(),
        images: BatchImages::default(),
        rope_positions: match batch.rope_positions.as_slice() {
            [] => Vec::new(),
            positions => rows().map(|row| positions[row]).collect(),
        },
    }
}

/// Returns the first of the `vocab_size` tokens with the largest logit. Returns any token if the row has no numbers, or
/// if the device has picked a token beyond them.
fn best(selected: Selected<'_>, vocab_size: usize) -> u32 {
    match selected {
        Selected::Argmax { token, .. } if (token as usize) < vocab_size => token,
        Selected::Row(row) => {
            let (first, row) = ((0, f32::NEG_INFINITY), row.iter().take(vocab_size));
            (0..).zip(row).fold(first, |best, (token, &logit)| if logit > best.1 { (token, logit) } else { best }).0
        }
        _ => 0,
    }
}
