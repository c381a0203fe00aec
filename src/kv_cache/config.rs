//! Shape of the cache, checked once.

use crate::{Error, Result};

/// What a group of layers attends to, which decides when its blocks may be freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupKind {
    Full,
    /// A token attends to itself and the `window - 1` before it; blocks wholly before that are freed.
    Sliding {
        window: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvCacheConfig {
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks of each group's pool.
    pub num_blocks: usize,
    /// One entry per group of the model, in the order of `Batch::groups`.
    pub groups: Vec<GroupKind>,
    pub enable_prefix_caching: bool,
    /// Key of the block hashes: drawn at random per engine, so that collisions cannot be prepared.
    pub hash_key: [u8; 32],
}

impl KvCacheConfig {
    /// # Errors
    /// `InvalidRequest` for a size of zero, no groups, or so many tokens that a slot does not fit in 32 bits.
    pub(super) fn validate(&self) -> Result<()> {
        if self.block_size == 0 {
            return Err(Error::invalid("block_size", 0, "at least 1 token per block"));
        }
        if self.num_blocks == 0 {
            return Err(Error::invalid("num_blocks", 0, "at least 1 block; give kv_cache_memory more bytes"));
        }
        // Slots are `u32` and the greatest value is the placeholder of block tables.
        let slots = self.num_blocks.checked_mul(self.block_size);
        if slots.is_none_or(|slots| slots >= u32::MAX as usize) {
            return Err(Error::invalid(
                "KV cache size",
                format!("{} blocks of {} tokens", self.num_blocks, self.block_size),
                format!("fewer than {} tokens in all", u32::MAX),
            ));
        }
        if self.groups.is_empty() {
            return Err(Error::invalid("KV cache groups", 0, "at least one group of layers"));
        }
        for group in &self.groups {
            if let GroupKind::Sliding { window: 0 } = group {
                return Err(Error::invalid("sliding window", 0, "at least 1 token"));
            }
        }
        Ok(())
    }
}
