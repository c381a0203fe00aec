//! Builds the flat arrays of a step from the picked sequences.

pub(crate) mod commit;
mod draft_model;

use std::ops::Range;

use super::pick::Picks;
use super::sequence::Sequence;
use super::{Scheduler, SeqId};
use crate::Result;
use crate::batch::{Batch, BlockCopy, GroupTables, NO_STATE, NULL_BLOCK, StateTables, StateWrite};
use crate::images::BatchImages;
use crate::kv_cache::{BlockId, KvCache, KvCacheConfig};

/// One step: the batch to compute, and its sequences. It holds only ids, so an old copy cannot bring back old state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Unique and increasing; 0 for a step without work.
    pub id: u64,
    pub batch: Batch,
    /// The sequences, in the order of the batch.
    pub seqs: Vec<ScheduledSeq>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledSeq {
    pub id: SeqId,
    /// The number of its tokens in this step.
    pub num_tokens: usize,
    /// The position of the first of these tokens.
    pub start: usize,
    /// Its rows of the step's logits: those of its last `logits.len()` tokens in this step. A prefill chunk that is not
    /// the last has none. A prompt with `all_logits` has all, unless a preemption repeats some.
    pub logits: Range<usize>,
    /// The rows that predict new tokens, which are the last ones of `logits`: none, one, or with drafts one more than
    /// there are drafts. The engine samples them in this order and accepts tokens up to the first that differs from its
    /// draft.
    pub samples: Range<usize>,
    /// Positions that the draft model computes before the step, including drafts (`Scheduler::plan_drafts`).
    pub drafted: Range<usize>,
}

impl Step {
    /// Returns the drafts that the step computes for one of its sequences. Each row of `samples` but the last precedes
    /// its draft.
    pub fn drafts(&self, scheduled: &ScheduledSeq) -> &[u32] {
        let last = scheduled.samples.clone().next_back().map(|row| self.batch.logits_indices[row] as usize);
        last.map_or(&[], |last| &self.batch.token_ids[last + 1 - scheduled.num_drafts()..=last])
    }

    /// Divides the rows of logits into at least one piece of at most `most` rows, in order. Rows that sample for one
    /// sequence stay in one piece.
    pub fn pieces(&self, most: usize) -> Vec<Range<usize>> {
        let num_rows = self.batch.logits_indices.len();
        let (mut pieces, mut start) = (Vec::new(), 0);
        while num_rows - start > most {
            let end = start + most;
            let is_cut = |samples: &&Range<usize>| start < samples.start && samples.start < end && end < samples.end;
            let cut = self.seqs.iter().map(|scheduled| &scheduled.samples).find(is_cut);
            let end = cut.map_or(end, |samples| samples.start);
            pieces.push(start..end);
            start = end;
        }
        pieces.push(start..num_rows);
        pieces
    }

    /// Returns the sequences with rows of logits in a piece, each with its part: the tokens up to its last row there,
    /// and its rows relative to the piece's first.
    pub fn parts(&self, piece: &Range<usize>) -> impl Iterator<Item = (&ScheduledSeq, ScheduledSeq)> {
        self.seqs.iter().filter_map(|whole| {
            let within = |rows: &Range<usize>| {
                let (start, end) = (rows.start.max(piece.start), rows.end.min(piece.end));
                start - piece.start..end.max(start) - piece.start
            };
            let (logits, samples) = (within(&whole.logits), within(&whole.samples));
            let is_there = !logits.is_empty();
            is_there.then(|| {
                let num_tokens = whole.num_tokens - whole.logits.end.saturating_sub(piece.end);
                (whole, ScheduledSeq { num_tokens, logits, samples, ..whole.clone() })
            })
        })
    }
}

impl ScheduledSeq {
    /// Returns the number of its tokens in this step that are drafts; they come last.
    pub fn num_drafts(&self) -> usize {
        self.samples.len().saturating_sub(1)
    }

    /// True if none of its tokens belongs to a prompt: it has one sampled token and drafts.
    pub fn is_decode(&self) -> bool {
        self.num_tokens == self.samples.len()
    }

    /// Returns the positions whose logits it has, each with its row.
    pub fn positions(&self) -> impl Iterator<Item = (usize, usize)> {
        (self.start + self.num_tokens - self.logits.len()..).zip(self.logits.clone())
    }

