//! The ends of a step: it is completed before it runs, and afterwards committed, withdrawn or discarded.

use crate::kv_cache::{KvCache, SeqBlocks};
use crate::sequence::State;
use crate::{Error, Result};
use crate::{Scheduler, SeqId, Step};

/// The tokens that a step produced for one of its sampling sequences.
#[derive(Debug, Clone, Copy)]
pub struct Accepted<'a> {
    /// The sequence's new tokens: the accepted drafts, then the token sampled after them. Without drafts exactly one.
    pub tokens: &'a [u32],
    /// Draft tokens to follow. The sequence's next step also computes them, as far as there is room. Placeholders of
    /// drafts that are computed only for that step are replaced in its batch (`note_drafts`).
    pub drafts: &'a [u32],
}

/// A step that was issued and not yet committed.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) id: u64,
    /// The time at which it was scheduled.
    pub(crate) scheduled: u64,
    /// Blocks of sequences that ended meanwhile. The step may still write to them, so its commit frees them.
    pub(crate) held: Vec<SeqBlocks>,
}

impl Scheduler {
    /// Completes a step that was scheduled while others were in flight, once those are committed. Fills in the tokens
    /// that they sampled, and removes the sequences that ended. The step is empty if none is left, and is then no
    /// longer in flight.
    ///
    /// # Errors
    /// `Internal` for a step that is not the oldest in flight (nothing is changed). Also for a step that needs a token
    /// which the earlier steps did not produce.
    pub fn complete(&mut self, mut step: Step, now: u64) -> Result<Step> {
        if step.seqs.is_empty() {
            return Ok(step);
        }
        let Some(oldest) = self.in_flight.front_mut().filter(|oldest| oldest.id == step.id) else {
            return Err(Error::internal(format!("step {} is not the oldest step in flight", step.id)));
        };
        // No step that could write to them has been launched.
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

    /// Takes the tokens that replaced the placeholders of drafts in a step about to be launched. Its commit accepts
    /// these.
    pub fn note_drafts(&mut self, step: &Step) {
        for scheduled in step.seqs.iter().filter(|scheduled| scheduled.num_drafts() > 0) {
            if let Some(slot) = self.slot_in_step(scheduled.id, step.id) {
                let drafts = &mut self.sequences[slot].drafts;
                drafts.clear();
                drafts.extend_from_slice(step.drafts(scheduled));
            }
        }
    }

    /// Withdraws a step that was never launched, or that was interrupted and writes no more. Its sequences compute its
    /// tokens later, into the same blocks. Newer steps must be withdrawn first. The oldest step in flight is assumed to
    /// have been interrupted.
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
        // With one slot per sequence, the step has overwritten the states that it began with.
        let lost_states =
            self.in_flight.is_empty() && kv.config().states.is_some_and(|states| states.slots_per_seq == 1);
        for scheduled in &step.seqs {
            let Some(slot) = self.slot_in_step(scheduled.id, step.id) else { continue };
            let seq = &mut self.sequences[slot];
            seq.unschedule(scheduled);
            kv.take_back_step(&mut seq.blocks, scheduled.start)?;
            self.flows.refund(seq.flow, scheduled.num_tokens - scheduled.num_drafts());
            // The step may have included copies into this sequence's blocks, if no older step holds the sequence. The
            // next step would not repeat them.
            if lost_states || (seq.in_flight == 0 && !step.batch.block_copies.is_empty()) {
                self.send_back(slot, &mut kv);
            }
        }
        Ok(())
    }

    /// Commits a step that has run: its tokens are computed, and each sampling sequence gets its accepted tokens. The
    /// blocks of rejected drafts are freed. Sequences that finished meanwhile are skipped. Steps are committed in the
    /// order in which they were scheduled.
    ///
    /// # Errors
    /// `Internal` for a step that was committed or discarded before or is not the oldest (nothing is changed). Also for
    /// tokens of a sequence that cannot take them; then the others still get theirs.
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
        if let Some(record) = &record {
            self.note_time(step, record.scheduled, now);
        }
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

    /// True if a committed step gave a sequence no token and the sequence can take one now. It must have computed all
    /// of its tokens, and no step in flight may hold it.
    pub fn can_take(&self, id: SeqId) -> bool {
        let seq = self.slots.get(&id).map(|slot| &self.sequences[*slot]);
        seq.is_some_and(|seq| seq.state == State::Running && seq.in_flight == 0 && seq.num_computed == seq.tokens.len())
    }

    /// Gives a sequence the tokens that a committed step did not give it, once it `can_take` them. The drafts of that
    /// step were dropped, so all tokens but the last are computed again.
    ///
    /// # Errors
    /// `Internal` for a sequence that cannot take them.
    pub fn take_late(&mut self, id: SeqId, accepted: Accepted<'_>) -> Result<()> {
        let kv = std::sync::Arc::clone(&self.kv_cache);
        let mut kv = kv.write();
        let Some((last, before)) = accepted.tokens.split_last() else { return Ok(()) };
        if !before.is_empty() {
            let Some(slot) = self.slots.get(&id).filter(|_| self.can_take(id)) else {
                return Err(Error::internal(format!("{id:?} was given tokens that it did not wait for")));
            };
            let seq = &mut self.sequences[*slot];
            seq.drafts.clear();
            before.iter().for_each(|token| seq.tokens.push(*token));
            seq.tokens.push(*last);
            return Ok(());
        }
        self.accept(id, self.last_step + 1, accepted, &mut kv)
    }

    /// Discards a failed step: all its sequences end, since the content that the device wrote for them is unknown. The
    /// device must no longer write for this step. Newer steps must be discarded first.
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

    /// Removes the newest step from the steps in flight.
    fn take_newest(&mut self, step: &Step) -> Result<()> {
        if self.in_flight.back().is_none_or(|newest| newest.id != step.id) {
            return Err(Error::internal(format!("step {} is not the newest step in flight", step.id)));
        }
        // Older steps may still write to these.
        let held = self.in_flight.pop_back().map(|newest| newest.held);
        if let (Some(held), Some(newest)) = (held, self.in_flight.back_mut()) {
            newest.held.extend(held);
        }
        Ok(())
    }

    /// Returns the slot of the sequence with this id, unless it was added after the step.
    #[inline]
    pub(super) fn slot_in_step(&self, id: SeqId, step: u64) -> Option<usize> {
        self.slots.get(&id).copied().filter(|slot| self.sequences[*slot].born_after < step)
    }

    /// Gives a sequence the tokens of a step. The step's own tokens, except drafts, already count as computed.
    fn accept(&mut self, id: SeqId, step: u64, accepted: Accepted<'_>, kv: &mut KvCache) -> Result<()> {
        let Some(slot) = self.slot_in_step(id, step) else { return Ok(()) };
        let seq = &mut self.sequences[slot];
        if seq.state != State::Running || seq.num_computed != seq.tokens.len() {
            return Err(Error::internal(format!("{id:?} was given a token that it did not wait for")));
        }
        // If steps in flight hold the sequence, its drafts follow a token that one of those steps samples.
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
            // The very last token is never computed, so it cannot be a draft.
            let most = seq.max_len.saturating_sub(seq.tokens.len() + 1);
            seq.drafts.extend_from_slice(&accepted.drafts[..accepted.drafts.len().min(most)]);
        }
        Ok(())
    }
}
