//! Builds the flat arrays of a step from the sequences that were picked.

use super::pick::Picks;
use super::sequence::Sequence;
use super::{Scheduler, SeqId};
use crate::Result;
use crate::batch::{Batch, BlockCopy, GroupTables, NO_STATE, NULL_BLOCK, SeqExtras, StateTables, StateWrite};
use crate::kv_cache::{BlockId, KvCache, KvCacheConfig};

/// One step: the batch to compute, and the sequences it belongs to. It holds ids only, so that an old copy cannot bring
/// old state back.
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
    /// Its tokens in this step.
    pub num_tokens: usize,
    /// The position of the first of these tokens.
    pub start: usize,
    /// Rows of the step's logits that belong to it: those of its last `logits.len()` tokens in this step (none for
    /// a prefill chunk that is not the last, all for a prompt with `all_logits` unless a preemption repeats some).
    pub logits: std::ops::Range<usize>,
    /// Rows of the step's logits that predict new tokens, the last ones of `logits`: none, one, or where tokens were
    /// drafted one more than there are drafts. The engine samples them in this order, and accepts what it samples up
    /// to the first token that differs from its draft.
    pub samples: std::ops::Range<usize>,
    /// Positions that the draft model computes before the step, drafts among them (`Scheduler::plan_drafts`).
    pub drafted: std::ops::Range<usize>,
}

impl Step {
    /// The drafts that the step computes for one of its sequences; each row of `samples` but the last one stands before
    /// its draft.
    pub fn drafts(&self, scheduled: &ScheduledSeq) -> &[u32] {
        let last = scheduled.samples.clone().next_back().map(|row| self.batch.logits_indices[row] as usize);
        last.map_or(&[], |last| &self.batch.token_ids[last + 1 - scheduled.num_drafts()..=last])
    }
}

impl ScheduledSeq {
    /// The number of its tokens in this step that are drafts; they are the last ones.
    pub fn num_drafts(&self) -> usize {
        self.samples.len().saturating_sub(1)
    }

    /// Whether none of its tokens is of a prompt: it has one that was sampled, and drafts.
    pub fn is_decode(&self) -> bool {
        self.num_tokens == self.samples.len()
    }

    /// Tokens of the sequence that are computed after this step, were no draft right.
    pub(super) fn end_without_drafts(&self) -> usize {
        self.start + self.num_tokens - self.num_drafts()
    }
}

impl Sequence {
    /// Takes back the newest step that holds it.
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
            // The pick counts as scheduled already.
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

    /// The step once more, without the sequences that have no slot any more.
    pub(super) fn rebuild_step(&self, step: Step, slots: &[Option<usize>], kv: &KvCacheConfig) -> Step {
        let Step { id, batch: before, seqs } = step;
        // Copies for those that ended go to blocks that nobody has been given since.
        let mut batch = empty_batch(before.num_tokens(), seqs.len(), before.block_copies, kv);
        let left = seqs.into_iter().zip(slots).filter_map(|(seq, slot)| Some((seq, (*slot)?)));
        let seqs = left.map(|(seq, slot)| append_sequence(&mut batch, &self.sequences[slot], seq, kv));
        let seqs = seqs.collect();
        Step { id, batch, seqs }
    }
}

/// An empty batch with room for `num_tokens` tokens and `num_seqs` sequences.
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
        extras: Vec::new(),
        groups: (0..kv.groups.len()).map(|_| empty_tables(num_tokens, num_seqs)).collect(),
        states: if kv.states.is_some() { empty_states(num_seqs) } else { StateTables::default() },
        logits_indices: Vec::with_capacity(num_seqs),
        block_copies,
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

/// Appends what is scheduled of `seq`, and gives it its rows of logits. All values fit in 32 bits: positions are below
/// the model's length and slots below the pool's size, both of which were checked when they were configured.
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
    // A token that a step in flight samples: `complete` puts it here.
    batch.token_ids.extend(std::iter::repeat_n(0, before_drafts - start.max(known)));
    if scheduled.num_drafts() > 0 {
        batch.token_ids.extend_from_slice(&seq.drafts[..scheduled.num_drafts()]);
    }
    batch.positions.extend(start as u32..end as u32);
    batch.cu_seqlens_q.push(batch.token_ids.len() as u32);
    batch.context_lens.push(end as u32);
    if !batch.extras.is_empty() || seq.extras != SeqExtras::default() {
        // Sequences before this one needed nothing.
        batch.extras.resize(batch.context_lens.len() - 1, SeqExtras::default());
        batch.extras.push(seq.extras.clone());
    }
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
                // A draft model computes positions that a window of the model has left behind; it has no such window.
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

/// Appends the states that a sequence's step begins with and leaves.
fn append_states(states: &mut StateTables, seq: &Sequence, start: usize, end: usize) {
    states.reads.push(seq.blocks.state_at(start).map_or(NO_STATE, |slot| slot.0));
    let last = seq.blocks.state_at(end).map(|slot| (end - start, slot));
    let writes = seq.blocks.states_in(start..end).chain(last);
    let first = states.writes.len();
    states.writes.extend(writes.map(|(tokens, slot)| StateWrite { num_tokens: tokens as u32, slot: slot.0 }));
    states.writes[first..].sort_by_key(|write| write.num_tokens);
    states.cu_writes.push(states.writes.len() as u32);
}
