//! The paged, prefix-sharing KV cache's bookkeeping: integers only.
//!
//! A block is `block_size` tokens of all layers of a group; each group has a pool of its own size. Sequences hold
//! blocks through `SeqBlocks`; the pool counts owners. A block without an owner is free, or cached when its content can
//! still be hit by a prefix; cached blocks are taken, least recently used first, when no free one is left. A block with
//! an owner is never taken. A model with recurrent states has a pool of slots for them besides (`states`).
//!
//! Invariants (`check_integrity`, `check_owners`): every block is either in the free list or owned, its count of
//! owners is the number of tables that name it, and the index finds exactly the blocks that have content.

mod block_id;
mod block_table;
mod config;
mod events;
mod free_list;
mod groups;
mod hash_chain;
mod integrity;
mod miss;
mod plan;
mod pool;
mod prefix_index;
mod seq_states;
mod states;
mod stats;
#[cfg(test)]
mod tests;
mod tokens;

pub use block_id::BlockId;
pub use block_table::SeqBlocks;
pub use config::KvCacheConfig;
pub use events::{KvEvent, StoredBlock};
pub use hash_chain::{BlockHash, HashChain};
pub use miss::{MissedTokens, PrefixMiss};
pub use plan::{AllocPlan, Demand, PrefixHit};
pub use states::Snapshot;
pub use stats::{BlockInfo, BlockState, Histogram, KvCacheStats, Residency};
pub use tokens::Tokens;

use block_table::Returned;
use crossbeam_channel::{Receiver, Sender};
use events::EventLog;
use groups::Group;
use miss::Evicted;
use states::States;

use crate::batch::GroupKind;
use crate::{Error, Result};

/// The whole of the cache's state. Lives behind one `RwLock`: the engine thread writes, any thread may read.
#[derive(Debug)]
pub struct KvCache {
    config: KvCacheConfig,
    groups: Vec<Group>,
    states: Option<States>,
    /// Blocks and slots of dropped `SeqBlocks`, on their way back.
    returns: (Sender<Returned>, Receiver<Returned>),
    /// The caller's clock, microseconds.
    now: u64,
    /// Grows with every change that could make an allocation plan wrong.
    version: u64,
    num_gains: u64,
    prefix_cache_queries: u64,
    prefix_cache_hits: u64,
    prefix_cache_misses: MissedTokens,
    evicted: Evicted,
    /// A log of what came and went, if somebody reads it.
    events: Option<EventLog>,
    /// A broken invariant met where there was nobody to tell; `check_integrity` reports it.
    fault: Option<Error>,
}

impl KvCache {
    /// # Errors
    /// `InvalidRequest` for sizes that are zero or too large.
    pub fn new(config: KvCacheConfig) -> Result<Self> {
        config.validate()?;
        let groups = config.groups.iter().map(|group| Group::new(*group)).collect();
        let states = config.states.map(States::new);
        Ok(Self {
            config,
            groups,
            states,
            returns: crossbeam_channel::unbounded(),
            now: 0,
            version: 0,
            num_gains: 0,
            prefix_cache_queries: 0,
            prefix_cache_hits: 0,
            prefix_cache_misses: MissedTokens::default(),
            evicted: Evicted::default(),
            events: None,
            fault: None,
        })
    }

    pub fn config(&self) -> &KvCacheConfig {
        &self.config
    }

    /// Sets the clock and takes back the blocks and slots of dropped sequences.
    pub fn tick(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Ok(returned) = self.returns.1.try_recv() {
            self.take_back(&returned);
        }
    }

    /// Blocks of a new sequence: none yet.
    pub fn new_sequence(&self) -> SeqBlocks {
        SeqBlocks::new(self.groups.len(), self.returns.0.clone())
    }

    /// Names of a new sequence's blocks: none yet. Blocks are shared only under an equal `salt` and `adapter`.
    pub fn new_chain(&self, salt: Option<&str>, adapter: Option<u32>) -> HashChain {
        HashChain::new(self.config.hash_key, salt, adapter)
    }

    /// Names the full blocks of `tokens`, as far as they have no name yet.
    pub fn extend_chain(&self, chain: &mut HashChain, tokens: &Tokens) {
        if self.config.enable_prefix_caching {
            chain.extend(tokens, self.config.block_size);
        }
    }

