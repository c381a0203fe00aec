//! Ends of a step: it is completed before it runs, committed after it, or given up.

use super::sequence::State;
use super::{Scheduler, SeqId, Step};
use crate::kv_cache::{KvCache, SeqBlocks};
use crate::{Error, Result};

/// The tokens that a step gave to one of the sequences that it samples.
#[derive(Debug, Clone, Copy)]
pub struct Accepted<'a> {
    /// The sequence's new tokens: those drafts that the step found to be right, then the one that it sampled after
    /// them. Without drafts exactly one.
    pub tokens: &'a [u32],
    /// Guesses of the tokens after these, which the sequence's next step computes as well, as far as there is room.
    /// Placeholders of guesses that are made only for that step are replaced in its batch (`note_drafts`).
    pub drafts: &'a [u32],
}

/// A step that was given out and not yet committed.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) id: u64,
    /// Blocks of sequences that ended meanwhile: the step may still write them, so they go back with its commit.
    pub(super) held: Vec<SeqBlocks>,
}

impl Scheduler {
    /// Completes a step that was scheduled while others were in flight, now that those are committed: puts in the
    /// tokens that they sampled, and takes out the sequences that ended. Empty if none is left, and then no longer in
    /// flight.
    ///
    /// # Errors
    /// `Internal` for a step that is not the oldest in flight (nothing is changed), and for one that waits for a token
    /// which the steps before did not bring.
    pub fn complete(&mut self, mut step: Step, now: u64) -> Result<Step> {
        if step.seqs.is_empty() {
            return Ok(step);
        }
        let Some(oldest) = self.in_flight.front_mut().filter(|oldest| oldest.id == step.id) else {
            return Err(Error::internal(format!("step {} is not the oldest step in flight", step.id)));
        };
        // No step that could write them has been launched.
        if !std::mem::take(&mut oldest.held).is_empty() {
            self.kv_cache.write().tick(now);
        }
        let slots: Vec<Option<usize>> = step.seqs.iter().map(|seq| self.slot_in_step(seq.id, step.id)).collect();
        if slots.iter().any(Option::is_none) {
            step = self.rebuild_step(step, &slots, self.kv_cache.read().config());
        }
        if step.seqs.is_empty() {
            self.in_flight.pop_front();
            return Ok(Step::default());
        }
        for ((slot, scheduled), end) in slots.iter().flatten().zip(&step.seqs).zip(&step.batch.cu_seqlens_q[1..]) {
            let token = self.sequences[*slot].tokens.get(scheduled.end_without_drafts() - 1);
            let token = token.ok_or_else(|| Error::internal(format!("{:?} was not given a token", scheduled.id)));
            step.batch.token_ids[*end as usize - 1 - scheduled.num_drafts()] = token?;
        }
        Ok(step)
    }

    /// Takes the tokens that were put in the place of drafts of a step that is about to be launched: whoever commits it
    /// accepts these.
    pub fn note_drafts(&mut self, step: &Step) {
        for scheduled in step.seqs.iter().filter(|scheduled| scheduled.num_drafts() > 0) {
            if let Some(slot) = self.slot_in_step(scheduled.id, step.id) {
                let drafts = &mut self.sequences[slot].drafts;
                drafts.clear();
                drafts.extend_from_slice(step.drafts(scheduled));
            }
        }
    }

    /// Takes back a step that was never launched, or that stopped half-way and writes no more: its sequences compute
    /// its tokens later, into the same blocks. Newer steps are withdrawn first. The oldest step in flight is taken for
    /// one that stopped half-way.
    ///
    /// # Errors
    /// `Internal` for a step that is not the newest in flight (nothing is changed).
    pub fn withdraw(&mut self, step: &Step) -> Result<()> {
        if step.seqs.is_empty() {
            return Ok(());
        }
        self.take_newest(step)?;
        let kv = std::sync::Arc::clone(&self.kv_cache);
        let mut kv = kv.write();
        // A step with one slot for each sequence has written over the states that it began with.
        let lost_states =
            self.in_flight.is_empty() && kv.config().states.is_some_and(|states| states.slots_per_seq == 1);
        for scheduled in &step.seqs {
            let Some(slot) = self.slot_in_step(scheduled.id, step.id) else { continue };
            let seq = &mut self.sequences[slot];
            seq.unschedule(scheduled);
            kv.take_back_step(&mut seq.blocks, scheduled.start)?;
            self.flows.refund(seq.flow, scheduled.num_tokens - scheduled.num_drafts());
            // Copies into its blocks may have been part of the step, which no older one has a part in then: the next
            // step would not make them again.
            if lost_states || (seq.in_flight == 0 && !step.batch.block_copies.is_empty()) {
                self.send_back(slot, &mut kv);
            }
        }
        Ok(())
    }

