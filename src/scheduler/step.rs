//! From what was picked to the flat arrays of a step.

use super::Scheduler;
use super::pick::Picks;
use super::sequence::Sequence;
use crate::batch::{Batch, GroupTables};
use crate::kv_cache::KvCacheConfig;

use super::SeqId;

/// One step: what to compute and whose it is. Holds ids only, so that an old copy cannot bring old state back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// Unique and increasing; 0 for a step without work.
    pub id: u64,
    pub batch: Batch,
    /// In the order of the batch's sequences.
    pub seqs: Vec<ScheduledSeq>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledSeq {
    pub id: SeqId,
    /// Tokens of it in this step.
    pub num_tokens: usize,
    /// Position of the first of them.
    pub start: usize,
    /// Rows of the step's logits that belong to it: those of its last `logits.len()` tokens in this step (none for
    /// a prefill chunk that is not the last, all for a prompt with `all_logits` unless a preemption repeats some).
    pub logits: std::ops::Range<usize>,
    /// The last logits row predicts a new token: the engine samples it.
    pub samples: bool,
}

impl Scheduler {
    pub(super) fn build_step(&self, id: u64, picks: Picks, kv: &KvCacheConfig) -> Step {
        let num_tokens = picks.entries.iter().map(|pick| pick.num_tokens).sum();
        let num_seqs = picks.entries.len();
        let mut batch = Batch {
            token_ids: Vec::with_capacity(num_tokens),
            positions: Vec::with_capacity(num_tokens),
            cu_seqlens_q: Vec::with_capacity(num_seqs + 1),
            context_lens: Vec::with_capacity(num_seqs),
            groups: (0..kv.groups.len()).map(|_| empty_tables(num_tokens, num_seqs)).collect(),
            logits_indices: Vec::with_capacity(num_seqs),
            block_copies: picks.copies.into_iter().map(|(_, copy)| copy).collect(),
        };
        batch.cu_seqlens_q.push(0);
        let mut seqs = Vec::with_capacity(num_seqs);
        for pick in picks.entries {
            let seq = &self.sequences[pick.slot];
            // The pick counts as scheduled already.
            let start = seq.num_scheduled - pick.num_tokens;
            seqs.push(append_sequence(&mut batch, seq, start, kv.block_size));
        }
        Step { id, batch, seqs }
    }
}

fn empty_tables(num_tokens: usize, num_seqs: usize) -> GroupTables {
    let mut cu_blocks = Vec::with_capacity(num_seqs + 1);
    cu_blocks.push(0);
    GroupTables { slot_mapping: Vec::with_capacity(num_tokens), block_tables: Vec::new(), cu_blocks }
}

/// Appends the tokens `start..num_scheduled` of `seq`. All values fit in 32 bits: positions are below the model's
/// length and slots below the pool's size, both of which were checked when they were configured.
fn append_sequence(batch: &mut Batch, seq: &Sequence, start: usize, block_size: usize) -> ScheduledSeq {
    let end = seq.num_scheduled;
    batch.token_ids.extend_from_slice(&seq.tokens[start..end]);
    batch.positions.extend(start as u32..end as u32);
    batch.cu_seqlens_q.push(batch.token_ids.len() as u32);
    batch.context_lens.push(end as u32);
    let used_blocks = end.div_ceil(block_size);
    for (g, group) in batch.groups.iter_mut().enumerate() {
        let table = &seq.blocks.table(g)[..used_blocks];
        group.block_tables.extend(table.iter().map(|id| id.0));
        group.cu_blocks.push(group.block_tables.len() as u32);
        let mut position = start;
        while position < end {
            let (block, offset) = (position / block_size, position % block_size);
            let count = (block_size - offset).min(end - position);
            let first = table[block].0 * block_size as u32 + offset as u32;
            group.slot_mapping.extend(first..first + count as u32);
            position += count;
        }
    }
    let samples = end == seq.tokens.len();
    let num_rows = match (seq.wants_prompt_logits(), samples) {
        (true, _) => end - start.max(seq.logits_done).min(end),
        (false, true) => 1,
        (false, false) => 0,
    };
    let first_row = batch.logits_indices.len();
    let num_tokens = batch.token_ids.len();
    batch.logits_indices.extend((num_tokens - num_rows) as u32..num_tokens as u32);
    let logits = first_row..first_row + num_rows;
    ScheduledSeq { id: seq.id, num_tokens: end - start, start, logits, samples }
}
