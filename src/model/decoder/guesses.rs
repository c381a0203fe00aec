//! Guesses of the tokens that a step is to verify, made before it: token by token, for all of its sequences at once.

use std::cmp::Reverse;

use super::{Buffers, Decoder, Drafter, Launched, Model, Models, Ropes, no_logits};
use crate::backend::{Backend, Ops};
use crate::batch::{Batch, GroupTables, StateTables, TO_GUESS};
use crate::selection::{Selected, Selection, Wanted, Wish};
use crate::{Error, Result};

/// A sequence of a step with tokens that are to be guessed.
#[derive(Debug, Clone, Copy)]
struct Gap {
    seq: usize,
    /// Index of the first of these tokens in the batch, and how many there are.
    first: usize,
    len: usize,
}

impl<B: Backend> Decoder<B> {
    /// Puts guesses in the place of the tokens of a step that are to be guessed (`TO_GUESS`). These follow the first
    /// token that the sequence has in the step. Computes `first` for that: for each sequence with such tokens, the one
    /// with the most of them first, the token that they follow, of which alone logits are wanted, and before it what a
    /// draft model lacks; and behind these what it lacks of other sequences. Whatever guesses writes keys and values
    /// into the slots of guesses, and a block of the model's does so again in the step.
    ///
    /// # Errors
    /// Errors of the backend, `Interrupted` among them: then the tokens are still to be guessed.
    pub fn draft(&mut self, backend: &mut B, batch: &mut Batch, first: &Batch) -> Result<()> {
        let mut gaps = gaps(batch)?;
        if first.logits_indices.len() != gaps.len() {
            let rows = first.logits_indices.len();
            return Err(Error::internal(format!("{rows} rows of logits for guesses of {} sequences", gaps.len())));
        }
        if first.num_tokens() == 0 {
            return Ok(());
        }
        let mut rest;
        let mut part = first;
        for place in 0.. {
            // Whoever needs fewer comes later: rows of a step go on with the rows of the step before.
            gaps.truncate(gaps.partition_point(|gap| gap.len > place));
            if place > 0 {
                if gaps.is_empty() {
                    break;
                }
                rest = part_of(batch, &gaps, place);
                part = &rest;
            }
            // A draft model may have tokens that this one does not have.
            let vocab_size = self.spec().vocab_size;
            let guesses = self.guess(backend, part, place == 0)?;
            let tokens: Vec<u32> = (0..gaps.len()).map(|row| best(guesses.row(row), vocab_size)).collect();
            for (gap, token) in gaps.iter().zip(tokens) {
                batch.token_ids[gap.first + place] = token;
            }
        }
        Ok(())
    }

    /// The logits of the tokens that follow those of a step. `begins`: the model has computed all tokens before; else
    /// the rows follow those of the last such step, and are single ones.
    pub(in crate::model) fn guess<'a>(
        &'a mut self,
        backend: &'a mut B,
        batch: &Batch,
        begins: bool,
    ) -> Result<Selection<'a>> {
        let (tokens, rows) = (batch.num_tokens(), batch.logits_indices.len());
        if rows > self.limits.max_logits_rows || tokens > self.limits.max_num_batched_tokens {
            let limits = self.limits;
            return Err(Error::internal(format!("{tokens} tokens for {rows} guesses; the limits are {limits:?}")));
        }
        // Whatever the last step computed is lost.
        self.launched = Launched::default();
        let models = &mut self.models;
        backend.step_apart(batch, &mut |step: &mut B::Step<'_>| models.guess(step, begins))?;
        let Models { main, draft, buffers } = &self.models;
        let cols = draft.as_ref().unwrap_or(main).spec.vocab_size;
        if rows == 0 {
            return Ok(Selection::without_logits(0, cols));
        }
        let logits = buffers.logits.as_ref().ok_or_else(no_logits)?;
        let wishes: Vec<Wish<'_>> = (0..rows).map(|_| Wanted::Argmax.into()).collect();
        backend.select(logits, cols, &wishes)?;
        backend.collect(logits, rows, cols)
    }
}

impl<B: Backend> Models<B> {
    fn guess(&mut self, step: &mut B::Step<'_>, begins: bool) -> Result<()> {
        let Self { main, draft, buffers } = self;
        match draft {
            Some(draft) => {
                let rows = step.num_logits();
                draft.forward(step, buffers, rows, true)
            }
            None => main.guess(step, buffers, begins),
        }
    }
}

impl<B: Backend> Model<B> {
    /// Guesses with the model's own block.
    fn guess(&mut self, step: &mut B::Step<'_>, buffers: &mut Buffers<B>, begins: bool) -> Result<()> {
        let block = self.weights.drafter.as_ref().ok_or_else(|| Error::internal("guesses without a drafter"))?;
        let ropes = Ropes::of_step(step, &self.weights.ropes, &mut buffers.angles[self.first_angles..])?;
        let drafter = Drafter::new(block, &self.weights, &self.spec, &ropes)?;
        let kv = drafter.kv_layer(&mut self.kv_layers)?;
        let state = self.state_layers.last_mut().filter(|_| begins);
        let Buffers { all, work, drafts, logits, .. } = buffers;
        let logits = logits.as_mut().ok_or_else(no_logits)?;
        drafter.guess(step, kv, state, all, work, (drafts.as_mut(), logits))
    }
}

/// The gaps of a batch, the longest first.
fn gaps(batch: &Batch) -> Result<Vec<Gap>> {
    let mut gaps = Vec::new();
    for seq in 0..batch.num_seqs() {
        let tokens = batch.tokens_of(seq);
        let known = batch.token_ids[tokens.clone()].iter().take_while(|&&token| token != TO_GUESS).count();
        let (first, len) = (tokens.start + known, tokens.len() - known);
        if len > 0 && (known != 1 || batch.token_ids[first..tokens.end].iter().any(|&token| token != TO_GUESS)) {
            return Err(Error::internal(format!("tokens to guess behind {known} of sequence {seq}, or among others")));
        }
        gaps.extend((len > 0).then_some(Gap { seq, first, len }));
    }
    gaps.sort_by_key(|gap| Reverse(gap.len));
    Ok(gaps)
}

/// The step that guesses the tokens at `place` of the gaps, which is not the first, from those before them.
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
        extras: Vec::new(),
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
    }
}

/// The first of so many tokens with the largest logit; any where the row holds no number, or where the device has found
/// one beyond them.
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
