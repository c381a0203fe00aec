//! Decides which prompts get on in a step, and which waiting sequences are let in.
//!
//! Prompts under way and those that wait stand in one order: by priority, then by what their client was served
//! (`flows`), then by arrival. Each in turn gets what is left of the step's tokens, and is charged for them before the
//! next is looked for, with these exceptions:
//! - A *long* prompt (more than `long_prefill_token_threshold` tokens to compute) leaves short ones behind it, of its
//!   own priority, up to half of that. So short prompts do not wait for long ones, and the long prompt that is first in
//!   the order still gets at least half of every step's prompt tokens.
//! - A step leaves at most `max_num_partial_prefills` prompts half-way, of them `max_long_partial_prefills` long ones.
//!   Others that it could not compute to their end let those behind them pass.
//! - A step with prompt tokens of clients that have credit (`flows`) has none, of prompts or of answers, of clients of
//!   their priority or of later ones that have no credit: it is as short as their own prompts make it.
//! - A waiting sequence whose prompt is being computed right now by another lets those behind it pass, and finds it in
//!   the prefix cache a step later. It does so only while that spares it at least half of what it would compute itself:
//!   a step's delay for a small part of a prompt is no gain.
//! - A prompt of a model that attends in both directions is computed as a whole. One that does not fit into what is
//!   left of a step lets those behind it pass; it is the first of its client in a later one, which has room for any.
//!
//! Whoever lacks a place among `max_num_seqs`, or blocks, lets nobody pass: what comes free is for the first in the
//! order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Bound;

use super::Scheduler;
use super::pick::{Grown, Picks};
use super::reason::WaitingReason;
use super::sequence::{Key, Sequence, State};
use crate::Result;
use crate::kv_cache::{Demand, KvCache, PrefixHit, PrefixMiss};

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

/// Sequences of one flow that may get prompt tokens in a step.
#[derive(Debug)]
pub(super) struct Line {
    flow: usize,
    /// Prompts under way that had no turn yet.
    under_way: VecDeque<(Key, usize)>,
    /// The last waiting sequence that had a turn.
    last_seen: Option<Key>,
}

/// The next sequence of a line. Turns are ordered as the sequences are served.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    priority: i32,
    served: u64,
    key: Key,
    line: usize,
    slot: usize,
}

impl Scheduler {
    /// The lines of clients that have credit, where they are the first in the order and others have none; with their
    /// priority.
    pub(super) fn favoured(&self, picks: &Picks) -> Option<(i32, Vec<Line>)> {
        if !self.flows.differ() {
            return None;
        }
        let mut lines = self.lines(self.is_open(picks));
        let first = lines.iter().map(|line| self.flows.get(line.flow).priority).min()?;
        lines.retain(|line| self.flows.get(line.flow).priority == first && self.flows.is_in_credit(line.flow));
        (!lines.is_empty()).then_some((first, lines))
    }

    pub(super) fn pick_prompts(&mut self, kv: &mut KvCache, picks: &mut Picks, now: u64) -> Result<()> {
        let lines = self.lines(self.is_open(picks));
        let is_open = self.pick_of(lines, kv, picks, now)?;
        self.held_back = match self.running.len() < self.config.max_num_seqs {
            false => WaitingReason::SequenceSlots,
            true if is_open && !picks.lacks_blocks => WaitingReason::StepTokens,
            true => WaitingReason::KvBlocks,
        };
        Ok(())
    }

    /// Whether waiting sequences may be let in.
    fn is_open(&self, picks: &Picks) -> bool {
        !picks.lacks_blocks && (self.running.len() < self.config.max_num_seqs || self.wants_place())
    }

    /// Picks prompts of these lines; returns whether more sequences could be let in.
    pub(super) fn pick_of(
        &mut self,
        mut lines: Vec<Line>,
        kv: &mut KvCache,
        picks: &mut Picks,
        now: u64,
    ) -> Result<bool> {
        let mut is_open = self.is_open(picks);
        let turns = lines.iter_mut().enumerate().filter_map(|(i, line)| self.turn(i, line, is_open).map(Reverse));
        let mut turns: BinaryHeap<Reverse<Turn>> = turns.collect();
        while picks.budget > 0 {
            let Some(Reverse(turn)) = turns.pop() else { break };
            // Blocks that running sequences lack, or got by preemption, are not for newcomers.
            is_open &= !picks.lacks_blocks;
            let current = self.turn(turn.line, &mut lines[turn.line], is_open);
            if current.as_ref() != Some(&turn) {
                turns.extend(current.map(Reverse));
                continue;
            }
            let Turn { priority, served, key, line, slot } = turn;
            // The flow's account does not tell: a preemption for this prompt may have given back as much.
            let is_picked = if self.sequences[slot].state == State::Running {
                lines[line].under_way.pop_front();
                let pending = self.sequences[slot].num_pending();
                let num_tokens = self.share(key, slot, pending, kv, picks, is_open);
                num_tokens > 0 && self.grow(slot, num_tokens, kv, picks, now)? == Grown::Scheduled
            } else {
                lines[line].last_seen = Some(key);
                let admission = self.admit(key, slot, kv, picks, now)?;
                is_open = admission != Admission::Closed;
                admission == Admission::Started
            };
            if is_picked {
                picks.num_prompts += 1;
                self.flows.advance(priority, served);
            }
            turns.extend(self.turn(line, &mut lines[line], is_open).map(Reverse));
        }
        self.top_up(kv, picks)?;
        Ok(is_open)
    }

