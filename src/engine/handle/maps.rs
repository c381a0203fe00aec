//! Maps of the KV cache, as callers of the engine read them: the state of each block and of each slot.

use crate::Engine;
use crate::kv_cache::{BlockInfo, KvCache};

impl Engine {
    /// Describes each block of the KV cache; empty in a forked process.
    pub fn block_map(&self) -> Vec<BlockInfo> {
        self.map(KvCache::block_map)
    }

    /// Describes each slot of recurrent states; empty for a model without them and in a forked process.
    pub fn state_map(&self) -> Vec<BlockInfo> {
        self.map(KvCache::state_map)
    }

    fn map(&self, read: fn(&KvCache, u64) -> Vec<BlockInfo>) -> Vec<BlockInfo> {
        let shared = &self.inner.shared;
        let now = |()| read(&shared.kv_cache.read(), shared.clock.now());
        self.check_process().map_or_else(|_| Vec::new(), now)
    }
}
