//! Snapshots of the engine for its users.

/// Counters and gauges; one consistent snapshot.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Stats {
    pub num_waiting: usize,
    pub num_running: usize,
    pub num_preemptions: u64,
    pub num_finished_stop: u64,
    pub num_finished_length: u64,
    pub num_finished_abort: u64,
    pub num_finished_timeout: u64,
    pub num_finished_error: u64,
    pub blocks_total: usize,
    /// Free without content.
    pub blocks_free: usize,
    /// Free with content that a prefix may hit.
    pub blocks_cached: usize,
    pub blocks_owned: usize,
    /// Prompt tokens looked up in, and found in, the prefix cache.
    pub prefix_cache_queries: u64,
    pub prefix_cache_hits: u64,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
    pub engine_steps: u64,
    pub device_allocations: u64,
    /// Records of finished requests still kept.
    pub finished_records: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    Free = 0,
    Cached = 1,
    Owned = 2,
}

/// One block of the pool, for the block map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockInfo {
    pub state: BlockState,
    /// Sequences that hold it.
    pub owners: u32,
    /// Whether its content can be found by a prefix.
    pub hashed: bool,
    /// Since it was last used.
    pub idle_seconds: f64,
}
