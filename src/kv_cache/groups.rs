//! One group of layers: its pool, and the blocks of a sequence that its attention still reads.

use super::BlockHash;
use super::pool::Pool;
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

    /// Returns for each prefix length in blocks (`0..=hashes.len()`) whether a sequence can continue from there. It can
    /// if all blocks that its next token reads are held.
    pub(super) fn usable_prefixes(
        &self,
        hashes: &[BlockHash],
        block_size: usize,
        is_held: impl Fn(&BlockHash) -> bool,
    ) -> Vec<bool> {
        let mut usable = vec![true];
        let mut held_in_a_row = 0;
        for (i, hash) in hashes.iter().enumerate() {
            held_in_a_row = if is_held(hash) { held_in_a_row + 1 } else { 0 };
            let length = i + 1;
            let first = self.first_needed_block(length * block_size, block_size);
            usable.push(held_in_a_row >= length.saturating_sub(first));
        }
        usable
    }
}
