//! Tracks the tokens that a drafting model has yet to compute.
//!
//! A draft model is computed only when there is something to draft, and not by the model's steps. So it may lack tokens
//! that the model has computed. Each sequence counts the tokens that it has (`num_draft_computed`). Each full block has
//! a mark, for sequences that hit the block.
//!
//! Before it drafts, the draft model computes what it lacks. If it lacks a few tokens, it computes them together with
//! the token before its first draft. If it lacks many, it computes them during several steps that draft nothing for the
//! sequence.

use std::cmp::Reverse;

use super::{append_sequence, empty_batch};
use crate::Result;
use crate::batch::{Batch, TO_DRAFT};
use crate::images::BatchImages;
use crate::kv_cache::KvCache;
use crate::sequence::Sequence;
use crate::{ScheduledSeq, Scheduler, SeqId, Step};

impl Sequence {
    /// Returns the number of tokens that the model has computed and the draft model has not.
    pub(crate) fn draft_lag(&self) -> usize {
        self.num_computed - self.num_draft_computed
    }

    /// Returns the number of tokens of the sequence that the draft model will have computed after the commit of a step.
    /// That commit leaves `num_computed` tokens computed.
    fn draft_computed_after(&self, scheduled: &ScheduledSeq, num_computed: usize) -> usize {
        // Positions after a wrong draft token were computed for another text.
        self.num_draft_computed.max(scheduled.drafted.end.min(num_computed))
    }
}

impl Scheduler {
    /// Returns the number of tokens that the draft model will lack of a sequence after the commit of a step. That step
    /// adds `num_tokens` new tokens to it.
    pub fn draft_lag_after(&self, step: &Step, scheduled: &ScheduledSeq, num_tokens: usize) -> usize {
        let seq = self.slot_in_step(scheduled.id, step.id).filter(|_| self.config.draft_lags);
        let Some(seq) = seq.map(|slot| &self.sequences[slot]) else { return 0 };
        let num_computed = scheduled.end_without_drafts() + num_tokens.saturating_sub(1);
        num_computed - seq.draft_computed_after(scheduled, num_computed)
    }

    /// Returns what has to be computed before a step is launched, so that its `TO_DRAFT` tokens can be drafted. For
    /// each sequence with such tokens it lists the lacking tokens and the token before the first draft, whose logits
    /// are needed. The sequence with the most draft tokens comes first. If no sequence of the step has prompt tokens,
    /// up to `most` tokens follow that the sequences in `catching_up` lack.
    pub fn plan_drafts(&self, step: &mut Step, catching_up: &[SeqId], most: usize) -> Batch {
        let is_drafted = |scheduled: &ScheduledSeq| step.drafts(scheduled).first() == Some(&TO_DRAFT);
        let mut drafted: Vec<usize> = (0..step.seqs.len()).filter(|&place| is_drafted(&step.seqs[place])).collect();
        drafted.sort_by_key(|&place| Reverse(step.seqs[place].num_drafts()));
        let is_decode = step.seqs.iter().all(ScheduledSeq::is_decode);
        if drafted.is_empty() && (catching_up.is_empty() || !is_decode) {
            return Batch::default();
        }
        let kv = self.kv_cache.read();
        let copies = if self.config.draft_lags { Vec::new() } else { step.batch.block_copies.clone() };
        let mut batch = empty_batch(0, step.seqs.len(), copies, kv.config());
        let add = |batch: &mut Batch, seq: &Sequence, start: usize, end: usize, num_logits: usize| {
            let (num_tokens, rows) = (end - start, 0..num_logits);
            let (logits, samples) = (rows.clone(), rows);
            let part = ScheduledSeq { id: seq.id, num_tokens, start, logits, samples, drafted: 0..0 };
            append_sequence(batch, seq, part, kv.config());
        };
        for place in drafted {
            let scheduled = &mut step.seqs[place];
            let Some(slot) = self.slot_in_step(scheduled.id, step.id) else { continue };
            let (seq, position) = (&self.sequences[slot], scheduled.start);
            let start = seq.num_draft_computed.min(position);
            add(&mut batch, seq, start, position + 1, 1);
            scheduled.drafted = start..position + scheduled.num_drafts();
        }
        let mut left = most.min(self.config.max_num_batched_tokens.saturating_sub(batch.num_tokens()));
        for id in catching_up.iter().filter(|_| is_decode) {
            let scheduled = step.seqs.iter_mut().find(|scheduled| scheduled.id == *id);
            let scheduled = scheduled.filter(|scheduled| scheduled.drafted.is_empty());
            let (Some(scheduled), Some(slot)) = (scheduled, self.slot_in_step(*id, step.id)) else { continue };
            let seq = &self.sequences[slot];
            let num_tokens = seq.draft_lag().min(left);
            if num_tokens > 0 {
                let (start, end) = (seq.num_draft_computed, seq.num_draft_computed + num_tokens);
                add(&mut batch, seq, start, end, 0);
                scheduled.drafted = start..end;
                left -= num_tokens;
            }
        }
        // The batch writes no states and needs only tokens.
        batch.states.clear_writes();
        batch.images = BatchImages::default();
        batch
    }

    /// Records the tokens that the draft model has computed for the sequences of a committed step.
    pub(super) fn note_drafted(&mut self, step: &Step, kv: &mut KvCache) -> Result<()> {
        for scheduled in &step.seqs {
            let Some(slot) = self.slot_in_step(scheduled.id, step.id) else { continue };
            let seq = &mut self.sequences[slot];
            if !self.config.draft_lags {
                seq.num_draft_computed = seq.num_computed;
                continue;
            }
            seq.num_draft_computed = seq.draft_computed_after(scheduled, seq.num_computed);
            kv.mark_drafted(&mut seq.blocks, seq.num_draft_computed)?;
        }
        Ok(())
    }
}
