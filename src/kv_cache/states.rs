//! The pool of recurrent states: a slot holds the state of all layers that have one, after some position of a sequence.
//!
//! A running sequence owns one or two slots (`StateConfig::slots_per_seq`), which its steps write in turn. A snapshot
//! is a slot with the state at the end of a block. It is named as that block is, and once the step that wrote it was
//! committed nobody owns it: it stays until its slot is needed, the one that was used least recently going first. So it
//! is to the pool of slots what a cached block is to a group's. A sequence that begins with a snapshot owns it until
//! its first step was committed: until then nobody writes it, and the step can be repeated.
//!
//! A state cannot be cut back, so a step that computes drafts keeps the state before each of them, in slots that it
//! owns until it is known how many drafts are right. Then the state behind these is the sequence's own.

use std::ops::Range;

use super::block_table::SeqBlocks;
use super::miss::Evicted;
use super::pool::Pool;
use super::seq_states::{PendingSnapshot, SeqStates, StateAt};
use super::{BlockHash, BlockId, HashChain, KvCache};
use crate::config::StateConfig;
use crate::{Error, Result};

#[derive(Debug)]
pub(super) struct States {
    pub(super) config: StateConfig,
    pub(super) pool: Pool,
    pub(super) evicted: Evicted,
}

/// A snapshot that the next step of a sequence is to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// Its tokens before the state: whole blocks.
    pub position: usize,
    /// Whether it takes the place of the last one of its kind, unless somebody has used that.
    pub is_rolling: bool,
}

impl States {
    pub(super) fn new(config: StateConfig) -> Self {
        Self { config, pool: Pool::new(config.num_slots), evicted: Evicted::default() }
    }

    pub(super) fn get(&self, name: &BlockHash) -> Option<BlockId> {
        self.pool.index.get(name)
    }

    /// Slots that a sequence lacks which is to be part of the next step.
    pub(super) fn lacking(&self, seq: &SeqStates) -> usize {
        self.config.slots_per_seq.saturating_sub(seq.own.len())
    }

    pub(super) fn allocate(&mut self, now: u64) -> Result<BlockId> {
        let overcommitted = || Error::internal("more slots of states were promised than there are");
        let (slot, forgotten) = self.pool.allocate(now).ok_or_else(overcommitted)?;
        if let Some(name) = forgotten.filter(|name| self.pool.index.get(name).is_none()) {
            self.evicted.insert(&name);
        }
        Ok(slot)
    }

    /// Names what a committed step wrote. Where another slot has the same state, that one counts as used just now.
    fn name(&mut self, slot: BlockId, name: BlockHash, now: u64) -> Result<()> {
        match self.get(&name) {
            None => {
                self.pool.set_hash(slot, name)?;
            }
            Some(held) => self.refresh(held, now)?,
        }
        self.pool.release(slot, now)
    }

    fn refresh(&mut self, slot: BlockId, now: u64) -> Result<()> {
        self.pool.add_owner(slot)?;
        self.pool.release(slot, now)
    }

    /// Gives up all states before drafts.
    fn release_kept(&mut self, seq: &mut SeqStates, now: u64) -> Result<()> {
        seq.kept.drain(..).try_for_each(|state| self.pool.release(state.slot, now))
    }

    /// Gives up the snapshots that a step was to take behind `position`.
    fn release_snapshots(&mut self, seq: &mut SeqStates, position: usize, now: u64) -> Result<()> {
        let kept = seq.snapshots.partition_point(|snapshot| snapshot.at.position <= position);
        seq.snapshots.drain(kept..).try_for_each(|snapshot| self.pool.release(snapshot.at.slot, now))
    }
}

impl KvCache {
    /// The state part of a step of `seq` that is about to be given out and computes these positions: says which slot it
    /// leaves its last state in, and gives it slots for `snapshots` (by increasing position), the last ones first,
    /// while more than `keep_free` are left. What is in the cache already is not taken again.
    ///
    /// # Errors
    /// `Internal` for a sequence that was given no slot, or whose state before these positions nobody has.
    pub fn begin_step(
        &mut self,
        seq: &mut SeqBlocks,
        chain: &HashChain,
        positions: Range<usize>,
        snapshots: &[Snapshot],
        keep_free: usize,
    ) -> Result<()> {
        let (now, block_size) = (self.now, self.config.block_size);
        let Some(states) = &mut self.states else { return Ok(()) };
        let before = seq.states.line.back().map_or(0, |state| state.position);
        let slot = seq.states.next_slot().filter(|_| before == positions.start);
        let slot = slot.ok_or_else(|| Error::internal(format!("no state for a step of positions {positions:?}")))?;
        seq.states.line.push_back(StateAt { position: positions.end, slot });
        let first = seq.states.snapshots.len();
        for &Snapshot { position, is_rolling } in snapshots.iter().rev() {
            // Tokens that a step in flight samples have no name yet.
            let name = (position / block_size).checked_sub(1).and_then(|last| chain.hashes().get(last));
            if let Some(held) = name.and_then(|name| states.get(name)) {
                states.refresh(held, now)?;
            } else if states.pool.num_available() > keep_free {
                let at = StateAt { position, slot: states.allocate(now)? };
                seq.states.snapshots.insert(first, PendingSnapshot { at, is_rolling });
            }
            self.version += 1;
        }
        Ok(())
    }

