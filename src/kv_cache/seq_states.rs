//! The recurrent states of one sequence: the slots that it holds, and the position whose state each has.

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
    /// It takes the place of the sequence's last one of this kind.
    pub(super) is_rolling: bool,
}

/// Each slot that is named here counts the sequence as an owner once, however often it is named.
#[derive(Debug, Default)]
pub(super) struct SeqStates {
    /// Slots that the sequence's steps write in turn.
    pub(super) own: Vec<BlockId>,
    /// States that the steps in flight begin with and end in: the first is that of the computed tokens, the last that
    /// of the scheduled ones. It is empty where nothing was scheduled. A first slot that is not the sequence's own is a
    /// snapshot that it hit, or the state that it was forked with.
    pub(super) line: VecDeque<StateAt>,
    /// Snapshots that the steps in flight write, in the order of their positions.
    pub(super) snapshots: Vec<PendingSnapshot>,
    /// States before the drafts of the step in flight, in the order of their positions: each has a slot beside `own`.
    /// Once it is known how many drafts are right, the state behind the last of them stays, and the other slots go.
    pub(super) kept: Vec<StateAt>,
    /// The last rolling snapshot that was taken of the sequence. It has no owner: others may hit or evict it.
    pub(super) rolling: Option<(BlockHash, BlockId)>,
}

impl SeqStates {
    /// The slots that it owns.
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

    /// States that a step of these positions writes beside its last one, snapshots and then those before drafts: each
    /// with the number of the step's tokens before it.
    pub(super) fn written_by(&self, step: Range<usize>) -> impl Iterator<Item = (usize, BlockId)> {
        let (start, end) = (step.start, step.end);
        let all = self.snapshots.iter().map(|snapshot| snapshot.at).chain(self.kept.iter().copied());
        let of_step = all.filter(move |at| at.position > start && at.position <= end);
        of_step.map(move |at| (at.position - start, at.slot))
    }

    /// The slot that the next step leaves its last state in: not the one that it reads, where there are two.
    pub(super) fn next_slot(&self) -> Option<BlockId> {
        let read = self.line.back().map(|state| state.slot);
        self.own.iter().copied().find(|slot| Some(*slot) != read).or(self.own.first().copied())
    }
}
