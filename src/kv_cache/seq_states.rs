//! The recurrent states of one sequence: its slots, and the position of the state in each slot.

use std::collections::VecDeque;
use std::ops::Range;

use super::{BlockHash, BlockId};

/// A slot with the state after the first `position` tokens of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StateAt {
    pub(super) position: usize,
    pub(super) slot: BlockId,
}

/// A snapshot that a step in flight writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PendingSnapshot {
    pub(super) at: StateAt,
    /// True if it replaces the sequence's last rolling snapshot.
    pub(super) is_rolling: bool,
}

/// The sequence counts as one owner of each slot that is listed here, however often the slot is listed.
#[derive(Debug, Default)]
pub(super) struct SeqStates {
    /// Slots that the sequence's steps write in turn.
    pub(super) own: Vec<BlockId>,
    /// States at the beginnings and ends of the steps in flight. The first belongs to the computed tokens, the last to
    /// the scheduled ones. Empty if nothing was scheduled. If the first slot is not in `own`, it is a snapshot that the
    /// sequence hit, or the state that it was forked with.
    pub(super) line: VecDeque<StateAt>,
    /// Snapshots that the steps in flight write, ordered by position.
    pub(super) snapshots: Vec<PendingSnapshot>,
    /// States before the drafts of the step in flight, ordered by position, each in a slot besides `own`. Once the
    /// number of accepted drafts is known, the state after the last of them stays, and the other slots are released.
    pub(super) kept: Vec<StateAt>,
    /// The last rolling snapshot of the sequence. It has no owner, so others may hit or evict it.
    pub(super) rolling: Option<(BlockHash, BlockId)>,
}

impl SeqStates {
    /// Returns the slots that it owns.
    pub(super) fn held(&self) -> impl Iterator<Item = BlockId> {
        let borrowed = self.line.iter().map(|state| state.slot).filter(|slot| !self.own.contains(slot));
        let pending = self.snapshots.iter().map(|snapshot| snapshot.at.slot);
        let kept = self.kept.iter().map(|state| state.slot);
        self.own.iter().copied().chain(borrowed).chain(pending).chain(kept)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held().next().is_none()
    }

    pub(super) fn slot_at(&self, position: usize) -> Option<BlockId> {
        self.line.iter().find(|state| state.position == position).map(|state| state.slot)
    }

    /// Returns the states that a step of these positions writes besides its last one: snapshots, then those before
    /// drafts. Each comes with the number of the step's tokens before it.
    pub(super) fn written_by(&self, step: Range<usize>) -> impl Iterator<Item = (usize, BlockId)> {
        let (start, end) = (step.start, step.end);
        let all = self.snapshots.iter().map(|snapshot| snapshot.at).chain(self.kept.iter().copied());
        let of_step = all.filter(move |at| at.position > start && at.position <= end);
        of_step.map(move |at| (at.position - start, at.slot))
    }

    /// Returns the slot for the next step's last state. If there are two, it is not the one that the step reads.
    pub(super) fn next_slot(&self) -> Option<BlockId> {
        let read = self.line.back().map(|state| state.slot);
        self.own.iter().copied().find(|slot| Some(*slot) != read).or(self.own.first().copied())
    }
}
