//! Maps the hash of a content to the blocks that hold it. Two sequences that computed the same prefix at the same time
//! hold equal blocks. Tables are append-only, so both blocks stay, and either can serve a hit.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::{BlockHash, BlockId};

#[derive(Debug, Default)]
pub(crate) struct PrefixIndex {
    entries: HashMap<BlockHash, Holders>,
}

#[derive(Debug)]
enum Holders {
    One(BlockId),
    /// Two or more.
    Many(BTreeSet<BlockId>),
}

impl PrefixIndex {
    /// Returns the lowest numbered block with this content.
    pub(crate) fn get(&self, hash: &BlockHash) -> Option<BlockId> {
        match self.entries.get(hash)? {
            Holders::One(id) => Some(*id),
            Holders::Many(ids) => ids.first().copied(),
        }
    }

    pub(crate) fn insert(&mut self, hash: BlockHash, id: BlockId) {
        let holders = self.entries.entry(hash).or_insert(Holders::One(id));
        match holders {
            Holders::One(first) if *first == id => {}
            Holders::One(first) => *holders = Holders::Many(BTreeSet::from([*first, id])),
            Holders::Many(ids) => {
                ids.insert(id);
            }
        }
    }

    /// Removes exactly this block, not others with equal content; `false` if it was not indexed.
    pub(crate) fn remove(&mut self, hash: &BlockHash, id: BlockId) -> bool {
        let Some(holders) = self.entries.get_mut(hash) else { return false };
        match holders {
            Holders::One(only) => {
                let found = *only == id;
                if found {
                    self.entries.remove(hash);
                }
                found
            }
            Holders::Many(ids) => {
                let found = ids.remove(&id);
                if let (1, Some(last)) = (ids.len(), ids.first().copied()) {
                    *holders = Holders::One(last);
                }
                found
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn contains(&self, hash: &BlockHash, id: BlockId) -> bool {
        match self.entries.get(hash) {
            None => false,
            Some(Holders::One(only)) => *only == id,
            Some(Holders::Many(ids)) => ids.contains(&id),
        }
    }

    #[cfg(test)]
    pub(crate) fn num_contents(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of (content, block) pairs.
    pub(crate) fn len(&self) -> usize {
        self.entries.values().map(|holders| if let Holders::Many(ids) = holders { ids.len() } else { 1 }).sum()
    }
}
