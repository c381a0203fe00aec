//! Decides which prompts get on in a step, and which waiting sequences are let in.
//!
//! Prompts under way and those that wait stand in one order: by priority, then arrival. Each in turn gets what is left
//! of the step's tokens, with these exceptions:
//! - A *long* prompt (more than `long_prefill_token_threshold` tokens to compute) leaves short ones behind it, of its
//!   own priority, up to half of that. So short prompts do not wait for long ones, and the long prompt that is first in
//!   the order still gets at least half of every step's prompt tokens.
//! - A step leaves at most `max_num_partial_prefills` prompts half-way, of them `max_long_partial_prefills` long ones.
//!   Others that it could not compute to their end let those behind them pass.
//! - A waiting sequence whose prompt is being computed right now by another lets those behind it pass, and finds it in
//!   the prefix cache a step later. It does so only while that spares it at least half of what it would compute itself:
//!   a step's delay for a small part of a prompt is no gain.
//!
//! Whoever lacks a place among `max_num_seqs`, or blocks, lets nobody pass: what comes free is for the first in the
//! order.

use std::ops::Bound;

use super::Scheduler;
use super::pick::{Grown, Picks};
use super::sequence::{Key, Sequence, State};
use crate::Result;
use crate::kv_cache::{Demand, KvCache, PrefixHit};

/// An admission that found too few blocks. No use trying it again before the cache has gained some, or content to
/// share, or the step has room for fewer tokens.
#[derive(Debug)]
pub(super) struct Refusal {
    key: Key,
    num_gains: u64,
    budget: usize,
}

impl Refusal {
    fn covers(&self, attempt: &Self) -> bool {
        self.key == attempt.key && self.num_gains == attempt.num_gains && self.budget <= attempt.budget
    }
}

/// The result of trying to let a waiting sequence in.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    Started,
    /// It waits on, and those behind it may be let in.
    Passed,
    /// It waits on, and so do all behind it.
    Closed,
}

impl Scheduler {
    pub(super) fn pick_prompts(&mut self, kv: &mut KvCache, picks: &mut Picks, now: u64) -> Result<()> {
        let mut i = 0;
        let mut is_open = true;
        let mut last_seen = None;
        while picks.budget > 0 {
            while self.running.get(i).is_some_and(|&(_, slot)| self.sequences[slot].num_pending() < 2) {
                i += 1;
            }
            let under_way = self.running.get(i).copied();
            // Blocks that running sequences lack, or got by preemption, are not for newcomers.
            let waiting = if is_open && !picks.lacks_blocks { self.next_waiting(last_seen) } else { None };
            match (under_way, waiting) {
                (None, None) => break,
                (Some((key, slot)), next) if next.is_none_or(|(waiting_key, _)| key < waiting_key) => {
                    let pending = self.sequences[slot].num_pending();
                    let num_tokens = self.share(key, slot, pending, kv, picks, is_open);
                    if num_tokens == 0 || self.grow(slot, num_tokens, kv, picks, now)? != Grown::Preempted {
                        i += 1;
                    }
                }
                (_, Some((key, slot))) => {
                    last_seen = Some(key);
                    match self.admit(key, slot, kv, picks, now)? {
                        // It runs now, and stands before the one under way.
                        Admission::Started => i += 1,
                        Admission::Passed => {}
                        Admission::Closed => is_open = false,
                    }
                }
                (Some(_), None) => break,
            }
        }
        self.top_up(kv, picks)
    }

