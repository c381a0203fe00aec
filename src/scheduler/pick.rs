//! Picks the sequences that run in the next step, and how many tokens each computes.
//!
//! Every sequence with one token to compute (a decode) comes first. Then come prompts (`prompts`), then drafts if there
//! is room left. If a step has prompts of clients with credit (`prompts`), the decodes of some other clients wait.
//!
//! If there is no free block for a sequence, the last sequence in the order gives up its blocks, possibly the same one.
//! So the first in the order always advances, and every sequence ends.

use std::ops::Range;

use super::Scheduler;
use super::sequence::{Key, State};
use crate::Result;
use crate::batch::{BlockCopy, TO_DRAFT};
use crate::kv_cache::{Demand, KvCache, KvCacheConfig, PrefixHit};

/// The most waiting sequences with long prompts that a step looks up in the prefix cache without starting them. A long
/// prompt that is mostly cached counts as short, but a lookup costs as much as the prompt is long.
const MAX_LOOKS: usize = 16;

/// The sequences picked so far, and the remaining capacity of the step.
#[derive(Debug)]
pub(super) struct Picks {
    pub(super) entries: Vec<Pick>,
    /// Block copies to make, each with the slot of its sequence.
    pub(super) copies: Vec<(usize, BlockCopy)>,
    /// Tokens that still fit in the step.
    pub(super) budget: usize,
    /// Drafts that still fit in the step.
    drafts: usize,
    /// Tokens that a model may still compute in order to draft for the step.
    draft_budget: usize,
    /// Blocks of each group that must stay free when a sequence is admitted next to others.
    pub(super) keep_free: Vec<usize>,
    /// True if no block was free for a running sequence.
    pub(super) lacks_blocks: bool,
    /// The number of prompts that the step leaves partially computed, and of the long ones among them.
    pub(super) num_partial: usize,
    pub(super) num_long_partial: usize,
    /// The number of prompts that were picked, including those that lost their blocks again.
    pub(super) num_prompts: usize,
    pub(super) looks_left: usize,
    /// Slots of sequences with prompt tokens in this step or in one in flight.
    pub(super) computing: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Pick {
    pub(super) slot: usize,
    pub(super) num_tokens: usize,
}

/// The result of trying to advance a running sequence.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Grown {
    Scheduled,
    /// It lost its own blocks and waits again.
    Preempted,
    /// No block can be freed before a step in flight ends.
    Stalled,
}

impl Scheduler {
    pub(super) fn pick(&mut self, kv: &mut KvCache, now: u64) -> Result<Picks> {
        let under_way = self.running.iter().map(|&(_, slot)| slot);
        let mut picks = Picks {
            entries: Vec::with_capacity(self.running.len() + 1),
            copies: Vec::new(),
            budget: self.config.max_num_batched_tokens,
            drafts: self.config.max_drafts,
            draft_budget: self.config.max_num_batched_tokens,
            keep_free: self.watermark.clone(),
            lacks_blocks: false,
            num_partial: 0,
            num_long_partial: 0,
            num_prompts: 0,
            looks_left: MAX_LOOKS,
            computing: under_way.filter(|slot| self.sequences[*slot].num_in_flight() > 1).collect(),
        };
        if self.pick_favoured(kv, &mut picks, now)? {
            self.pick_drafts(kv, &mut picks)?;
            return Ok(picks);
        }
        self.pick_decodes(kv, &mut picks, now, None)?;
        if !self.in_flight.is_empty() {
            // A step scheduled ahead preempts nothing, so new sequences must not take blocks that running prompts may
            // still need.
            self.keep_for_running(kv, &mut picks, 2);
        }
        let kept = self.kept_from_prompts(&picks, now);
        picks.budget -= kept;
        self.pick_prompts(kv, &mut picks, now)?;
        picks.budget += kept;
        self.pick_drafts(kv, &mut picks)?;
        Ok(picks)
    }