    /// The step that computed `seq` up to `num_computed` tokens was committed: its full blocks and the snapshots that
    /// it took can be hit from now on, and blocks that a sliding window has left behind go back. `chain` names the full
    /// blocks of `tokens`.
    ///
    /// # Errors
    /// `Internal` when `seq` does not hold the blocks that it was computed in.
    pub fn mark_computed(
        &mut self,
        seq: &mut SeqBlocks,
        chain: &HashChain,
        tokens: &Tokens,
        num_computed: usize,
    ) -> Result<()> {
        let block_size = self.config.block_size;
        let full = (num_computed / block_size).min(chain.hashes().len());
        for i in seq.num_named..full {
            for (g, (group, table)) in self.groups.iter_mut().zip(&seq.tables).enumerate() {
                let id = *table.get(i).ok_or_else(|| Error::internal(format!("computed block {i} is not held")))?;
                if !id.is_null() && group.pool.set_hash(id, chain.hashes()[i])? {
                    self.num_gains += 1;
                    if let Some(log) = &mut self.events {
                        let token_ids = tokens.range(i * block_size..(i + 1) * block_size).collect();
                        log.stored((g, group.kind), i, chain, token_ids);
                    }
                }
            }
        }
        seq.num_named = seq.num_named.max(full);
        for (group, table) in self.groups.iter_mut().zip(&mut seq.tables) {
            let passed = group.first_needed_block(num_computed, block_size).min(table.len());
            // Placeholders are contiguous from the front. The earliest go back first, and so are evicted first: what
            // stands right before the window serves the longest hits.
            let held = table[..passed].iter().rev().take_while(|id| !id.is_null()).count();
            for id in &mut table[passed - held..passed] {
                group.pool.release(std::mem::replace(id, BlockId::NULL), self.now)?;
                self.version += 1;
                self.num_gains += 1;
            }
        }
        self.settle_states(seq, chain, num_computed)
    }

    /// The draft model has computed `seq` up to `num_tokens` tokens, as the model has: whoever hits one of its full
    /// blocks finds the keys and values of both in it. They are in full-attention groups.
    ///
    /// # Errors
    /// `Internal` when `seq` does not hold the blocks that it was computed in.
    pub fn mark_drafted(&mut self, seq: &mut SeqBlocks, num_tokens: usize) -> Result<()> {
        let full = (num_tokens / self.config.block_size).min(seq.num_named);
        let groups = self.groups.iter_mut().zip(&seq.tables).filter(|(group, _)| group.kind == GroupKind::Full);
        for (group, table) in groups {
            for id in table.get(seq.num_drafted..full).unwrap_or_default() {
                group.pool.set_drafted(*id)?;
            }
        }
        seq.num_drafted = seq.num_drafted.max(full);
        Ok(())
    }

    /// Takes back what `seq` holds beyond its first `num_tokens` tokens: blocks that were written for drafts which were
    /// then rejected, and the states of these. Such blocks are the sequence's alone, since a plan gives it a copy of
    /// each shared block that it writes. What the last block that stays holds beyond `num_tokens` is overwritten when
    /// the sequence goes on.
    ///
    /// # Errors
    /// `Internal` when a block beyond them can be hit already, since rejected content must never be named, and where
    /// the state after them was not kept.
    pub fn truncate(&mut self, seq: &mut SeqBlocks, num_tokens: usize) -> Result<()> {
        let kept = num_tokens.div_ceil(self.config.block_size);
        if seq.num_named * self.config.block_size > num_tokens {
            return Err(Error::internal(format!("{} named blocks cut to {num_tokens} tokens", seq.num_named)));
        }
        for (group, table) in self.groups.iter_mut().zip(&mut seq.tables) {
            for id in table.drain(kept.min(table.len())..).rev() {
                group.pool.release(id, self.now)?;
                self.version += 1;
                self.num_gains += 1;
            }
        }
        self.cut_states(seq, num_tokens)
    }

    /// A second owner for all blocks of `seq`, of which no step is in flight; whoever writes into one of them first
    /// gets its own copy.
    ///
    /// # Errors
    /// `Internal` when a block has too many owners.
    pub fn fork(&mut self, seq: &mut SeqBlocks) -> Result<SeqBlocks> {
        self.version += 1;
        for (group, table) in self.groups.iter_mut().zip(&seq.tables) {
            for id in table.iter().filter(|id| !id.is_null()) {
                group.pool.add_owner(*id)?;
            }
        }
        let states = self.fork_states(&mut seq.states)?;
        Ok(seq.fork(seq.tables.clone(), states))
    }