    /// The flows with prompts under way and, if any may be let in, those with waiting sequences.
    fn lines(&self, is_open: bool) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        for &(key, slot) in &self.running {
            let seq = &self.sequences[slot];
            if seq.num_pending() < 2 {
                continue;
            }
            let line = lines.iter().position(|line| line.flow == seq.flow).unwrap_or_else(|| {
                lines.push(Line { flow: seq.flow, under_way: VecDeque::new(), last_seen: None });
                lines.len() - 1
            });
            lines[line].under_way.push_back((key, slot));
        }
        if is_open {
            let num_under_way = lines.len();
            for (flow, _) in self.flows.with_waiting() {
                if lines[..num_under_way].iter().all(|line| line.flow != flow) {
                    lines.push(Line { flow, under_way: VecDeque::new(), last_seen: None });
                }
            }
        }
        lines
    }

    /// The next sequence of a line.
    fn turn(&self, index: usize, line: &mut Line, is_open: bool) -> Option<Turn> {
        while line.under_way.front().is_some_and(|(_, slot)| self.sequences[*slot].state == State::Waiting) {
            // It was preempted in this step.
            line.under_way.pop_front();
        }
        let flow = self.flows.get(line.flow);
        let under_way = line.under_way.front().copied();
        let from = line.last_seen.map_or(Bound::Unbounded, Bound::Excluded);
        let waiting = if is_open { flow.waiting.range((from, Bound::Unbounded)).next() } else { None };
        let (key, slot) = under_way.into_iter().chain(waiting.map(|(key, slot)| (*key, *slot))).min()?;
        Some(Turn { priority: flow.priority, served: flow.served, key, line: index, slot })
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
        if kv.config().is_bidirectional() {
            return if num_tokens < pending { 0 } else { num_tokens };
        }
        // A prompt whose logits are wanted is held back by these, and leaves most of a step to others.
        let may_be_partial = self.sequences[slot].wants_prompt_logits() || self.has_room_for_partial(is_long, picks);
        if num_tokens < pending && !may_be_partial {
            return 0;
        }
        if is_long && num_tokens > picks.budget.div_ceil(2) {
            num_tokens = num_tokens.min(picks.budget - self.kept_for_short(key, slot, kv, picks, is_open));
        }
        if num_tokens < pending && !may_be_partial { 0 } else { num_tokens }
    }

    fn has_room_for_partial(&self, is_long: bool, picks: &Picks) -> bool {
        picks.num_partial < self.config.max_num_partial_prefills
            && (!is_long || picks.num_long_partial < self.config.max_long_partial_prefills)
    }

    /// Tokens that a long prompt leaves to short ones of its priority behind it: what these could use, up to half of
    /// the step's. An estimate, what is not used after all comes back with `top_up`.
    fn kept_for_short(&mut self, key: Key, slot: usize, kv: &KvCache, picks: &mut Picks, is_open: bool) -> usize {
        let (half, threshold) = (picks.budget / 2, self.config.long_prefill_token_threshold);
        let mut wanted = 0;
        let flow = self.sequences[slot].flow;
        for (other, slot) in &self.running {
            if other.priority > key.priority || wanted >= half {
                break;
            }
            let seq = &self.sequences[*slot];
            let is_behind = other.priority == key.priority && (seq.flow != flow || *other > key);
            let pending = seq.num_pending();
            wanted += if is_behind && (2..=threshold).contains(&pending) { pending } else { 0 };
        }
        let mut places = self.config.max_num_seqs - self.running.len();
        if !is_open || picks.lacks_blocks {
            places = 0;
        }
        // Its own flow's come after those of others, which were served more and yet have nothing in this step.
        let behind = self.flows.get(flow).waiting.range((Bound::Excluded(key), Bound::Unbounded));
        let others = self.flows.with_waiting().filter(|(id, other)| *id != flow && other.priority == key.priority);
        for (_, slot) in others.flat_map(|(_, other)| &other.waiting).chain(behind) {
            if wanted >= half || places == 0 {
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
            if num_tokens > 0 && self.allocate(slot, num_tokens, 0..0, kv, picks)? {
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
        let is_full = self.running.len() >= self.config.max_num_seqs;
        let gives_way = if is_full { self.place_for(self.sequences[slot].flow) } else { None };
        if is_full && gives_way.is_none() {
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
            seq.passed = Some((self.last_step + 1, WaitingReason::PartialPrefills));
            return Ok(Admission::Passed);
        }
        let len = seq.tokens.len();
        kv.extend_chain(&mut seq.chain, &seq.tokens);
        let is_computed = !wants_all && self.is_computed_by_others(slot, kv, picks);
        let seq = &mut self.sequences[slot];
        let hit = if wants_all || is_computed { PrefixHit::default() } else { look_up(seq, kv) };
        let (start, held, drafted) = (hit.num_tokens, hit.num_held, hit.num_drafted);
        let num_tokens = if is_computed { 0 } else { self.share(key, slot, len - start, kv, picks, true) };
        if num_tokens == 0 {
            picks.looks_left -= usize::from(len > threshold && picks.looks_left > 0);
            let reason = match (is_computed, kv.config().is_bidirectional()) {
                (true, _) => WaitingReason::SharedPrefix,
                (false, true) => WaitingReason::StepTokens,
                (false, false) => WaitingReason::PartialPrefills,
            };
            self.sequences[slot].passed = Some((self.last_step + 1, reason));
            return Ok(Admission::Passed);
        }
        // Running sequences need blocks soon: without some to spare the newcomer would be preempted at once.
        let keep_free = if self.running.is_empty() { &[][..] } else { &picks.keep_free };
        let demand = Demand { write: start..start + num_tokens, reserve: len, keep_free, keep_states: 0..0 };
        let seq = &mut self.sequences[slot];
        let Some(plan) = kv.plan(&seq.blocks, hit, &demand) else {
            // A failure counts only where no more blocks are kept free than an admission needs.
            if picks.keep_free == self.watermark {
                self.refused = Some(attempt);
            }
            return Ok(Admission::Closed);
        };
        if let Some(running) = gives_way {
            drop(plan);
            self.preempt(running, kv, picks);
            return self.admit(key, slot, kv, picks, now);
        }
        kv.commit(plan, &mut seq.blocks, &mut Vec::new())?;
        let drafted = if self.config.draft_lags { drafted } else { start };
        self.start(key, slot, (start, held, drafted), kv);
        self.take(slot, num_tokens, picks, now);
        Ok(Admission::Started)
    }

    /// Whether the steps at work compute at least half of what a waiting sequence could compute in this one.
    fn is_computed_by_others(&self, slot: usize, kv: &KvCache, picks: &Picks) -> bool {
        let seq = &self.sequences[slot];
        picks.computing.iter().map(|slot| &self.sequences[*slot]).any(|other| {
            let computing = other.num_computed..other.num_scheduled;
            let snapshots = other.snapshots_in(computing.clone(), kv.config());
            let shared = kv.tokens_shared_soon(&seq.chain, seq.tokens.len(), &other.chain, computing, &snapshots);
            // If both share a prefix, this sequence would begin where the other one did.
            let alone = seq.tokens.len().saturating_sub(other.num_computed).min(picks.budget);
            shared > 0 && shared >= alone.div_ceil(2)
        })
    }

    /// A waiting sequence with blocks begins to run. Of its tokens `num_cached` were found in the prefix cache, and the
    /// keys and values of `num_held` were there, and of the first ones `num_drafted` those of the draft model.
    fn start(&mut self, key: Key, slot: usize, found: (usize, usize, usize), kv: &mut KvCache) {
        let (num_cached, num_held, num_drafted) = found;
        let seq = &mut self.sequences[slot];
        if seq.scheduled_at.is_none() {
            seq.num_cached_tokens = num_cached;
            seq.prefix_miss = Some(match seq.wants_prompt_logits() {
                true => PrefixMiss::AllPositions,
                false => kv.count_prefix_query(&seq.chain, seq.tokens.len(), num_cached, num_held),
            });
        }
        let block_size = kv.config().block_size;
        seq.last_end = (seq.tokens.len() - 1) / block_size * block_size;
        seq.shared_end = num_held;
        seq.num_computed = num_cached;
        seq.num_draft_computed = num_drafted;
        seq.num_scheduled = num_cached;
        seq.state = State::Running;
        let flow = seq.flow;
        self.flows.stop_waiting(flow, key);
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