    /// Returns how many tokens of the sequence are computed after this step if no draft is right.
    pub(super) fn end_without_drafts(&self) -> usize {
        self.start + self.num_tokens - self.num_drafts()
    }
}

impl Sequence {
    /// Takes back the newest step that holds the sequence.
    pub(super) fn unschedule(&mut self, scheduled: &ScheduledSeq) {
        let end = scheduled.start + scheduled.num_tokens;
        self.in_flight -= 1;
        self.num_scheduled = scheduled.start;
        self.num_expected -= usize::from(!scheduled.samples.is_empty() && self.tokens.len() + self.num_expected > end);
    }
}

impl Scheduler {
    pub(super) fn build_step(&mut self, id: u64, picks: Picks, kv: &mut KvCache) -> Result<Step> {
        let num_tokens = picks.entries.iter().map(|pick| pick.num_tokens).sum();
        let copies = picks.copies.into_iter().map(|(_, copy)| copy).collect();
        let mut batch = empty_batch(num_tokens, picks.entries.len(), copies, kv.config());
        let kept_free = self.kept_for_sequences(kv);
        let mut seqs = Vec::with_capacity(picks.entries.len());
        for pick in &picks.entries {
            let seq = &mut self.sequences[pick.slot];
            // The pick already counts as scheduled.
            let end = seq.num_scheduled;
            let start = end - pick.num_tokens;
            let snapshots = seq.snapshots_in(start..end, kv.config());
            kv.begin_step(&mut seq.blocks, &seq.chain, start..end, &snapshots, kept_free)?;
            let num_samples = seq.schedule_up_to(end);
            let num_rows = match seq.wants_prompt_logits() {
                true => end - start.max(seq.logits_done).min(end),
                false => num_samples,
            };
            let (logits, samples) = (0..num_rows, 0..num_samples);
            let (id, num_tokens) = (seq.id, pick.num_tokens);
            let scheduled = ScheduledSeq { id, num_tokens, start, logits, samples, drafted: 0..0 };
            seqs.push(append_sequence(&mut batch, seq, scheduled, kv.config()));
        }
        Ok(Step { id, batch, seqs })
    }

    /// Builds the step again without the sequences that no longer have a slot.
    pub(super) fn rebuild_step(&self, step: Step, slots: &[Option<usize>], kv: &KvCacheConfig) -> Step {
        let Step { id, batch: before, seqs } = step;
        // Copies for ended sequences go to blocks that no other sequence has got since.
        let mut batch = empty_batch(before.num_tokens(), seqs.len(), before.block_copies, kv);
        let left = seqs.into_iter().zip(slots).filter_map(|(seq, slot)| Some((seq, (*slot)?)));
        let seqs = left.map(|(seq, slot)| append_sequence(&mut batch, &self.sequences[slot], seq, kv));
        let seqs = seqs.collect();
        Step { id, batch, seqs }
    }
}

/// Returns an empty batch with room for `num_tokens` tokens and `num_seqs` sequences.
pub(super) fn empty_batch(
    num_tokens: usize,
    num_seqs: usize,
    block_copies: Vec<BlockCopy>,
    kv: &KvCacheConfig,
) -> Batch {
    let mut cu_seqlens_q = Vec::with_capacity(num_seqs + 1);
    cu_seqlens_q.push(0);
    Batch {
        token_ids: Vec::with_capacity(num_tokens),
        chosen: Vec::new(),
        positions: Vec::with_capacity(num_tokens),
        cu_seqlens_q,
        context_lens: Vec::with_capacity(num_seqs),
        groups: (0..kv.groups.len()).map(|_| empty_tables(num_tokens, num_seqs)).collect(),
        states: if kv.states.is_some() { empty_states(num_seqs) } else { StateTables::default() },
        logits_indices: Vec::with_capacity(num_seqs),
        block_copies,
        images: BatchImages::default(),
        rope_positions: Vec::new(),
    }
}

fn empty_tables(num_tokens: usize, num_seqs: usize) -> GroupTables {
    let mut cu_blocks = Vec::with_capacity(num_seqs + 1);
    cu_blocks.push(0);
    GroupTables { slot_mapping: Vec::with_capacity(num_tokens), block_tables: Vec::new(), cu_blocks }
}

fn empty_states(num_seqs: usize) -> StateTables {
    let mut cu_writes = Vec::with_capacity(num_seqs + 1);
    cu_writes.push(0);
    StateTables { reads: Vec::with_capacity(num_seqs), writes: Vec::with_capacity(num_seqs), cu_writes }
}

