//! The tokens that a model which guesses has yet to compute.
//!
//! A draft model is computed when there is something to guess, and by no step of the model: so it may lack tokens that
//! the model has computed. Which it has is a number of each sequence (`num_draft_computed`), and a mark of each full
//! block for those who hit it. Before it guesses it computes what it lacks: a few tokens together with the one that its
//! first guess follows, or many, ahead of several steps that guess nothing for the sequence.

use std::cmp::Reverse;

use super::sequence::Sequence;
use super::step::{append_sequence, empty_batch};
use super::{ScheduledSeq, Scheduler, SeqId, Step};
use crate::Result;
use crate::batch::{Batch, TO_GUESS};
use crate::kv_cache::KvCache;

impl Sequence {
    /// Tokens that the model has computed and the draft model has not.
    pub(super) fn draft_lag(&self) -> usize {
        self.num_computed - self.num_draft_computed
    }

    /// Tokens up to which the draft model will have computed the sequence once a step of it is committed that leaves
    /// `num_computed` tokens computed.
    fn draft_computed_after(&self, scheduled: &ScheduledSeq, num_computed: usize) -> usize {
        // Behind a wrong guess stands what was computed of another text.
        self.num_draft_computed.max(scheduled.drafted.end.min(num_computed))
    }
}

impl Scheduler {
    /// Tokens that the draft model will lack of a sequence once the step that holds it is committed with `num_tokens`
    /// new ones for it.
    pub fn draft_lag_after(&self, step: &Step, scheduled: &ScheduledSeq, num_tokens: usize) -> usize {
        let seq = self.slot_in_step(scheduled.id, step.id).filter(|_| self.config.draft_lags);
        let Some(seq) = seq.map(|slot| &self.sequences[slot]) else { return 0 };
        let num_computed = scheduled.end_without_drafts() + num_tokens.saturating_sub(1);
        num_computed - seq.draft_computed_after(scheduled, num_computed)
    }

    /// Lists what is to be computed before a step that is about to be launched, so that those of its tokens can be
    /// guessed that still are to be (`TO_GUESS`): for each sequence with such what it lacks, and the token that the
    /// first of them follows, whose logits are wanted; the sequence with the most guesses comes first. Behind these,
    /// where no sequence of the step has prompt tokens, come up to `most` tokens that the sequences `catching_up` lack.
    pub fn plan_drafts(&self, step: &mut Step, catching_up: &[SeqId], most: usize) -> Batch {
        let is_guessed = |scheduled: &ScheduledSeq| step.drafts(scheduled).first() == Some(&TO_GUESS);
        let mut guessed: Vec<usize> = (0..step.seqs.len()).filter(|&place| is_guessed(&step.seqs[place])).collect();
        guessed.sort_by_key(|&place| Reverse(step.seqs[place].num_drafts()));
        let is_decode = step.seqs.iter().all(ScheduledSeq::is_decode);
        if guessed.is_empty() && (catching_up.is_empty() || !is_decode) {
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
        for place in guessed {
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
        // It leaves no states, and needs nothing but tokens.
        batch.states.clear_writes();
        batch.extras.clear();
        batch
    }

    /// Takes what the draft model has computed of the sequences of a step that is committed.
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