    /// Picks prompts of clients with credit, and other work that need not wait for them (`prompts`). Returns false if
    /// no such prompt could be picked; then the step is an ordinary one.
    fn pick_favoured(&mut self, kv: &mut KvCache, picks: &mut Picks, now: u64) -> Result<bool> {
        let Some((priority, lines)) = self.favoured(picks) else { return Ok(false) };
        self.pick_decodes(kv, picks, now, Some(priority))?;
        // Waiting decodes run again in the next step, and must not be preempted for new sequences.
        self.keep_for_running(kv, picks, 1);
        self.pick_of(lines, kv, picks, now)?;
        picks.keep_free.clone_from(&self.watermark);
        Ok(picks.num_prompts > 0 && !picks.entries.is_empty())
    }

    /// Reserves the blocks that running sequences with at least `least` tokens to compute may need in the next step.
    fn keep_for_running(&self, kv: &KvCache, picks: &mut Picks, least: usize) {
        let needed = self.most_blocks(kv.config(), least);
        picks.keep_free.iter_mut().zip(needed).for_each(|(kept, needed)| *kept = needed.max(*kept));
    }

    /// Gives the remaining tokens, blocks and state slots to drafts, in the order of the step. No sequence waits or is
    /// preempted for a draft token.
    fn pick_drafts(&mut self, kv: &mut KvCache, picks: &mut Picks) -> Result<()> {
        let kept_free = self.kept_for_sequences(kv);
        for i in 0..picks.entries.len() {
            let slot = picks.entries[i].slot;
            let seq = &self.sequences[slot];
            // Each draft needs one more row of logits, and the state before it is saved.
            let num_slots = kv.slots_available().saturating_sub(kept_free);
            let num_drafts = seq.drafts.len().min(picks.budget).min(picks.drafts).min(num_slots);
            // Drafts follow the last token, which must be part of the step.
            let follow = num_drafts > 0 && seq.num_pending() == 0;
            // The drafting model first computes the tokens that it lacks.
            let to_compute = if seq.drafts.first() == Some(&TO_DRAFT) { seq.draft_lag() + 1 } else { 0 };
            let is_known = to_compute <= picks.draft_budget;
            let keep_states = seq.num_scheduled..seq.num_scheduled + num_drafts;
            if follow && is_known && self.allocate(slot, num_drafts, keep_states, kv, picks)? {
                self.sequences[slot].num_scheduled += num_drafts;
                picks.draft_budget -= to_compute;
                picks.budget -= num_drafts;
                picks.drafts -= num_drafts;
                picks.entries[i].num_tokens += num_drafts;
            }
        }
        Ok(())
    }

    /// Picks decodes. With `favoured`, decodes of clients without credit wait if their priority is that one or a later
    /// one.
    fn pick_decodes(&mut self, kv: &mut KvCache, picks: &mut Picks, now: u64, favoured: Option<i32>) -> Result<()> {
        let mut i = 0;
        while let Some(&(_, slot)) = self.running.get(i) {
            if picks.budget == 0 {
                break;
            }
            let seq = &self.sequences[slot];
            let waits = favoured.is_some_and(|first| seq.key.priority >= first && !self.flows.is_in_credit(seq.flow));
            let is_decode = seq.num_pending() == 1 && !waits;
            if !is_decode || self.grow(slot, 1, kv, picks, now)? != Grown::Preempted {
                i += 1;
            }
        }
        Ok(())
    }

    /// Gives a running sequence blocks for `num_tokens` more tokens and picks it, preempting others if no block is
    /// left.
    pub(super) fn grow(
        &mut self,
        slot: usize,
        num_tokens: usize,
        kv: &mut KvCache,
        picks: &mut Picks,
        now: u64,
    ) -> Result<Grown> {
        while !self.allocate(slot, num_tokens, 0..0, kv, picks)? {
            picks.lacks_blocks = true;
            let Some(victim) = self.victim(self.sequences[slot].key) else { return Ok(Grown::Stalled) };
            self.preempt(victim, kv, picks);
            if victim == slot {
                return Ok(Grown::Preempted);
            }
        }
        self.take(slot, num_tokens, picks, now);
        Ok(Grown::Scheduled)
    }

