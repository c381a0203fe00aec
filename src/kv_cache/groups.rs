//! One group of layers: its pool, and the blocks of a sequence that its attention still reads.

use super::pool::Pool;
use super::{BlockHash, BlockId};
use crate::batch::GroupKind;
use rocmforge_core::config::GroupConfig;

#[derive(Debug)]
pub(super) struct Group {
    pub(super) kind: GroupKind,
    pub(super) pool: Pool,
}

impl Group {
    pub(super) fn new(config: GroupConfig) -> Self {
        Self { kind: config.kind, pool: Pool::new(config.num_blocks) }
    }

    /// Returns the index of the first block that the token at `position` or any later one reads.
    pub(super) fn first_needed_block(&self, position: usize, block_size: usize) -> usize {
        match self.kind {
            GroupKind::Full | GroupKind::Bidirectional { .. } => 0,
            GroupKind::Sliding { window } => position.saturating_add(1).saturating_sub(window as usize) / block_size,
            GroupKind::Chunked { size } => position / size as usize * size as usize / block_size,
        }
    }

    /// Returns the most blocks that a sequence alone ever holds while it is computed up to `num_tokens` in steps of at
    /// most `max_step` tokens.
    pub(super) fn max_blocks(&self, num_tokens: usize, max_step: usize, block_size: usize) -> usize {
        let whole = num_tokens.div_ceil(block_size);
        match self.kind {
            GroupKind::Full | GroupKind::Bidirectional { .. } => whole,
            GroupKind::Sliding { window: tokens } | GroupKind::Chunked { size: tokens } => {
                let span = (tokens as usize - 1).saturating_add(max_step);
                whole.min(span.div_ceil(block_size).saturating_add(1))
            }
        }
    }

    /// Returns the longest length of a sequence that runs alone in steps of at most `max_step` tokens. It is unlimited
    /// if the pool holds a whole window and such a step.
    pub(super) fn longest_sequence(&self, max_step: usize, block_size: usize) -> usize {
        let num_blocks = self.pool.blocks.len();
        let fits_for_ever = self.max_blocks(usize::MAX, max_step, block_size) <= num_blocks;
        if fits_for_ever { usize::MAX } else { num_blocks * block_size }
    }

    /// Returns the number of leading `hashes` that this group's pool holds without a gap.
    pub(super) fn contiguous_hits(&self, hashes: &[BlockHash]) -> usize {
        hashes.iter().take_while(|hash| self.pool.index.get(hash).is_some()).count()
    }

    /// Returns for each prefix length in blocks (`0..=hashes.len()`) whether a sequence can continue from there. It can
    /// if the pool holds all blocks that its next token reads.
    pub(super) fn usable_prefixes(&self, hashes: &[BlockHash], block_size: usize) -> Vec<bool> {
        let mut usable = vec![true];
        let mut held_in_a_row = 0;
        for (i, hash) in hashes.iter().enumerate() {
            held_in_a_row = if self.pool.index.get(hash).is_some() { held_in_a_row + 1 } else { 0 };
            let length = i + 1;
            let first = self.first_needed_block(length * block_size, block_size);
            usable.push(held_in_a_row >= length.saturating_sub(first));
        }
        usable
    }

    /// Returns the block table of a hit of all `hashes`, with placeholders for blocks that the next token does not
    /// read.
    pub(super) fn hit_table(&self, hashes: &[BlockHash], block_size: usize) -> Option<Vec<BlockId>> {
        let first = self.first_needed_block(hashes.len() * block_size, block_size).min(hashes.len());
        let held = hashes[first..].iter().map(|hash| self.pool.index.get(hash));
        std::iter::repeat_n(Some(BlockId::NULL), first).chain(held).collect()
    }
}
