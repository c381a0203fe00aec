//! Who runs in the next step, and with how many tokens.
//!
//! First every sequence that has one token to compute (decodes), then prompts: those that are under way and those that
//! wait, by priority, then arrival. A sequence for which no block is left makes the last one in that order give up its
//! blocks (possibly itself); so the first in the order always gets on, and everything ends.

use super::Scheduler;
use super::sequence::{Key, Sequence, State};
use crate::Result;
use crate::batch::BlockCopy;
use crate::kv_cache::{Demand, KvCache, KvCacheConfig, PrefixHit};

/// What was picked so far.
#[derive(Debug)]
pub(super) struct Picks {
    pub(super) entries: Vec<Pick>,
    /// Copies to make, and for whom (slot).
    pub(super) copies: Vec<(usize, BlockCopy)>,
    /// Tokens that still fit into the step.
    budget: usize,
    /// Prompt tokens whose logits still fit into the step.
    prompt_logits: usize,
    /// Blocks left free when a sequence is admitted beside others.
    keep_free: usize,
    /// A running sequence found no block left.
    is_short: bool,
}

#[derive(Debug)]
pub(super) struct Pick {
    pub(super) slot: usize,
    pub(super) num_tokens: usize,
}

/// What came of the wish to run a sequence on.
#[derive(Debug, PartialEq, Eq)]
enum Grown {
    Scheduled,
    /// It lost its own blocks and waits again.
    Preempted,
    /// Blocks come back only with a step in flight.
    Stalled,
}

impl Picks {
    /// Tokens that `seq` may compute in what is left of the step.
    fn room_for(&self, seq: &Sequence) -> usize {
        if seq.wants_prompt_logits() { self.budget.min(self.prompt_logits) } else { self.budget }
    }
}

impl Scheduler {
    pub(super) fn pick(&mut self, kv: &mut KvCache, now: u64) -> Result<Picks> {
        let mut picks = Picks {
            entries: Vec::with_capacity(self.running.len() + 1),
            copies: Vec::new(),
            budget: self.config.max_num_batched_tokens,
            prompt_logits: self.config.max_prompt_logits,
            keep_free: self.watermark,
            is_short: false,
        };
        self.pick_decodes(kv, &mut picks, now)?;
        if !self.in_flight.is_empty() {
            // Nothing is preempted ahead: what prompts under way may still need is not for newcomers.
            picks.keep_free = picks.keep_free.max(self.most_blocks(kv.config(), 2));
        }
        self.pick_prompts(kv, &mut picks, now)?;
        Ok(picks)
    }

    fn pick_decodes(&mut self, kv: &mut KvCache, picks: &mut Picks, now: u64) -> Result<()> {
        let mut i = 0;
        while let Some(&(_, slot)) = self.running.get(i) {
            if picks.budget == 0 {
                break;
            }
            let is_decode = self.sequences[slot].num_pending() == 1;
            if !is_decode || self.grow(slot, 1, kv, picks, now)? != Grown::Preempted {
                i += 1;
            }
        }
        Ok(())
    }

    fn pick_prompts(&mut self, kv: &mut KvCache, picks: &mut Picks, now: u64) -> Result<()> {
        let mut i = 0;
        let mut admits = true;
        while picks.budget > 0 {
            while self.running.get(i).is_some_and(|&(_, slot)| self.sequences[slot].num_pending() < 2) {
                i += 1;
            }
            let under_way = self.running.get(i).copied();
            // Blocks that running sequences lack, or got by preemption, are not for newcomers.
            let waiting = self.waiting.first_key_value().filter(|_| admits && !picks.is_short);
            let waiting = waiting.map(|(key, slot)| (*key, *slot));
            match (under_way, waiting) {
                (None, None) => break,
                (Some((key, _)), Some((waiting_key, waiting_slot))) if waiting_key < key => {
                    admits = self.admit(waiting_key, waiting_slot, kv, picks, now)?;
                    // It now runs, and stands before the one under way.
                    i += usize::from(admits);
                }
                (Some((_, slot)), _) => {
                    let num_tokens = self.sequences[slot].num_pending().min(picks.room_for(&self.sequences[slot]));
                    if num_tokens == 0 || self.grow(slot, num_tokens, kv, picks, now)? != Grown::Preempted {
                        i += 1;
                    }
                }
                (None, Some((key, slot))) => admits = self.admit(key, slot, kv, picks, now)?,
            }
        }
        Ok(())
    }

    /// Gives a running sequence blocks for `num_tokens` more tokens and picks it, preempting where no block is left.
    fn grow(&mut self, slot: usize, num_tokens: usize, kv: &mut KvCache, picks: &mut Picks, now: u64) -> Result<Grown> {
        loop {
            let seq = &mut self.sequences[slot];
            let write = seq.num_scheduled..seq.num_scheduled + num_tokens;
            let demand = Demand { reserve: write.end, write, keep_free: 0 };
            if let Some(plan) = kv.plan(&seq.blocks, PrefixHit::default(), &demand) {
                let mut copies = Vec::new();
                kv.commit(plan, &mut seq.blocks, &mut copies)?;
                picks.copies.extend(copies.into_iter().map(|copy| (slot, copy)));
                self.take(slot, num_tokens, picks, now);
                return Ok(Grown::Scheduled);
            }
            picks.is_short = true;
            let key = seq.key;
            let Some(victim) = self.victim(key) else { return Ok(Grown::Stalled) };
            self.preempt(victim, kv, picks);
            if victim == slot {
                return Ok(Grown::Preempted);
            }
        }
    }

