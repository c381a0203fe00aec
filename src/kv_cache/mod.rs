//! The paged, prefix-sharing KV cache's bookkeeping: integers only.

mod config;

pub use config::{GroupKind, KvCacheConfig, KvCacheStats};

use crate::Result;

/// The whole of the cache's state. Lives behind one `RwLock`: the engine thread writes, any thread may read.
#[derive(Debug)]
pub struct KvCache {}

impl KvCache {
    pub fn new(config: KvCacheConfig) -> Result<Self> {
        let _ = config;
        todo!("kv_cache")
    }
    pub fn stats(&self) -> KvCacheStats {
        todo!("kv_cache")
    }
    /// One entry per block of the pool; `now` in microseconds of the caller's clock.
    pub fn block_map(&self, now: u64) -> Vec<BlockInfo> {
        let _ = now;
        todo!("kv_cache")
    }
    /// Forgets all cached content; `false` (and nothing done) while any block is owned.
    pub fn reset_prefix_cache(&mut self) -> bool {
        todo!("kv_cache")
    }
    /// # Errors
    /// `Error::Internal` naming the broken invariant.
    pub fn check_integrity(&self) -> Result<()> {
        todo!("kv_cache")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    /// No content, no owner.
    Free = 0,
    /// No owner, but content that a prefix may hit.
    Cached = 1,
    Owned = 2,
}

/// One block of the pool, for the block map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    pub state: BlockState,
    /// Sequences that hold it.
    pub owners: u32,
    /// Whether its content can be found by a prefix.
    pub hashed: bool,
    /// Since it was last used.
    pub idle_micros: u64,
}
