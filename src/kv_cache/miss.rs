//! The reason why no more of a prompt was found in the prefix cache, as far as it is known for sure.

use std::collections::VecDeque;

use hashbrown::HashSet;
use serde::{Deserialize, Serialize};

use super::{BlockHash, HashChain, KvCache};

/// Names of evicted contents that are remembered: about 2 MB.
pub(super) const MAX_REMEMBERED: usize = 65_536;

/// The reason why a prompt's tokens behind those that were found had to be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PrefixMiss {
    /// All whole blocks before the prompt's last token were found, and that token is always computed.
    LastBlock,
    /// The block behind them has not been in the cache since that was last empty.
    New,
    /// The block behind them was in the cache, and it, one that it needs or the state that it needs was evicted.
    Evicted,
    /// The block behind them is not in the cache. Whether it ever was is not known: too many were evicted since.
    Forgotten,
    /// The blocks behind them are in the cache, but of the recurrent states after these none was kept.
    NoSnapshot,
    /// Nothing was looked up, since something is wanted of every position of the prompt.
    AllPositions,
    /// Nothing was looked up, since the prefix cache is switched off.
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
            Self::AllPositions => "all_positions",
            Self::Disabled => "disabled",
        }
    }
}

/// Prompt tokens that were looked up and not found, by the reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MissedTokens {
    pub last_block: u64,
    pub new: u64,
    pub evicted: u64,
    pub forgotten: u64,
    pub no_snapshot: u64,
}

impl MissedTokens {
    fn count(&mut self, miss: PrefixMiss, num_tokens: usize) {
        let counter = match miss {
            PrefixMiss::LastBlock => &mut self.last_block,
            PrefixMiss::New => &mut self.new,
            PrefixMiss::Evicted => &mut self.evicted,
            PrefixMiss::Forgotten => &mut self.forgotten,
            PrefixMiss::NoSnapshot => &mut self.no_snapshot,
            PrefixMiss::AllPositions | PrefixMiss::Disabled => return,
        };
        *counter += num_tokens as u64;
    }
}

/// Names of the contents that were evicted last, of each 64 bits: with as many as this, one name is taken for another
/// once in 10^14 questions, and nothing but a word for people hangs on it.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    names: HashSet<u64>,
    /// They stand here once more, in the order in which they came.
    by_age: VecDeque<u64>,
    /// Whether there were more than can be remembered.
    overflowed: bool,
}

impl Evicted {
    fn contains(&self, name: &BlockHash) -> bool {
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
    /// Counts a prompt of `num_tokens` tokens named by `chain`, of which `num_found` were found when it was looked up,
    /// and `num_held` ones' keys and values were there; says why not more were found.
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
            let was_evicted = held.iter().any(|name| states.evicted.contains(name));
            return if was_evicted { PrefixMiss::Evicted } else { PrefixMiss::NoSnapshot };
        }
        // A block is named in all groups at once. Where one still has it, a window's blocks before it are gone.
        let is_held = self.groups.iter().any(|group| group.pool.index.get(name).is_some());
        match is_held || self.evicted.contains(name) {
            true => PrefixMiss::Evicted,
            false if self.evicted.overflowed => PrefixMiss::Forgotten,
            false => PrefixMiss::New,
        }
    }
}