    /// The most blocks of a group that the running sequences with `least` or more tokens to compute can need in the next
    /// step: those for their tokens, and one each for a copy.
    pub(super) fn most_blocks(&self, kv: &KvCacheConfig, least: usize) -> usize {
        let budget = self.config.max_num_batched_tokens;
        let running = self.running.iter().map(|&(_, slot)| &self.sequences[slot]);
        let needed = running.filter(|seq| seq.num_pending() >= least).map(|seq| {
            let end = seq.num_scheduled + seq.num_pending().min(budget);
            let held = (0..kv.groups.len()).map(|group| seq.blocks.table(group).len()).min();
            end.div_ceil(kv.block_size).saturating_sub(held.unwrap_or(0)) + 1
        });
        needed.sum()
    }

    /// The last running sequence in the order, from `key` on, whose blocks no step in flight writes.
    fn victim(&self, key: Key) -> Option<usize> {
        let candidates = self.running.iter().rev().take_while(|(candidate, _)| *candidate >= key);
        candidates.map(|&(_, slot)| slot).find(|slot| self.sequences[*slot].in_flight == 0)
    }

    /// Takes a running sequence's blocks away. It keeps its tokens and its place in the order, and computes again later.
    fn preempt(&mut self, slot: usize, kv: &mut KvCache, picks: &mut Picks) {
        if let Some(i) = picks.entries.iter().position(|pick| pick.slot == slot) {
            let num_tokens = picks.entries.remove(i).num_tokens;
            picks.budget += num_tokens;
            if self.sequences[slot].wants_prompt_logits() {
                picks.prompt_logits += num_tokens;
            }
            picks.copies.retain(|(owner, _)| *owner != slot);
        }
        self.send_back(slot, kv);
        self.num_preemptions += 1;
        self.sequences[slot].num_preemptions += 1;
    }

    /// Lets a running sequence wait again, without blocks.
    pub(super) fn send_back(&mut self, slot: usize, kv: &mut KvCache) {
        let seq = &mut self.sequences[slot];
        kv.release(&mut seq.blocks);
        seq.state = State::Waiting;
        seq.num_computed = 0;
        seq.num_scheduled = 0;
        let (key, places) = (seq.key, seq.places);
        self.remove_running(key);
        self.places_taken -= places;
        self.waiting.insert(key, slot);
    }

    /// Starts the first of the waiting sequences if there are a place and blocks for all its tokens; `false` if not,
    /// and then nobody behind it may pass.
    fn admit(&mut self, key: Key, slot: usize, kv: &mut KvCache, picks: &mut Picks, now: u64) -> Result<bool> {
        let seq = &mut self.sequences[slot];
        if self.places_taken + seq.places > self.config.max_num_seqs {
            return Ok(false);
        }
        let attempt = (key, kv.num_releases());
        if self.refused == Some(attempt) {
            return Ok(false);
        }
        let hit = if seq.wants_prompt_logits() {
            PrefixHit::default()
        } else {
            kv.extend_chain(&mut seq.chain, &seq.tokens);
            kv.find_prefix(&seq.chain, seq.tokens.len())
        };
        let start = hit.num_tokens;
        let num_tokens = (seq.tokens.len() - start).min(picks.room_for(seq));
        if num_tokens == 0 {
            return Ok(false);
        }
        // Running sequences need blocks soon: without some to spare the newcomer would be preempted at once.
        let keep_free = if self.running.is_empty() { 0 } else { picks.keep_free };
        let demand = Demand { write: start..start + num_tokens, reserve: seq.tokens.len(), keep_free };
        let Some(plan) = kv.plan(&seq.blocks, hit, &demand) else {
            // With a step in flight more is kept free than an admission needs otherwise.
            if self.in_flight.is_empty() {
                self.refused = Some(attempt);
            }
            return Ok(false);
        };
        kv.commit(plan, &mut seq.blocks, &mut Vec::new())?;
        if seq.scheduled_at.is_none() {
            self.num_never_ran -= 1;
            if !seq.wants_prompt_logits() {
                seq.num_cached_tokens = start;
                kv.count_prefix_query(seq.tokens.len(), start);
            }
        }
        seq.num_computed = start;
        seq.num_scheduled = start;
        seq.state = State::Running;
        self.places_taken += seq.places;
        self.waiting.remove(&key);
        self.insert_running(key, slot);
        self.take(slot, num_tokens, picks, now);
        Ok(true)
    }

    fn take(&mut self, slot: usize, num_tokens: usize, picks: &mut Picks, now: u64) {
        let seq = &mut self.sequences[slot];
        seq.num_scheduled += num_tokens;
        seq.touch(now);
        picks.budget -= num_tokens;
        if seq.wants_prompt_logits() {
            // One row is every sequence's own, for a decode of such a one it may not come out of the prompts' share.
            picks.prompt_logits = picks.prompt_logits.saturating_sub(num_tokens);
        }
        picks.entries.push(Pick { slot, num_tokens });
    }
}