    /// Takes back the state part of the newest step of `seq`, which began at position `start`.
    ///
    /// # Errors
    /// `Internal` when a slot has no owner.
    pub fn take_back_step(&mut self, seq: &mut SeqBlocks, start: usize) -> Result<()> {
        let Some(states) = &mut self.states else { return Ok(()) };
        self.version += 1;
        self.num_gains += 1;
        let line = &mut seq.states.line;
        line.truncate(line.partition_point(|state| state.position <= start));
        states.release_kept(&mut seq.states, self.now)?;
        states.release_snapshots(&mut seq.states, start, self.now)
    }

    /// The newest step of `seq` was committed, of whose tokens the first `num_tokens` of the sequence count: the state
    /// after these is the sequence's own from now on.
    ///
    /// # Errors
    /// `Internal` where that state was not kept.
    pub(super) fn cut_states(&mut self, seq: &mut SeqBlocks, num_tokens: usize) -> Result<()> {
        let Some(states) = &mut self.states else { return Ok(()) };
        self.version += 1;
        self.num_gains += 1;
        let SeqStates { own, line, kept, .. } = &mut seq.states;
        if let Some(last) = line.back().copied().filter(|last| last.position > num_tokens) {
            let kept = kept.iter_mut().find(|state| state.position == num_tokens);
            let ended_in = own.iter_mut().find(|slot| **slot == last.slot);
            let (Some(kept), Some(ended_in)) = (kept, ended_in) else {
                return Err(Error::internal(format!("no state was kept after {num_tokens} tokens")));
            };
            // The slot that the step ended in goes with those of the other drafts.
            std::mem::swap(ended_in, &mut kept.slot);
            let begun_with = line.drain(..).next().filter(|first| first.position < num_tokens);
            line.push_back(StateAt { position: num_tokens, slot: *ended_in });
            let is_borrowed = |first: &StateAt| first.slot != last.slot && !own.contains(&first.slot);
            if let Some(first) = begun_with.filter(is_borrowed) {
                states.pool.release(first.slot, self.now)?;
            }
        }
        states.release_kept(&mut seq.states, self.now)?;
        states.release_snapshots(&mut seq.states, num_tokens, self.now)
    }

    /// The steps that computed `seq` up to `num_computed` tokens were committed: the snapshots that they took can be
    /// hit from now on, and a slot that only the first of them read is given back.
    pub(super) fn settle_states(&mut self, seq: &mut SeqBlocks, chain: &HashChain, num_computed: usize) -> Result<()> {
        let (now, block_size) = (self.now, self.config.block_size);
        let Some(states) = &mut self.states else { return Ok(()) };
        let SeqStates { own, line, snapshots, rolling, .. } = &mut seq.states;
        let num_passed = line.partition_point(|state| state.position <= num_computed).saturating_sub(1);
        for passed in line.drain(..num_passed) {
            if !own.contains(&passed.slot) {
                states.pool.release(passed.slot, now)?;
                self.version += 1;
                self.num_gains += 1;
            }
        }
        let num_written = snapshots.partition_point(|snapshot| snapshot.at.position <= num_computed);
        for PendingSnapshot { at, is_rolling } in snapshots.drain(..num_written) {
            self.version += 1;
            self.num_gains += 1;
            let last = at.position / block_size - 1;
            let name = chain.hashes().get(last);
            let name = *name.ok_or_else(|| Error::internal(format!("a snapshot at {} has no name", at.position)))?;
            states.name(at.slot, name, now)?;
            if is_rolling && let Some((name, slot)) = rolling.replace((name, at.slot)) {
                states.pool.forget_unused(slot, &name);
            }
        }
        Ok(())
    }

    /// The states of a fork of `seq`, of which no step is in flight. The state that both go on from belongs to neither
    /// from now on: each reads it in its next step, and the last to do so gives it back.
    pub(super) fn fork_states(&mut self, seq: &mut SeqStates) -> Result<SeqStates> {
        let Some(states) = &mut self.states else { return Ok(SeqStates::default()) };
        let Some(shared) = seq.line.back().copied() else { return Ok(SeqStates::default()) };
        states.pool.add_owner(shared.slot)?;
        seq.own.retain(|slot| *slot != shared.slot);
        Ok(SeqStates { line: [shared].into(), ..SeqStates::default() })
    }

    /// Slots of states that sequences, or snapshots, can be given.
    pub fn slots_available(&self) -> usize {
        self.states.as_ref().map_or(usize::MAX, |states| states.pool.num_available())
    }

    /// Slots that `seq` lacks before it can be part of a step.
    pub fn slots_lacking(&self, seq: &SeqBlocks) -> usize {
        self.states.as_ref().map_or(0, |states| states.lacking(&seq.states))
    }
}
