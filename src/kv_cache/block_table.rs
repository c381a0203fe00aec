//! The blocks and state slots of one sequence. One value holds them and returns them when it is dropped.

use std::ops::Range;

use crossbeam_channel::Sender;

use super::BlockId;
use super::seq_states::SeqStates;

/// Block ids, one list per group; entry `i` holds positions `i * block_size ..`.
pub(super) type Tables = Vec<Vec<BlockId>>;

/// Everything that a sequence held, to be returned to the cache.
#[derive(Debug)]
pub(super) struct Returned {
    pub(super) tables: Tables,
    /// Slots of recurrent states.
    pub(super) slots: Vec<BlockId>,
    /// The slot of its rolling snapshot, which it does not own.
    pub(super) rolling: Option<BlockId>,
}

/// The cache blocks and state slots that a sequence owns. They are returned however the sequence ends: finished,
/// cancelled, failed or unwound by a panic. Dropping this sends them to a channel that the cache empties before its
/// next change. The drop takes no lock, so it may happen anywhere, even while the cache is locked.
#[derive(Debug)]
pub struct SeqBlocks {
    pub(super) tables: Tables,
    /// Leading blocks whose content was added to the prefix index, or that have left the window.
    pub(super) num_named: usize,
    /// Leading blocks that are known to hold the draft model's keys and values, too.
    pub(super) num_drafted: usize,
    pub(super) states: SeqStates,
    returns: Sender<Returned>,
}

impl SeqBlocks {
    pub(super) fn new(num_groups: usize, returns: Sender<Returned>) -> Self {
        let tables = vec![Vec::new(); num_groups];
        Self { tables, num_named: 0, num_drafted: 0, states: SeqStates::default(), returns }
    }

    /// Returns the blocks of another sequence with as many named blocks.
    pub(super) fn fork(&self, tables: Tables, states: SeqStates) -> Self {
        let (num_named, num_drafted) = (self.num_named, self.num_drafted);
        Self { tables, num_named, num_drafted, states, returns: self.returns.clone() }
    }

    /// Returns the block table of `group`. `BlockId::NULL` stands for blocks that have left the sliding window.
    pub fn table(&self, group: usize) -> &[BlockId] {
        &self.tables[group]
    }

    /// Returns the number of leading blocks that are known to hold the draft model's keys and values, too.
    pub fn num_drafted(&self) -> usize {
        self.num_drafted
    }

    /// Returns the slot with the state after the first `position` tokens. A step in flight must begin or end there, or
    /// all steps in flight must come after it.
    pub fn state_at(&self, position: usize) -> Option<BlockId> {
        self.states.slot_at(position)
    }

    /// Returns the states that the step of these positions writes besides its last one, unordered: the number of the
    /// step's tokens before each state, and its slot.
    pub fn states_in(&self, step: Range<usize>) -> impl Iterator<Item = (usize, BlockId)> {
        self.states.written_by(step)
    }

    /// Returns the number of states that are saved before drafts.
    pub fn num_kept_states(&self) -> usize {
        self.states.kept.len()
    }

    /// True if it holds neither blocks nor slots.
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(Vec::is_empty) && self.states.is_empty()
    }

    /// Takes everything that it holds and leaves it empty.
    pub(super) fn take(&mut self) -> Returned {
        (self.num_named, self.num_drafted) = (0, 0);
        let states = std::mem::take(&mut self.states);
        let (slots, rolling) = (states.held().collect(), states.rolling.map(|(_, slot)| slot));
        Returned { tables: self.tables.iter_mut().map(std::mem::take).collect(), slots, rolling }
    }
}

impl Drop for SeqBlocks {
    fn drop(&mut self) {
        if !self.is_empty() {
            let returned = self.take();
            // An error means that the cache itself is gone, together with its blocks.
            let _ = self.returns.send(returned);
        }
    }
}