    /// The step has run: its tokens are computed, and each sampling sequence is given those that it accepts. The blocks
    /// of drafts that it does not accept go back. Sequences finished meanwhile are passed over. Steps are committed in
    /// the order in which they were scheduled.
    ///
    /// # Errors
    /// `Internal` for a step that was committed or discarded before or is not the oldest (nothing is changed), and for
    /// tokens of a sequence that has no use for them (the others are given theirs).
    pub fn commit<'a>(
        &mut self,
        step: &Step,
        accepted: impl IntoIterator<Item = (SeqId, Accepted<'a>)>,
        now: u64,
    ) -> Result<()> {
        if step.id == 0 {
            return Ok(());
        }
        if self.in_flight.front().is_none_or(|oldest| oldest.id != step.id) {
            return Err(Error::internal(format!("step {} is not the oldest step in flight", step.id)));
        }
        let record = self.in_flight.pop_front();
        let mut drafted = Vec::new();
        let kv = std::sync::Arc::clone(&self.kv_cache);
        let mut kv = kv.write();
        for scheduled in &step.seqs {
            let Some(slot) = self.slot_in_step(scheduled.id, step.id) else { continue };
            let seq = &mut self.sequences[slot];
            seq.in_flight -= 1;
            seq.num_expected = seq.num_expected.saturating_sub(usize::from(!scheduled.samples.is_empty()));
            seq.num_computed = scheduled.end_without_drafts();
            seq.logits_done = seq.logits_done.max(seq.num_computed.min(seq.tokens.prompt_len()));
            if scheduled.num_drafts() > 0 {
                drafted.push(slot);
            }
            kv.extend_chain(&mut seq.chain, &seq.tokens);
            kv.mark_computed(&mut seq.blocks, &seq.chain, &seq.tokens, seq.num_computed)?;
        }
        let accept = |(id, accepted)| self.accept(id, step.id, accepted, &mut kv);
        let all_accepted = accepted.into_iter().map(accept).fold(Ok(()), Result::and);
        for slot in drafted {
            let seq = &mut self.sequences[slot];
            seq.num_scheduled = seq.num_computed;
            kv.truncate(&mut seq.blocks, seq.num_computed)?;
        }
        self.note_drafted(step, &mut kv)?;
        drop(record);
        kv.tick(now);
        all_accepted
    }

    /// The step failed or was given up: all its sequences end, since what the device wrote for them is unknown. The
    /// device must no longer write for it. Newer steps are discarded first.
    ///
    /// # Errors
    /// `Internal` for a step that is not the newest in flight (nothing is changed).
    pub fn discard(&mut self, step: &Step, now: u64) -> Result<()> {
        if step.id == 0 {
            return Ok(());
        }
        self.take_newest(step)?;
        for scheduled in &step.seqs {
            if let Some(slot) = self.slot_in_step(scheduled.id, step.id) {
                self.sequences[slot].in_flight -= 1;
                self.finish(scheduled.id, now);
            }
        }
        self.kv_cache.write().tick(now);
        Ok(())
    }

    /// Takes the newest step out of the steps in flight.
    fn take_newest(&mut self, step: &Step) -> Result<()> {
        if self.in_flight.back().is_none_or(|newest| newest.id != step.id) {
            return Err(Error::internal(format!("step {} is not the newest step in flight", step.id)));
        }
        // Older steps may write these still.
        let held = self.in_flight.pop_back().map(|newest| newest.held);
        if let (Some(held), Some(newest)) = (held, self.in_flight.back_mut()) {
            newest.held.extend(held);
        }
        Ok(())
    }

    /// The sequence of this id, unless it is younger than the step.
    #[inline]
    pub(super) fn slot_in_step(&self, id: SeqId, step: u64) -> Option<usize> {
        self.slots.get(&id).copied().filter(|slot| self.sequences[*slot].born_after < step)
    }

    /// Gives a sequence the tokens of a step, whose own tokens but for drafts count as computed already.
    fn accept(&mut self, id: SeqId, step: u64, accepted: Accepted<'_>, kv: &mut KvCache) -> Result<()> {
        let Some(slot) = self.slot_in_step(id, step) else { return Ok(()) };
        let seq = &mut self.sequences[slot];
        if seq.state != State::Running || seq.num_computed != seq.tokens.len() {
            return Err(Error::internal(format!("{id:?} was given a token that it did not wait for")));
        }
        // Drafts of a sequence that steps in flight hold follow a token which one of those samples.
        let num_drafts = if seq.in_flight == 0 { seq.num_in_flight() } else { 0 };
        let (right, drafts) = (accepted.tokens.len().saturating_sub(1), &seq.drafts[..num_drafts]);
        if accepted.tokens.is_empty() || (right > 0 && !drafts.starts_with(&accepted.tokens[..right])) {
            let given = accepted.tokens;
            return Err(Error::internal(format!(
                "{id:?} was given {given:?} after it had computed the drafts {drafts:?}"
            )));
        }
        if seq.tokens.len() + accepted.tokens.len() > seq.max_len {
            return Err(Error::internal(format!("{id:?} was given a token beyond its {} tokens", seq.max_len)));
        }
        accepted.tokens.iter().for_each(|token| seq.tokens.push(*token));
        if right > 0 {
            seq.num_computed += right;
            self.flows.charge(seq.flow, right);
            kv.extend_chain(&mut seq.chain, &seq.tokens);
            kv.mark_computed(&mut seq.blocks, &seq.chain, &seq.tokens, seq.num_computed)?;
        }
        seq.drafts.clear();
        if !accepted.drafts.is_empty() {
            // The last token of all is never computed, so no draft stands there.
            let most = seq.max_len.saturating_sub(seq.tokens.len() + 1);
            seq.drafts.extend_from_slice(&accepted.drafts[..accepted.drafts.len().min(most)]);
        }
        Ok(())
    }
}
