//! Gauges, counters and block lifetimes.

use super::MissedTokens;

/// Gauges and counters of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvCacheStats {
    pub blocks_total: usize,
    /// Blocks with neither owner nor content.
    pub blocks_free: usize,
    /// Blocks without an owner whose content a prefix may hit; taken when no free block is left.
    pub blocks_cached: usize,
    pub blocks_owned: usize,
    /// Slots of recurrent states; zero for a model without them.
    pub state_slots_total: usize,
    pub state_slots_free: usize,
    /// Snapshots that a prefix may hit.
    pub state_slots_cached: usize,
    pub state_slots_owned: usize,
    /// Prompt tokens looked up in, and found in, the prefix cache.
    pub prefix_cache_queries: u64,
    pub prefix_cache_hits: u64,
    pub prefix_cache_misses: MissedTokens,
    /// Cached blocks whose content was evicted for a new owner.
    pub evictions: u64,
    /// State snapshots that were evicted for a new owner.
    pub state_evictions: u64,
    /// Lifetimes of the blocks of all groups.
    pub residency: Residency,
}

/// Lifetimes of blocks with content, in microseconds of the caller's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Residency {
    /// Times from a block's allocation to its eviction.
    pub lifetime: Histogram,
    /// Times from a block's last use to its eviction.
    pub idle_before_evict: Histogram,
    /// Times from a block's last use to its reuse by another sequence.
    pub reuse_gap: Histogram,
}

impl Residency {
    pub(super) fn add(&mut self, other: &Self) {
        self.lifetime.add(&other.lifetime);
        self.idle_before_evict.add(&other.idle_before_evict);
        self.reuse_gap.add(&other.reuse_gap);
    }
}

/// Counts of durations by upper bound (inclusive, `Histogram::BOUNDS`), plus those above all bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Durations per interval between bounds; the last entry counts those above all bounds.
    pub counts: [u64; 9],
    /// Sum of all durations.
    pub sum: u64,
}

impl Histogram {
    /// 1 ms, 10 ms, 100 ms, 1 s, 10 s, 1 min, 10 min, 1 h.
    pub const BOUNDS: [u64; 8] =
        [1_000, 10_000, 100_000, 1_000_000, 10_000_000, 60_000_000, 600_000_000, 3_600_000_000];

    pub fn record(&mut self, micros: u64) {
        let bucket = Self::BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(Self::BOUNDS.len());
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(micros);
    }

    fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// The state of a block in the block map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockState {
    /// Neither content nor owner.
    Free = 0,
    /// No owner, but content that a prefix may hit.
    Cached = 1,
    Owned = 2,
}

/// One block of the pool, for the block map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockInfo {
    pub state: BlockState,
    /// The number of sequences that hold it.
    pub owners: u32,
    /// True if a prefix can find its content.
    pub hashed: bool,
    /// Microseconds since it was last used; 0 while it is owned.
    pub idle_micros: u64,
}
