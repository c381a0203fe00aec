//! The reason why no more of a prompt was found in the prefix cache, as far as it is known for certain.

use std::collections::VecDeque;

use hashbrown::HashSet;
use serde::{Deserialize, Serialize};

use super::{BlockHash, HashChain, KvCache};

/// The number of evicted hashes that are remembered: about 2 MB.
pub(super) const MAX_REMEMBERED: usize = 65_536;

/// The reason why a prompt's tokens after the prefix hit had to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrefixMiss {
    /// All whole blocks before the prompt's last token were found. The last token is always computed.
    LastBlock,
    /// The next block has not been in the cache since the cache was last empty.
    New,
    /// The next block was in the cache. It was evicted, or a block or state that it needs was.
    Evicted,
    /// The next block is not in the cache. Too many blocks were evicted to know whether it ever was.
    Forgotten,
    /// The next blocks are in the cache, but no recurrent state after them was saved.
    NoSnapshot,
    /// The next block, or the state after it, is in host memory. It was evicted again before the sequence started.
    HostMemory,
    /// It is in a file. Host memory has no room for all of the prompt, or lost it again before the sequence started.
    Files,
    /// Its file had vanished or was damaged.
    Unreadable,
    /// Nothing was looked up, since the request needs results of every position of the prompt.
    AllPositions,
    /// Nothing was looked up, since the prefix cache is disabled.
    Disabled,
}

impl PrefixMiss {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LastBlock => "last_block",
            Self::New => "new",
            Self::Evicted => "evicted",
            Self::Forgotten => "forgotten",
            Self::NoSnapshot => "no_snapshot",
            Self::HostMemory => "host_memory",
            Self::Files => "files",
            Self::Unreadable => "unreadable",
            Self::AllPositions => "all_positions",
            Self::Disabled => "disabled",
        }
    }
}

/// Prompt tokens that were looked up and not found, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MissedTokens {
    pub last_block: u64,
    pub new: u64,
    pub evicted: u64,
    pub forgotten: u64,
    pub no_snapshot: u64,
    pub host_memory: u64,
    pub files: u64,
    pub unreadable: u64,
}

impl MissedTokens {
    fn count(&mut self, miss: PrefixMiss, num_tokens: usize) {
        let counter = match miss {
            PrefixMiss::LastBlock => &mut self.last_block,
            PrefixMiss::New => &mut self.new,
            PrefixMiss::Evicted => &mut self.evicted,
            PrefixMiss::Forgotten => &mut self.forgotten,
            PrefixMiss::NoSnapshot => &mut self.no_snapshot,
            PrefixMiss::HostMemory => &mut self.host_memory,
            PrefixMiss::Files => &mut self.files,
            PrefixMiss::Unreadable => &mut self.unreadable,
            PrefixMiss::AllPositions | PrefixMiss::Disabled => return,
        };
        *counter += num_tokens as u64;
    }
}

/// 64-bit hashes of recently evicted contents. At this size a lookup is a false positive about once in 10^14, and the
/// result is only reported to users.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    names: HashSet<u64>,
    /// Contains the hashes of `names`, oldest first.
    by_age: VecDeque<u64>,
    /// True if more were evicted than can be remembered.
    overflowed: bool,
}

impl Evicted {
    pub(super) fn contains(&self, name: &BlockHash) -> bool {
        self.names.contains(&name.short())
    }

    pub(super) fn insert(&mut self, name: &BlockHash) {
        let name = name.short();
        if !self.names.insert(name) {
            return;
        }
        self.by_age.push_back(name);
        if self.by_age.len() > MAX_REMEMBERED
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.names.remove(&oldest);
            self.overflowed = true;
        }
    }
}

impl KvCache {
    /// Counts a prompt of `num_tokens` tokens with the hashes of `chain`. `num_found` tokens were found, and the keys
    /// and values of `num_held` were in the cache. Returns why no more were found.
    pub fn count_prefix_query(
        &mut self,
        chain: &HashChain,
        num_tokens: usize,
        num_found: usize,
        num_held: usize,
    ) -> PrefixMiss {
        let miss = self.prefix_miss(chain, num_tokens, num_found, num_held);
        if miss != PrefixMiss::Disabled {
            self.prefix_cache_queries += num_tokens as u64;
            self.prefix_cache_hits += num_found as u64;
            self.prefix_cache_misses.count(miss, num_tokens - num_found);
        }
        miss
    }

    fn prefix_miss(&self, chain: &HashChain, num_tokens: usize, num_found: usize, num_held: usize) -> PrefixMiss {
        if !self.config.enable_prefix_caching {
            return PrefixMiss::Disabled;
        }
        let next = num_found / self.config.block_size;
        let last = num_tokens.saturating_sub(1) / self.config.block_size;
        let Some(name) = chain.hashes().get(next).filter(|_| next < last) else { return PrefixMiss::LastBlock };
        let held = chain.hashes().get(next..num_held / self.config.block_size).unwrap_or_default();
        if let (Some(states), [_, ..]) = (&self.states, held) {
            let of_states = self.groups.len()..self.groups.len() + 1;
            if let Some(miss) = self.miss_below(of_states, held) {
                return miss;
            }
            let was_evicted = held.iter().any(|name| states.evicted.contains(name));
            return if was_evicted { PrefixMiss::Evicted } else { PrefixMiss::NoSnapshot };
        }
        if let Some(miss) = self.miss_below(0..self.groups.len(), &[*name]) {
            return miss;
        }
        // A block is indexed in all groups at once. If only one group still has it, blocks of a window before it are
        // gone.
        let is_held = self.groups.iter().any(|group| group.pool.index.get(name).is_some());
        match is_held || self.evicted.contains(name) {
            true => PrefixMiss::Evicted,
            false if self.evicted.overflowed => PrefixMiss::Forgotten,
            false => PrefixMiss::New,
        }
    }
}