/// Appends the scheduled tokens of `seq`, and assigns its rows of logits. All values fit in 32 bits: positions are
/// below the model's length and slots below the pool's size, and both limits were checked when they were configured.
pub(super) fn append_sequence(
    batch: &mut Batch,
    seq: &Sequence,
    scheduled: ScheduledSeq,
    kv: &KvCacheConfig,
) -> ScheduledSeq {
    let block_size = kv.block_size;
    let (start, end) = (scheduled.start, scheduled.start + scheduled.num_tokens);
    let before_drafts = scheduled.end_without_drafts();
    let known = before_drafts.min(seq.tokens.len());
    batch.token_ids.extend(seq.tokens.range(start.min(known)..known));
    // Stands for a token that a step in flight samples; `complete` fills it in.
    batch.token_ids.extend(std::iter::repeat_n(0, before_drafts - start.max(known)));
    if scheduled.num_drafts() > 0 {
        batch.token_ids.extend_from_slice(&seq.drafts[..scheduled.num_drafts()]);
    }
    batch.positions.extend(start as u32..end as u32);
    batch.cu_seqlens_q.push(batch.token_ids.len() as u32);
    batch.context_lens.push(end as u32);
    append_images(batch, seq, start..end);
    let used_blocks = end.div_ceil(block_size);
    for (g, group) in batch.groups.iter_mut().enumerate() {
        let table = &seq.blocks.table(g)[..used_blocks];
        group.block_tables.extend(table.iter().map(|id| id.0));
        group.cu_blocks.push(group.block_tables.len() as u32);
        let mut position = start;
        while position < end {
            let (block, offset) = (position / block_size, position % block_size);
            let count = (block_size - offset).min(end - position);
            match table[block] {
                // A draft model may compute positions that have left a window of the model; it has no such window
                // itself.
                BlockId::NULL => group.slot_mapping.extend(std::iter::repeat_n(NULL_BLOCK, count)),
                BlockId(id) => {
                    let first = id * block_size as u32 + offset as u32;
                    group.slot_mapping.extend(first..first + count as u32);
                }
            }
            position += count;
        }
    }
    if kv.states.is_some() {
        append_states(&mut batch.states, seq, start, end);
    }
    let (first_row, num_rows) = (batch.logits_indices.len(), scheduled.logits.len());
    let num_tokens = batch.token_ids.len();
    batch.logits_indices.extend((num_tokens - num_rows) as u32..num_tokens as u32);
    let end_row = first_row + num_rows;
    ScheduledSeq { logits: first_row..end_row, samples: end_row - scheduled.samples.len()..end_row, ..scheduled }
}

/// Appends the images and the RoPE positions of a sequence's step, whose positions the batch has already.
fn append_images(batch: &mut Batch, seq: &Sequence, positions: Range<usize>) {
    let first_token = batch.positions.len() - positions.len();
    let images = seq.extras.images.as_deref();
    if let Some(images) = images {
        images.append_runs(&mut batch.images, positions.clone(), first_token);
    }
    let images = images.filter(|images| images.mrope);
    if images.is_none() && batch.rope_positions.is_empty() {
        return;
    }
    // Other sequences have the positions of text, also those before the first one with images.
    let end = if images.is_some() { first_token } else { batch.positions.len() };
    let plain = batch.positions[batch.rope_positions.len()..end].iter().map(|&position| [position; 3]);
    batch.rope_positions.extend(plain);
    batch.rope_positions.extend(images.into_iter().flat_map(|images| images.rope_positions(positions.clone())));
}

/// Appends the states that a sequence's step begins with and writes.
fn append_states(states: &mut StateTables, seq: &Sequence, start: usize, end: usize) {
    states.reads.push(seq.blocks.state_at(start).map_or(NO_STATE, |slot| slot.0));
    let last = seq.blocks.state_at(end).map(|slot| (end - start, slot));
    let writes = seq.blocks.states_in(start..end).chain(last);
    let first = states.writes.len();
    states.writes.extend(writes.map(|(tokens, slot)| StateWrite { num_tokens: tokens as u32, slot: slot.0 }));
    states.writes[first..].sort_by_key(|write| write.num_tokens);
    states.cu_writes.push(states.writes.len() as u32);
}