    fn next_waiting(&self, last_seen: Option<Key>) -> Option<(Key, usize)> {
        let from = last_seen.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded)).next().map(|(key, slot)| (*key, *slot))
    }

    /// The number of a prompt's `pending` tokens that go into this step; 0 if it has to wait.
    fn share(
        &mut self,
        key: Key,
        slot: usize,
        pending: usize,
        kv: &KvCache,
        picks: &mut Picks,
        is_open: bool,
    ) -> usize {
        let is_long = pending > self.config.long_prefill_token_threshold;
        let mut num_tokens = pending.min(picks.room_for(&self.sequences[slot]));
        // A prompt whose logits are wanted is held back by these, and leaves most of a step to others.
        let may_be_partial = self.sequences[slot].wants_prompt_logits() || self.has_room_for_partial(is_long, picks);
        if num_tokens < pending && !may_be_partial {
            return 0;
        }
        if is_long && num_tokens > picks.budget.div_ceil(2) {
            num_tokens = num_tokens.min(picks.budget - self.kept_for_short(key, kv, picks, is_open));
        }
        if num_tokens < pending && !may_be_partial { 0 } else { num_tokens }
    }

    fn has_room_for_partial(&self, is_long: bool, picks: &Picks) -> bool {
        picks.num_partial < self.config.max_num_partial_prefills
            && (!is_long || picks.num_long_partial < self.config.max_long_partial_prefills)
    }

    /// Tokens that a long prompt leaves to short ones of its priority behind it: what these could use, up to half of
    /// the step's. An estimate, what is not used after all comes back with `top_up`.
    fn kept_for_short(&mut self, key: Key, kv: &KvCache, picks: &mut Picks, is_open: bool) -> usize {
        let (half, threshold) = (picks.budget / 2, self.config.long_prefill_token_threshold);
        let mut wanted = 0;
        let behind = self.running.partition_point(|(other, _)| *other <= key);
        for (other, slot) in &self.running[behind..] {
            if other.priority != key.priority || wanted >= half {
                break;
            }
            let pending = self.sequences[*slot].num_pending();
            wanted += if (2..=threshold).contains(&pending) { pending } else { 0 };
        }
        let mut places = self.config.max_num_seqs - self.running.len();
        if !is_open || picks.lacks_blocks {
            places = 0;
        }
        for (other, slot) in self.waiting.range((Bound::Excluded(key), Bound::Unbounded)) {
            if other.priority != key.priority || wanted >= half || places == 0 {
                break;
            }
            let seq = &mut self.sequences[*slot];
            if seq.uncached > threshold && picks.looks_left > 0 && !seq.wants_prompt_logits() {
                picks.looks_left -= 1;
                look_up(seq, kv);
            }
            if seq.uncached <= threshold {
                wanted += seq.uncached;
                places -= 1;
            }
        }
        wanted.min(half)
    }

    /// Gives tokens that nobody took to the prompts of the step, in their order.
    fn top_up(&mut self, kv: &mut KvCache, picks: &mut Picks) -> Result<()> {
        for i in 0..picks.entries.len() {
            let slot = picks.entries[i].slot;
            let seq = &self.sequences[slot];
            let num_tokens = seq.num_pending().min(picks.room_for(seq));
            if num_tokens > 0 && self.allocate(slot, num_tokens, kv, picks)? {
                let seq = &mut self.sequences[slot];
                seq.num_scheduled += num_tokens;
                picks.spend(seq, num_tokens);
                picks.entries[i].num_tokens += num_tokens;
            }
        }
        Ok(())
    }

    /// Starts a waiting sequence if there are a place, room in the step, and blocks for all its tokens.
    fn admit(&mut self, key: Key, slot: usize, kv: &mut KvCache, picks: &mut Picks, now: u64) -> Result<Admission> {
        if self.running.len() >= self.config.max_num_seqs {
            return Ok(Admission::Closed);
        }
        let attempt = Refusal { key, num_gains: kv.num_gains(), budget: picks.budget };
        if self.refused.as_ref().is_some_and(|refused| refused.covers(&attempt)) {
            return Ok(Admission::Closed);
        }
        let threshold = self.config.long_prefill_token_threshold;
        let has_room_for_long = self.has_room_for_partial(true, picks);
        let seq = &mut self.sequences[slot];
        let wants_all = seq.wants_prompt_logits();
        if !wants_all && seq.uncached > threshold && !has_room_for_long && picks.looks_left == 0 {
            return Ok(Admission::Passed);
        }
        let len = seq.tokens.len();
        kv.extend_chain(&mut seq.chain, &seq.tokens);
        let is_computed = !wants_all && self.is_computed_by_others(slot, kv, picks);
        let seq = &mut self.sequences[slot];
        let hit = if wants_all || is_computed { PrefixHit::default() } else { look_up(seq, kv) };
        let start = hit.num_tokens;
        let num_tokens = if is_computed { 0 } else { self.share(key, slot, len - start, kv, picks, true) };
        if num_tokens == 0 {
            picks.looks_left -= usize::from(len > threshold && picks.looks_left > 0);
            return Ok(Admission::Passed);
        }
        // Running sequences need blocks soon: without some to spare the newcomer would be preempted at once.
        let keep_free = if self.running.is_empty() { &[][..] } else { &picks.keep_free };
        let demand = Demand { write: start..start + num_tokens, reserve: len, keep_free };
        let seq = &mut self.sequences[slot];
        let Some(plan) = kv.plan(&seq.blocks, hit, &demand) else {
            // A failure counts only with no step in flight: otherwise more blocks are kept free than an admission
            // needs.
            if self.in_flight.is_empty() {
                self.refused = Some(attempt);
            }
            return Ok(Admission::Closed);
        };
        kv.commit(plan, &mut seq.blocks, &mut Vec::new())?;
        self.start(key, slot, start, kv);
        self.take(slot, num_tokens, picks, now);
        Ok(Admission::Started)
    }

    /// Whether the steps at work compute at least half of what a waiting sequence could compute in this one.
    fn is_computed_by_others(&self, slot: usize, kv: &KvCache, picks: &Picks) -> bool {
        let seq = &self.sequences[slot];
        picks.computing.iter().map(|slot| &self.sequences[*slot]).any(|other| {
            let computing = other.num_computed..other.num_scheduled;
            let shared = kv.tokens_shared_soon(&seq.chain, seq.tokens.len(), &other.chain, computing);
            // If both share a prefix, this sequence would begin where the other one did.
            let alone = seq.tokens.len().saturating_sub(other.num_computed).min(picks.budget);
            shared > 0 && shared >= alone.div_ceil(2)
        })
    }

    /// A waiting sequence with blocks, of which `num_cached` tokens were found in the prefix cache, begins to run.
    fn start(&mut self, key: Key, slot: usize, num_cached: usize, kv: &mut KvCache) {
        let seq = &mut self.sequences[slot];
        if seq.scheduled_at.is_none() && !seq.wants_prompt_logits() {
            seq.num_cached_tokens = num_cached;
            kv.count_prefix_query(seq.tokens.len(), num_cached);
        }
        seq.num_computed = num_cached;
        seq.num_scheduled = num_cached;
        seq.state = State::Running;
        self.waiting.remove(&key);
        self.insert_running(key, slot);
    }
}

/// Looks for the beginning of a waiting sequence in the prefix cache.
fn look_up(seq: &mut Sequence, kv: &KvCache) -> PrefixHit {
    kv.extend_chain(&mut seq.chain, &seq.tokens);
    let hit = kv.find_prefix(&seq.chain, seq.tokens.len());
    seq.uncached = seq.tokens.len() - hit.num_tokens;
    hit
}
