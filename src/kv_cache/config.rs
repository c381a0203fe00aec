//! The configuration of the cache, checked once.

use crate::batch::GroupKind;
use crate::{Error, Result};
use rocmforge_core::config::{GroupConfig, StateConfig};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvCacheConfig {
    /// Tokens per block.
    pub block_size: usize,
    /// One entry per group of the model, in the order of `Batch::groups`.
    pub groups: Vec<GroupConfig>,
    /// Slots of recurrent states, for a model that has them.
    pub states: Option<StateConfig>,
    pub enable_prefix_caching: bool,
    /// The key of the block hashes. It is random per engine, so that nobody can prepare collisions.
    pub hash_key: [u8; 32],
}

impl KvCacheConfig {
    /// True if tokens attend to later ones. Then a sequence is computed in one step, and sequences cannot share blocks.
    pub fn is_bidirectional(&self) -> bool {
        self.groups.iter().any(|group| group.kind.is_bidirectional())
    }

    /// # Errors
    /// `InvalidRequest` for a size of zero, no groups, more tokens than 32-bit slots can number, or too few state
    /// slots. `Internal` for a prefix cache of blocks that depend on later tokens.
    pub(super) fn validate(&self) -> Result<()> {
        if self.block_size == 0 {
            return Err(Error::invalid("block_size", 0, "at least 1 token per block"));
        }
        if self.groups.is_empty() {
            return Err(Error::invalid("KV cache groups", 0, "at least one group of layers"));
        }
        if self.is_bidirectional() && self.enable_prefix_caching {
            return Err(Error::internal("a prefix cache of a model that attends in both directions"));
        }
        self.groups.iter().try_for_each(|group| self.validate_group(*group))?;
        self.states.iter().try_for_each(|states| self.validate_states(*states))
    }

    fn validate_states(&self, states: StateConfig) -> Result<()> {
        let StateConfig { num_slots, slots_per_seq, snapshot_interval } = states;
        if slots_per_seq == 0 {
            return Err(Error::invalid("state slots per sequence", 0, "at least 1"));
        }
        // One more slot is for the snapshot that a sequence begins with.
        if num_slots <= slots_per_seq || num_slots >= u32::MAX as usize - 1 {
            let expected = format!("more than {slots_per_seq}, and less than 2^32; give kv_cache_memory more bytes");
            return Err(Error::invalid("slots of states", num_slots, expected));
        }
        if snapshot_interval == 0 || !snapshot_interval.is_multiple_of(self.block_size) {
            let expected = format!("a multiple of block_size, which is {}", self.block_size);
            return Err(Error::invalid("state_snapshot_interval", snapshot_interval, expected));
        }
        Ok(())
    }

    fn validate_group(&self, group: GroupConfig) -> Result<()> {
        if group.num_blocks == 0 {
            return Err(Error::invalid("num_blocks", 0, "at least 1 block; give kv_cache_memory more bytes"));
        }
        // Slots are `u32`, and the largest value is the placeholder of block tables.
        let slots = group.num_blocks.checked_mul(self.block_size);
        if slots.is_none_or(|slots| slots >= u32::MAX as usize) {
            return Err(Error::invalid(
                "KV cache size",
                format!("{} blocks of {} tokens", group.num_blocks, self.block_size),
                format!("fewer than {} tokens in all", u32::MAX),
            ));
        }
        match group.kind {
            GroupKind::Sliding { window: 0 } => Err(Error::invalid("sliding window", 0, "at least 1 token")),
            GroupKind::Chunked { size } if !size.is_power_of_two() => {
                Err(Error::invalid("chunk of attention", size, "a power of two"))
            }
            GroupKind::Full
            | GroupKind::Sliding { .. }
            | GroupKind::Chunked { .. }
            | GroupKind::Bidirectional { .. } => Ok(()),
        }
    }
}
