//! The blocks and the slots of states of one sequence, held by one value that gives them back when it is dropped.

use std::ops::Range;

use crossbeam_channel::Sender;

use super::BlockId;
use super::seq_states::SeqStates;

/// Block ids, one list per group; entry `i` holds positions `i * block_size ..`.
pub(super) type Tables = Vec<Vec<BlockId>>;

/// Everything that a sequence held, on its way back.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) tables: Tables,
    /// Slots of states.
    pub(super) slots: Vec<BlockId>,
}

/// Blocks of the cache that a sequence owns, and its slots of states. However the sequence goes away (finished,
/// cancelled, failed, unwound by a panic), they go back: dropping this puts them on a channel that the cache empties
/// before its next change. It takes no lock, so it may be dropped anywhere, also while the cache is locked.
#[derive(Debug)]
pub struct SeqBlocks {
    pub(super) tables: Tables,
    /// Leading blocks whose content was made findable (or was left behind by the window).
    pub(super) num_named: usize,
    /// Leading blocks that hold the draft model's keys and values too, as far as that is known.
    pub(super) num_drafted: usize,
    pub(super) states: SeqStates,
    returns: Sender<Returned>,
}

impl SeqBlocks {
    pub(super) fn new(num_groups: usize, returns: Sender<Returned>) -> Self {
        let tables = vec![Vec::new(); num_groups];
        Self { tables, num_named: 0, num_drafted: 0, states: SeqStates::default(), returns }
    }

    /// Another sequence with as many named blocks.
    pub(super) fn fork(&self, tables: Tables, states: SeqStates) -> Self {
        let (num_named, num_drafted) = (self.num_named, self.num_drafted);
        Self { tables, num_named, num_drafted, states, returns: self.returns.clone() }
    }

    /// Block table of `group`; `BlockId::NULL` where a sliding window has passed.
    pub fn table(&self, group: usize) -> &[BlockId] {
        &self.tables[group]
    }

    /// Leading blocks that hold the draft model's keys and values too, as far as that is known.
    pub fn num_drafted(&self) -> usize {
        self.num_drafted
    }

    /// The slot with the state after the first `position` tokens, where a step in flight begins or ends there or all
    /// steps in flight come after it.
    pub fn state_at(&self, position: usize) -> Option<BlockId> {
        self.states.slot_at(position)
    }

    /// The states that the step in flight of these positions keeps beside its last one, in no order: numbers of its
    /// tokens, and slots.
    pub fn states_in(&self, step: Range<usize>) -> impl Iterator<Item = (usize, BlockId)> {
        self.states.written_by(step)
    }

    /// The number of states that are kept before drafts.
    pub fn num_kept_states(&self) -> usize {
        self.states.kept.len()
    }

    /// Whether it holds no block of any group, nor a slot.
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(Vec::is_empty) && self.states.is_empty()
    }

    /// Takes out all that it holds and leaves it empty.
    pub(super) fn take(&mut self) -> Returned {
        (self.num_named, self.num_drafted) = (0, 0);
        let slots = std::mem::take(&mut self.states).held().collect();
        Returned { tables: self.tables.iter_mut().map(std::mem::take).collect(), slots }
    }
}

impl Drop for SeqBlocks {
    fn drop(&mut self) {
        if !self.is_empty() {
            let returned = self.take();
            // An error means that the cache itself is gone, and its blocks with it.
            let _ = self.returns.send(returned);
        }
    }
}
