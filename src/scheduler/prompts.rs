//! Decides which prompts advance in a step, and which waiting sequences are admitted.
//!
//! Running and waiting prompts share one order: by priority, then by the service of their client (`flows`), then by
//! arrival. Each in turn gets the rest of the step's tokens, and is charged for them before the next one is chosen,
//! with these exceptions:
//! - A *long* prompt (more than `long_prefill_token_threshold` tokens to compute) leaves up to half of them to later
//!   short prompts of its own priority. So short prompts do not wait for long ones. The first long prompt in the order
//!   still gets at least half of every step's prompt tokens.
//! - A step leaves at most `max_num_partial_prefills` prompts partially computed, of which at most
//!   `max_long_partial_prefills` are long. Prompts that it could not finish let later ones pass.
//! - A step with prompt tokens of clients with credit (`flows`) excludes those without credit at the same or a later
//!   priority. That holds for their prompts and their decodes. So the step takes only as long as the favoured prompts
//!   need.
//! - A waiting sequence lets later ones pass if another sequence is computing its prompt right now. It finds the prompt
//!   in the prefix cache one step later. It does so only if that saves at least half of what it would compute itself.
//!   Delaying a step for a small part of a prompt would gain nothing.
//! - A step ends before an image whose tokens attend to each other, if it has no room for the whole image.
//! - A prompt of a bidirectional model is computed as a whole. One that does not fit in the rest of a step lets later
//!   ones pass. In a later step it is the first of its client, and that step has room for any prompt.
//!
//! A sequence whose prefix is in host memory waits until it was copied to the device, and lets later ones pass.
//!
//! A sequence that lacks a slot within `max_num_seqs`, or blocks, lets no other pass: free resources go to the first in
//! the order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Bound;

use super::Scheduler;
use super::pick::{Grown, Picks};
use super::reason::WaitingReason;
use super::sequence::{Key, Sequence, State};
use crate::Result;
use crate::kv_cache::{Demand, KvCache, PrefixHit, PrefixMiss};

/// The number of times that contents are loaded for a waiting sequence. If they were evicted again before it started,
/// it computes them.
const MAX_LOADS: usize = 2;

/// The most contents that are on their way to the device while sequences run. Contents of the blocks that they take go
/// to the host first, and the next step waits for these copies.
pub(super) const MAX_LOADS_BESIDE: usize = 32;

/// An admission that failed for lack of blocks. It is not tried again unless the cache has freed blocks or gained
/// content to share, or the step has room for fewer tokens.
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

/// The result of trying to admit a waiting sequence.
#[derive(Debug, PartialEq, Eq)]
enum Admission {
    Started,
    /// It keeps waiting, and later sequences may be admitted.
    Passed,
    /// It keeps waiting, and so do all later sequences.
    Closed,
}

/// Sequences of one flow that may get prompt tokens in a step.
#[derive(Debug)]
pub(super) struct Line {
    flow: usize,
    /// Running prompts that had no turn yet.
    under_way: VecDeque<(Key, usize)>,
    /// The last waiting sequence that had a turn.
    last_seen: Option<Key>,
}

/// The next sequence of a line. Turns are sorted in scheduling order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    priority: i32,
    served: u64,
    key: Key,
    line: usize,
    slot: usize,
}

/// The part of a prompt that no step holds yet.
#[derive(Debug, Clone, Copy)]
struct Unscheduled {
    key: Key,
    slot: usize,
    /// Its first position.
    start: usize,
    /// Its tokens.
    pending: usize,
}

impl Scheduler {
    /// Returns the lines of clients with credit, and their priority, if they come first in the order and other clients
    /// have no credit.
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

    /// True if waiting sequences may be admitted.
    fn is_open(&self, picks: &Picks) -> bool {
        !picks.lacks_blocks && (self.running.len() < self.config.max_num_seqs || self.wants_place())
    }