    /// Gives a running sequence blocks for `num_tokens` more tokens, and slots for these states. Returns `false` and
    /// does nothing if there are too few.
    pub(super) fn allocate(
        &mut self,
        slot: usize,
        num_tokens: usize,
        keep_states: Range<usize>,
        kv: &mut KvCache,
        picks: &mut Picks,
    ) -> Result<bool> {
        let seq = &mut self.sequences[slot];
        let write = seq.num_scheduled..seq.num_scheduled + num_tokens;
        let write_start = write.start;
        let demand = Demand { reserve: write.end, write, keep_free: &[], keep_states };
        let Some(plan) = kv.plan(&seq.blocks, PrefixHit::default(), &demand) else { return Ok(false) };
        let mut copies = Vec::new();
        kv.commit(plan, &mut seq.blocks, &mut copies)?;
        if self.config.draft_lags && !copies.is_empty() {
            // The step copies only the model's layers, so the draft model recomputes its part of the block.
            let block_size = kv.config().block_size;
            seq.num_draft_computed = seq.num_draft_computed.min(write_start / block_size * block_size);
        }
        picks.copies.extend(copies.into_iter().map(|copy| (slot, copy)));
        Ok(true)
    }

    /// Returns the most blocks of each group that running sequences may need in the next step: those for their tokens,
    /// and one each for a copy. Only sequences with at least `least` tokens to compute count.
    pub(super) fn most_blocks(&self, kv: &KvCacheConfig, least: usize) -> Vec<usize> {
        let budget = self.config.max_num_batched_tokens;
        let mut most = vec![0; kv.groups.len()];
        let running = self.running.iter().map(|&(_, slot)| &self.sequences[slot]);
        for seq in running.filter(|seq| seq.num_pending() >= least) {
            let end = seq.num_scheduled + seq.num_pending().min(budget);
            for (g, most) in most.iter_mut().enumerate() {
                *most += end.div_ceil(kv.block_size).saturating_sub(seq.blocks.table(g).len()) + 1;
            }
        }
        most
    }

    /// Returns the last running sequence in the order, from `key` on, to whose blocks no step in flight writes.
    fn victim(&self, key: Key) -> Option<usize> {
        let candidates = self.running.iter().rev().take_while(|(candidate, _)| *candidate >= key);
        candidates.map(|&(_, slot)| slot).find(|slot| self.sequences[*slot].in_flight == 0)
    }

    /// Preempts a running sequence: it loses its blocks, keeps its tokens and its position in the order, and is
    /// recomputed later.
    pub(super) fn preempt(&mut self, slot: usize, kv: &mut KvCache, picks: &mut Picks) {
        if let Some(i) = picks.entries.iter().position(|pick| pick.slot == slot) {
            let num_tokens = picks.entries.remove(i).num_tokens;
            picks.budget += num_tokens;
            self.flows.refund(self.sequences[slot].flow, num_tokens);
            picks.copies.retain(|(owner, _)| *owner != slot);
        }
        self.send_back(slot, kv);
        self.num_preemptions += 1;
        self.sequences[slot].num_preemptions += 1;
    }

    /// Makes a running sequence wait again, without blocks.
    pub(super) fn send_back(&mut self, slot: usize, kv: &mut KvCache) {
        let seq = &mut self.sequences[slot];
        kv.release(&mut seq.blocks);
        seq.state = State::Waiting;
        seq.num_computed = 0;
        seq.num_draft_computed = 0;
        seq.num_scheduled = 0;
        seq.drafts.clear();
        seq.uncached = seq.tokens.len();
        let (key, flow) = (seq.key, seq.flow);
        self.remove_running(key);
        self.flows.wait(flow, key, slot);
    }

    pub(super) fn take(&mut self, slot: usize, num_tokens: usize, picks: &mut Picks, now: u64) {
        let seq = &mut self.sequences[slot];
        picks.budget -= num_tokens;
        self.flows.charge(seq.flow, num_tokens);
        seq.num_scheduled += num_tokens;
        seq.touch(now);
        if num_tokens > 1 {
            picks.computing.push(slot);
        }
        let left = seq.num_pending();
        if left > 0 {
            picks.num_partial += 1;
            picks.num_long_partial += usize::from(num_tokens + left > self.config.long_prefill_token_threshold);
        }
        picks.entries.push(Pick { slot, num_tokens });
    }
}
