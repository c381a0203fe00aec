//! The pool of recurrent states. A slot holds the state of all layers that have one, after some position of a sequence.
//!
//! A running sequence owns one or two slots (`StateConfig::slots_per_seq`), which its steps write in turn.
//!
//! A snapshot is a slot with the state at the end of a block, and it has the hash of that block. Once the step that
//! wrote it is committed, a snapshot has no owner. It stays until its slot is needed; the least recently used snapshot
//! goes first. So snapshots are to the pool of slots as cached blocks are to a group's pool.
//!
//! A sequence that begins with a snapshot owns it until its first step is committed. Until then nothing overwrites it,
//! so the step can be repeated.
//!
//! A state cannot be cut back, so a step with drafts saves the state before each of them. The sequence owns these slots
//! until the number of accepted drafts is known. Then the state after those becomes the sequence's own.

use std::ops::Range;

use hashbrown::HashSet;

use super::block_table::SeqBlocks;
use super::miss::Evicted;
use super::offload::Offload;
use super::pool::Pool;
use super::seq_states::{PendingSnapshot, SeqStates, StateAt};
use super::{BlockHash, BlockId, HashChain, KvCache};
use crate::{Error, Result};
use rocmforge_core::config::StateConfig;

#[derive(Debug)]
pub(super) struct States {
    pub(super) config: StateConfig,
    pub(super) pool: Pool,
    pub(super) evicted: Evicted,
    /// Slots of rolling snapshots whose sequences may still replace them.
    pub(super) rolling: HashSet<BlockId>,
}

/// A snapshot that the next step of a sequence should take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// The number of tokens before the state: whole blocks.
    pub position: usize,
    /// True if it replaces the last rolling snapshot, unless another sequence has used that.
    pub is_rolling: bool,
}

impl States {
    pub(super) fn new(config: StateConfig) -> Self {
        Self { config, pool: Pool::new(config.num_slots), evicted: Evicted::default(), rolling: HashSet::new() }
    }

    pub(super) fn get(&self, name: &BlockHash) -> Option<BlockId> {
        self.pool.index.get(name)
    }

    /// Returns the number of slots that a sequence lacks before it can be part of the next step.
    pub(super) fn lacking(&self, seq: &SeqStates) -> usize {
        self.config.slots_per_seq.saturating_sub(seq.own.len())
    }

    pub(super) fn allocate(&mut self, now: u64, offload: &mut Option<Offload>) -> Result<BlockId> {
        let overcommitted = || Error::internal("more state slots were promised than exist");
        let (slot, forgotten) = self.pool.allocate(now).ok_or_else(overcommitted)?;
        self.rolling.remove(&slot);
        let evicted = forgotten.filter(|name| self.pool.index.get(name).is_none());
        if let Some(name) = &evicted {
            self.evicted.insert(name);
        }
        if let Some(offload) = offload {
            offload.taken_state(slot, evicted);
        }
        Ok(slot)
    }

    /// Indexes the snapshot of a committed step. If another slot has the same state, that slot is marked as just used.
    pub(super) fn name(&mut self, slot: BlockId, name: BlockHash, now: u64) -> Result<()> {
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

    /// Releases all states before drafts.
    fn release_kept(&mut self, seq: &mut SeqStates, now: u64) -> Result<()> {
        seq.kept.drain(..).try_for_each(|state| self.pool.release(state.slot, now))
    }

    /// Releases the snapshots that a step was to take after `position`.
    fn release_snapshots(&mut self, seq: &mut SeqStates, position: usize, now: u64) -> Result<()> {
        let kept = seq.snapshots.partition_point(|snapshot| snapshot.at.position <= position);
        seq.snapshots.drain(kept..).try_for_each(|snapshot| self.pool.release(snapshot.at.slot, now))
    }
}

impl KvCache {
    /// Prepares the states of a step of `seq` that is about to be issued and computes these positions. Chooses the slot
    /// for the step's last state. Allocates slots for `snapshots` (by increasing position), last ones first, while more
    /// than `keep_free` are left. Snapshots that are cached already are not taken again.
    ///
    /// # Errors
    /// `Internal` for a sequence without a slot, or without a state before these positions.
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
            // Tokens that a step in flight samples have no hash yet.
            let name = (position / block_size).checked_sub(1).and_then(|last| chain.hashes().get(last));
            if let Some(held) = name.and_then(|name| states.get(name)) {
                states.refresh(held, now)?;
            } else if states.pool.num_available() > keep_free {
                let at = StateAt { position, slot: states.allocate(now, &mut self.offload)? };
                seq.states.snapshots.insert(first, PendingSnapshot { at, is_rolling });
            }
            self.version += 1;
        }
        Ok(())
    }

    /// Reverts the states of the newest step of `seq`, which began at position `start`.
    ///
    /// # Errors
    /// `Internal` if a slot has no owner.
    pub fn take_back_step(&mut self, seq: &mut SeqBlocks, start: usize) -> Result<()> {
        let Some(states) = &mut self.states else { return Ok(()) };
        self.version += 1;
        self.num_gains += 1;
        let line = &mut seq.states.line;
        line.truncate(line.partition_point(|state| state.position <= start));
        states.release_kept(&mut seq.states, self.now)?;
        states.release_snapshots(&mut seq.states, start, self.now)
    }

    /// Notes that the newest step of `seq` was committed and that only the first `num_tokens` tokens of the sequence
    /// count. The state after these becomes the sequence's own.
    ///
    /// # Errors
    /// `Internal` if that state was not saved.
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
            // The slot of the step's end is released together with those of the other drafts.
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

    /// Notes that the steps that computed `seq` up to `num_computed` tokens were committed. Their snapshots can be hit
    /// from now on, and a slot that only the first step read is released.
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
            if is_rolling {
                states.rolling.insert(at.slot);
                if let Some((name, slot)) = rolling.replace((name, at.slot)) {
                    states.rolling.remove(&slot);
                    states.pool.forget_unused(slot, &name);
                }
            }
        }
        Ok(())
    }

    /// Returns the states of a fork of `seq`, which must not be in a step in flight. The shared state stops being
    /// either one's own slot. Each reads it in its next step, and the last to do so releases it.
    pub(super) fn fork_states(&mut self, seq: &mut SeqStates) -> Result<SeqStates> {
        let Some(states) = &mut self.states else { return Ok(SeqStates::default()) };
        let Some(shared) = seq.line.back().copied() else { return Ok(SeqStates::default()) };
        states.pool.add_owner(shared.slot)?;
        seq.own.retain(|slot| *slot != shared.slot);
        Ok(SeqStates { line: [shared].into(), ..SeqStates::default() })
    }

    /// Returns the state slots that are available for sequences or snapshots.
    pub fn slots_available(&self) -> usize {
        self.states.as_ref().map_or(usize::MAX, |states| states.pool.num_available())
    }

    /// Returns the number of slots that `seq` lacks before it can be part of a step.
    pub fn slots_lacking(&self, seq: &SeqBlocks) -> usize {
        self.states.as_ref().map_or(0, |states| states.lacking(&seq.states))
    }
}