    /// Takes back all blocks and slots of `seq` at once; it can be used again.
    pub fn release(&mut self, seq: &mut SeqBlocks) {
        let returned = seq.take();
        self.take_back(&returned);
    }

    /// The one way in which what a sequence held comes back. Blocks do from the last to the first, so that the tail of
    /// a prompt is evicted before its head.
    fn take_back(&mut self, Returned { tables, slots }: &Returned) {
        self.version += 1;
        self.num_gains += 1;
        let pools = self.groups.iter_mut().map(|group| &mut group.pool).zip(tables);
        let slots = self.states.as_mut().map(|states| (&mut states.pool, slots));
        for (pool, ids) in pools.chain(slots) {
            for id in ids.iter().rev().filter(|id| !id.is_null()) {
                if let Err(error) = pool.release(*id, self.now) {
                    self.fault.get_or_insert(error);
                }
            }
        }
    }

    /// Whether a sequence alone can be computed up to `num_tokens` in steps of at most `max_step` tokens.
    pub fn can_ever_hold(&self, num_tokens: usize, max_step: usize) -> bool {
        num_tokens <= self.longest_sequence(max_step)
    }

    /// The most tokens up to which a sequence alone can be computed in steps of at most `max_step` tokens.
    pub fn longest_sequence(&self, max_step: usize) -> usize {
        let longest = self.groups.iter().map(|group| group.longest_sequence(max_step, self.config.block_size));
        longest.min().unwrap_or(0)
    }

    /// Whether each group has as many blocks to give as `num_blocks` says for it.
    pub fn has_available(&self, num_blocks: &[usize]) -> bool {
        self.groups.iter().zip(num_blocks).all(|(group, wanted)| group.pool.num_available() >= *wanted)
    }

    /// Grows whenever an allocation that there was no room for could have become possible: blocks came back, or content
    /// was named that a sequence can share instead of taking blocks of its own.
    pub fn num_gains(&self) -> u64 {
        self.num_gains
    }

    pub fn stats(&self) -> KvCacheStats {
        let mut stats = KvCacheStats {
            prefix_cache_queries: self.prefix_cache_queries,
            prefix_cache_hits: self.prefix_cache_hits,
            prefix_cache_misses: self.prefix_cache_misses,
            ..KvCacheStats::default()
        };
        for Group { pool, .. } in &self.groups {
            stats.blocks_total += pool.blocks.len();
            stats.blocks_free += pool.num_available() - pool.num_cached;
            stats.blocks_cached += pool.num_cached;
            stats.blocks_owned += pool.blocks.len() - pool.num_available();
            stats.evictions += pool.evictions;
            stats.residency.add(&pool.residency);
        }
        if let Some(States { pool, .. }) = &self.states {
            stats.state_slots_total = pool.blocks.len();
            stats.state_slots_free = pool.num_available() - pool.num_cached;
            stats.state_slots_cached = pool.num_cached;
            stats.state_slots_owned = pool.blocks.len() - pool.num_available();
            stats.state_evictions = pool.evictions;
        }
        stats
    }

    /// Describes each block, group after group; `now` is in microseconds of the caller's clock.
    pub fn block_map(&self, now: u64) -> Vec<BlockInfo> {
        self.groups.iter().flat_map(|group| group.pool.info(now)).collect()
    }

    /// Describes each slot of recurrent states as `block_map` describes blocks: a cached one is a snapshot.
    pub fn state_map(&self, now: u64) -> Vec<BlockInfo> {
        self.states.iter().flat_map(|states| states.pool.info(now)).collect()
    }

    /// Forgets all cached content; `false` (and nothing done) while any block or slot is owned.
    pub fn reset_prefix_cache(&mut self) -> bool {
        self.tick(self.now);
        let stats = self.stats();
        if stats.blocks_owned + stats.state_slots_owned > 0 {
            return false;
        }
        self.version += 1;
        self.groups.iter_mut().for_each(|group| group.pool.forget_content());
        self.evicted = Evicted::default();
        if let Some(states) = &mut self.states {
            states.pool.forget_content();
            states.evicted = Evicted::default();
        }
        if let Some(log) = &mut self.events {
            log.cleared();
        }
        true
    }
}
