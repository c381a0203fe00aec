//! Shape of the cache, checked once.

use crate::batch::GroupKind;
use crate::config::GroupConfig;
use crate::{Error, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvCacheConfig {
    /// Tokens per block.
    pub block_size: usize,
    /// One entry per group of the model, in the order of `Batch::groups`.
    pub groups: Vec<GroupConfig>,
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
        if self.groups.is_empty() {
            return Err(Error::invalid("KV cache groups", 0, "at least one group of layers"));
        }
        self.groups.iter().try_for_each(|group| self.validate_group(*group))
    }

    fn validate_group(&self, group: GroupConfig) -> Result<()> {
        if group.num_blocks == 0 {
            return Err(Error::invalid("num_blocks", 0, "at least 1 block; give kv_cache_memory more bytes"));
        }
        // Slots are `u32` and the greatest value is the placeholder of block tables.
        let slots = group.num_blocks.checked_mul(self.block_size);
        if slots.is_none_or(|slots| slots >= u32::MAX as usize) {
            return Err(Error::invalid(
                "KV cache size",
                format!("{} blocks of {} tokens", group.num_blocks, self.block_size),
                format!("fewer than {} tokens in all", u32::MAX),
            ));
        }
        if group.kind == (GroupKind::Sliding { window: 0 }) {
            return Err(Error::invalid("sliding window", 0, "at least 1 token"));
        }
        Ok(())
    }
}