    /// Picks prompts of these lines; returns true if more sequences could be admitted.
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
            // Blocks that running sequences lack, or got by preemption, are not for new sequences.
            is_open &= !picks.lacks_blocks;
            let current = self.turn(turn.line, &mut lines[turn.line], is_open);
            if current.as_ref() != Some(&turn) {
                turns.extend(current.map(Reverse));
                continue;
            }
            let Turn { priority, served, key, line, slot } = turn;
            // The flow's service does not tell: a preemption for this prompt may have refunded as much.
            let is_picked = if self.sequences[slot].state == State::Running {
                lines[line].under_way.pop_front();
                let seq = &self.sequences[slot];
                let prompt = Unscheduled { key, slot, start: seq.num_scheduled, pending: seq.num_pending() };
                let num_tokens = self.share(prompt, kv, picks, is_open);
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

    /// Returns the flows with running prompts and, if any may be admitted, those with waiting sequences.
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

    /// Returns the next sequence of a line.
    fn turn(&self, index: usize, line: &mut Line, is_open: bool) -> Option<Turn> {
        while line.under_way.front().is_some_and(|(_, slot)| self.sequences[*slot].state == State::Waiting) {
            // The sequence was preempted in this step.
            line.under_way.pop_front();
        }
        let flow = self.flows.get(line.flow);
        let under_way = line.under_way.front().copied();
        let from = line.last_seen.map_or(Bound::Unbounded, Bound::Excluded);
        let waiting = if is_open { flow.waiting.range((from, Bound::Unbounded)).next() } else { None };
        let (key, slot) = under_way.into_iter().chain(waiting.map(|(key, slot)| (*key, *slot))).min()?;
        Some(Turn { priority: flow.priority, served: flow.served, key, line: index, slot })
    }

    /// Returns how many of a prompt's tokens go into this step; 0 if it has to wait.
    fn share(&mut self, prompt: Unscheduled, kv: &KvCache, picks: &mut Picks, is_open: bool) -> usize {
        let Unscheduled { key, slot, start, pending } = prompt;
        let is_long = pending > self.config.long_prefill_token_threshold;
        let mut num_tokens = self.sequences[slot].uncut(start, pending.min(picks.budget));
        if kv.config().is_bidirectional() {
            return if num_tokens < pending { 0 } else { num_tokens };
        }
        let may_be_partial = self.has_room_for_partial(is_long, picks);
        if num_tokens < pending && !may_be_partial {
            return 0;
        }
        if is_long && num_tokens > picks.budget.div_ceil(2) {
            let left = picks.budget - self.kept_for_short(key, slot, kv, picks, is_open);
            // Short prompts do not hold up an image that needs more of the step.
            match self.sequences[slot].uncut(start, num_tokens.min(left)) {
                0 => {}
                some => num_tokens = some,
            }
        }
        if num_tokens < pending && !may_be_partial { 0 } else { num_tokens }
    }

    fn has_room_for_partial(&self, is_long: bool, picks: &Picks) -> bool {
        picks.num_partial < self.config.max_num_partial_prefills
            && (!is_long || picks.num_long_partial < self.config.max_long_partial_prefills)
    }

    /// Returns the tokens that a long prompt leaves to later short ones of its priority: what these could use, up to
    /// half of the step's. It is an estimate; `top_up` returns what is not used.
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
        // Sequences of other flows come first: they were served more and have nothing in this step yet.
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

    /// Gives the remaining tokens to the prompts of the step, in order.
    fn top_up(&mut self, kv: &mut KvCache, picks: &mut Picks) -> Result<()> {
        for i in 0..picks.entries.len() {
            let slot = picks.entries[i].slot;
            let seq = &self.sequences[slot];
            let num_tokens = seq.uncut(seq.num_scheduled, seq.num_pending().min(picks.budget));
            if num_tokens > 0 && self.allocate(slot, num_tokens, 0..0, kv, picks)? {
                let seq = &mut self.sequences[slot];
                seq.num_scheduled += num_tokens;
                picks.budget -= num_tokens;
                picks.entries[i].num_tokens += num_tokens;
            }
        }
        Ok(())
    }

    /// Starts a waiting sequence if there are a slot, room in the step, and blocks for all its tokens.
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
        if seq.uncached > threshold && !has_room_for_long && picks.looks_left == 0 {
            seq.passed = Some((self.last_step + 1, WaitingReason::PartialPrefills));
            return Ok(Admission::Passed);
        }
        let len = seq.tokens.len();
        kv.extend_chain(&mut seq.chain, &seq.tokens);
        let is_computed = !wants_all && self.is_computed_by_others(slot, kv, picks);
        let seq = &mut self.sequences[slot];
        let hit = if wants_all || is_computed { PrefixHit::default() } else { look_up(seq, kv) };
        let (start, held, drafted) = (hit.num_tokens, hit.num_held, hit.num_drafted);
        let (num_loads, num_below) = (hit.num_loads(), hit.num_below);
        let most_loads = if self.running.is_empty() { usize::MAX } else { MAX_LOADS_BESIDE };
        if num_loads > 0 && !kv.may_begin_loads(&hit, most_loads) {
            seq.passed = Some((self.last_step + 1, WaitingReason::KvOffload));
            return Ok(Admission::Passed);
        }
        let prompt = Unscheduled { key, slot, start, pending: len - start };
        let num_tokens = if is_computed { 0 } else { self.share(prompt, kv, picks, true) };
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
        if num_loads > 0 && picks.copies.iter().any(|(_, copy)| !kv.is_owned(copy.group as usize, copy.src)) {
            // A step copies blocks when it begins, but loads may begin before it, and may be given such a block.
            self.sequences[slot].passed = Some((self.last_step + 1, WaitingReason::KvOffload));
            return Ok(Admission::Passed);
        }
        // Running sequences need blocks soon. Without a reserve the new sequence would be preempted at once.
        let keep_free = if self.running.is_empty() { &[][..] } else { &picks.keep_free };
        let demand = Demand { write: start..start + num_tokens, reserve: len, keep_free, keep_states: 0..0 };
        let seq = &mut self.sequences[slot];
        let Some(plan) = kv.plan(&seq.blocks, hit, &demand) else {
            // A failure is only remembered if no more blocks are reserved than an admission needs.
            if picks.keep_free == self.watermark {
                self.refused = Some(attempt);
            }
            return Ok(Admission::Closed);
        };
        if num_loads > 0 {
            let num_begun = kv.begin_loads(plan, &seq.chain, &seq.tokens, most_loads)?;
            let num_left = seq.loads_left.unwrap_or(MAX_LOADS * num_loads);
            seq.loads_left = Some(num_left.saturating_sub(num_begun));
            seq.passed = Some((self.last_step + 1, WaitingReason::KvOffload));
            return Ok(Admission::Passed);
        }
        if let Some(running) = gives_way {
            drop(plan);
            self.preempt(running, kv, picks);
            return self.admit(key, slot, kv, picks, now);
        }
        kv.commit(plan, &mut seq.blocks, &mut Vec::new())?;
        let drafted = if self.config.draft_lags { drafted } else { start };
        if self.sequences[slot].scheduled_at.is_none() {
            kv.count_memory_hit(num_below);
        }
        self.start(key, slot, (start, held, drafted), kv);
        self.take(slot, num_tokens, picks, now);
        Ok(Admission::Started)
    }

    /// True if the current steps compute at least half of what a waiting sequence could compute in this one.
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

    /// Starts a waiting sequence that has blocks. The prefix cache had `num_cached` of its tokens, the keys and values
    /// of `num_held` tokens, and those of the draft model for the first `num_drafted`.
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
        seq.loads_left = None;
        seq.num_computed = num_cached;
        seq.num_draft_computed = num_drafted;
        seq.num_scheduled = num_cached;
        seq.state = State::Running;
        let flow = seq.flow;
        self.flows.stop_waiting(flow, key);
        self.insert_running(key, slot);
    }
}

/// Looks up the beginning of a waiting sequence in the prefix cache.
fn look_up(seq: &mut Sequence, kv: &KvCache) -> PrefixHit {
    kv.extend_chain(&mut seq.chain, &seq.tokens);
    let hit = match seq.loads_left != Some(0) {
        true => kv.find_prefix(&seq.chain, seq.tokens.len()),
        false => kv.find_on_device(&seq.chain, seq.tokens.len()),
    };
    seq.uncached = seq.tokens.len() - hit.num_tokens;
    hit
}
