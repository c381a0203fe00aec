//! The blocks of one group, or the state slots: reference counts, the free list, and the contents that can be hit.

pub(crate) mod free_list;

use super::prefix::prefix_index::PrefixIndex;
use super::{BlockHash, BlockId, BlockInfo, BlockState, Residency};
use crate::{Error, Result};
use free_list::FreeList;

/// Metadata of one block.
#[derive(Debug, Clone, Default)]
pub(super) struct Block {
    /// The number of sequences that hold it.
    pub(super) refs: u32,
    /// The hash of its content, once the step that filled it was committed.
    pub(super) hash: Option<BlockHash>,
    /// True if it also holds the draft model's keys and values of all its positions. Only hashed blocks are marked.
    pub(super) is_drafted: bool,
    /// True if its content came from host memory and was not hit since.
    pub(super) is_loaded: bool,
    /// Times in microseconds of the caller's clock.
    allocated_at: u64,
    last_access: u64,
    /// The number of sequences that have used it since its content was written.
    access_count: u64,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) blocks: Vec<Block>,
    /// Blocks without an owner: first the empty ones, then those with content, least recently used first.
    pub(super) free: FreeList,
    pub(super) index: PrefixIndex,
    /// Blocks in `free` that have content.
    pub(super) num_cached: usize,
    pub(super) evictions: u64,
    pub(super) residency: Residency,
}

impl Pool {
    pub(super) fn new(num_blocks: usize) -> Self {
        Self {
            blocks: vec![Block::default(); num_blocks],
            free: FreeList::full(num_blocks),
            index: PrefixIndex::default(),
            num_cached: 0,
            evictions: 0,
            residency: Residency::default(),
        }
    }

    /// Returns the number of blocks that can be allocated: empty and cached ones.
    pub(super) fn num_available(&self) -> usize {
        self.free.len()
    }

    pub(super) fn get(&self, id: BlockId) -> Result<&Block> {
        self.blocks.get(id.index()).ok_or_else(|| unknown(id, self.blocks.len()))
    }

    /// Takes the first free block, and only now forgets its old content. Returns the hash of that content, too.
    pub(super) fn allocate(&mut self, now: u64) -> Option<(BlockId, Option<BlockHash>)> {
        let id = self.free.pop_front()?;
        let block = &mut self.blocks[id.index()];
        let forgotten = block.hash.take();
        if let Some(hash) = forgotten {
            self.index.remove(&hash, id);
            self.num_cached -= 1;
            self.evictions += 1;
            self.residency.lifetime.record(now.saturating_sub(block.allocated_at));
            self.residency.idle_before_evict.record(now.saturating_sub(block.last_access));
        }
        *block = Block { refs: 1, allocated_at: now, last_access: now, access_count: 1, ..Block::default() };
        Some((id, forgotten))
    }

    /// Adds an owner to a block whose content was hit, whether it had owners or not.
    pub(super) fn touch(&mut self, id: BlockId, now: u64) -> Result<()> {
        self.add_owner(id)?;
        let block = &mut self.blocks[id.index()];
        self.residency.reuse_gap.record(now.saturating_sub(block.last_access));
        block.last_access = now;
        block.access_count += 1;
        block.is_loaded = false;
        Ok(())
    }

    /// Adds an owner. A block without owners leaves the free list.
    pub(super) fn add_owner(&mut self, id: BlockId) -> Result<()> {
        let num_blocks = self.blocks.len();
        let block = self.blocks.get_mut(id.index()).ok_or_else(|| unknown(id, num_blocks))?;
        let was_free = block.refs == 0;
        block.refs = block.refs.checked_add(1).ok_or_else(|| Error::internal(format!("{id:?}: too many owners")))?;
        if was_free {
            self.free.remove(id);
            self.num_cached -= usize::from(block.hash.is_some());
        }
        Ok(())
    }

    /// Removes an owner. A block without owners and with content goes to the tail of the free list, so that the least
    /// recently used is taken first. One without content goes to the head, so that it never causes an eviction.
    pub(super) fn release(&mut self, id: BlockId, now: u64) -> Result<()> {
        let num_blocks = self.blocks.len();
        let block = self.blocks.get_mut(id.index()).ok_or_else(|| unknown(id, num_blocks))?;
        block.refs = block
            .refs
            .checked_sub(1)
            .ok_or_else(|| Error::internal(format!("{id:?} was released but has no owner")))?;
        if block.refs == 0 {
            block.last_access = now;
            if block.hash.is_some() {
                self.num_cached += 1;
                self.free.push_back(id);
            } else {
                self.free.push_front(id);
            }
        }
        Ok(())
    }

    /// Adds a block's content to the index; `true` if no other block held it.
    pub(super) fn set_hash(&mut self, id: BlockId, hash: BlockHash) -> Result<bool> {
        let num_blocks = self.blocks.len();
        let block = self.blocks.get_mut(id.index()).ok_or_else(|| unknown(id, num_blocks))?;
        if block.refs == 0 || block.hash.is_some_and(|old| old != hash) {
            return Err(Error::internal(format!("{id:?} cannot be named: {block:?}")));
        }
        block.hash = Some(hash);
        let is_new = self.index.get(&hash).is_none();
        self.index.insert(hash, id);
        Ok(is_new)
    }

    /// Notes that the content of a hashed block came from host memory.
    pub(super) fn set_loaded(&mut self, id: BlockId) {
        if let Some(block) = self.blocks.get_mut(id.index()) {
            block.is_loaded = true;
        }
    }

    /// Notes that the draft model has computed all positions of a hashed block.
    pub(super) fn set_drafted(&mut self, id: BlockId) -> Result<()> {
        let num_blocks = self.blocks.len();
        let block = self.blocks.get_mut(id.index()).ok_or_else(|| unknown(id, num_blocks))?;
        if block.refs == 0 || block.hash.is_none() {
            return Err(Error::internal(format!("{id:?} cannot hold what a draft model computed: {block:?}")));
        }
        block.is_drafted = true;
        Ok(())
    }

    /// Empties a block with this content, unless it has an owner or was hit since its content was written.
    pub(super) fn forget_unused(&mut self, id: BlockId, hash: &BlockHash) {
        let Some(block) = self.blocks.get_mut(id.index()) else { return };
        if block.hash.as_ref() == Some(hash) && block.refs == 0 && block.access_count == 1 {
            (block.hash, block.is_drafted, block.is_loaded) = (None, false, false);
            self.index.remove(hash, id);
            self.num_cached -= 1;
            self.free.remove(id);
            self.free.push_front(id);
        }
    }

    /// Forgets all content. The caller has made sure that no block is owned.
    pub(super) fn forget_content(&mut self) {
        self.index.clear();
        self.num_cached = 0;
        for block in &mut self.blocks {
            (block.hash, block.is_drafted, block.is_loaded) = (None, false, false);
        }
    }

    pub(super) fn info(&self, now: u64) -> impl Iterator<Item = BlockInfo> + '_ {
        self.blocks.iter().map(move |block| {
            let state = match (block.refs, block.hash) {
                (0, None) => BlockState::Free,
                (0, Some(_)) => BlockState::Cached,
                _ => BlockState::Owned,
            };
            let idle_micros = if block.refs == 0 { now.saturating_sub(block.last_access) } else { 0 };
            BlockInfo { state, owners: block.refs, hashed: block.hash.is_some(), idle_micros }
        })
    }
}

fn unknown(id: BlockId, num_blocks: usize) -> Error {
    Error::internal(format!("{id:?} is not one of the {num_blocks} blocks of its pool"))
}
