//! Shape of the cache, and its counters.

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

/// Gauges and counters of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvCacheStats {
    pub blocks_total: usize,
    pub blocks_free: usize,
    pub blocks_cached: usize,
    pub blocks_owned: usize,
    /// Prompt tokens looked up in, and found in, the prefix cache.
    pub prefix_cache_queries: u64,
    pub prefix_cache_hits: u64,
    pub evictions: u64,
}
