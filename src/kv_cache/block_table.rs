//! The blocks of one sequence, held by one value that gives them back when it is dropped.

use crossbeam_channel::Sender;

use super::BlockId;

/// Block ids, one list per group; entry `i` holds positions `i * block_size ..`.
pub(super) type Tables = Vec<Vec<BlockId>>;

/// Blocks of the cache that a sequence owns. However the sequence goes away (finished, cancelled, failed, unwound by a
/// panic), its blocks go back: dropping this puts them on a channel that the cache empties before its next change. It
/// takes no lock, so it may be dropped anywhere, also while the cache is locked.
#[derive(Debug)]
pub struct SeqBlocks {
    pub(super) tables: Tables,
    /// Leading blocks whose content was made findable (or was left behind by the window).
    pub(super) num_named: usize,
    returns: Sender<Tables>,
}

impl SeqBlocks {
    pub(super) fn new(num_groups: usize, returns: Sender<Tables>) -> Self {
        Self { tables: vec![Vec::new(); num_groups], num_named: 0, returns }
    }

    pub(super) fn with_tables(&self, tables: Tables) -> Self {
        Self { tables, num_named: self.num_named, returns: self.returns.clone() }
    }

    /// Block table of `group`; `BlockId::NULL` where a sliding window has passed.
    pub fn table(&self, group: usize) -> &[BlockId] {
        &self.tables[group]
    }

    /// Whether it holds no block of any group.
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(Vec::is_empty)
    }

    /// Takes the tables out and leaves it empty.
    pub(super) fn take(&mut self) -> Tables {
        self.num_named = 0;
        self.tables.iter_mut().map(std::mem::take).collect()
    }
}

impl Drop for SeqBlocks {
    fn drop(&mut self) {
        if !self.is_empty() {
            // An error means that the cache itself is gone, and its blocks with it.
            let _ = self.returns.send(std::mem::take(&mut self.tables));
        }
    }
}
