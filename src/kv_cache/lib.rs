//! The bookkeeping of the paged KV cache with prefix sharing: integers only.
//!
//! A block is `block_size` tokens of all layers of a group; each group has a pool of its own size. Sequences hold
//! blocks through `SeqBlocks`, and the pool counts owners.
//!
//! A block without an owner is free, or cached if a prefix can still hit its content. If no free block is left, cached
//! blocks are taken, least recently used first. A block with an owner is never taken. A model with recurrent states
//! also has a pool of slots for them (`states`).
//!
//! Invariants (`check_integrity`, `check_owners`): every block is either in the free list or owned. Its number of
//! owners is the number of tables that list it. The index finds exactly the blocks that have content.
//!
//! Start with `KvCache` here, then `plan` and `pool`. Of the workspace, this crate knows only the integers of
//! `rocmforge_core`: no tensor, no device, no clock.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod block_id;
mod block_table;
mod config;
mod events;
mod groups;
mod integrity;
mod loads;
mod miss;
mod offload;
mod plan;
mod pool;
mod prefix;
mod seq_states;
mod states;
mod stats;
#[cfg(test)]
mod tests;

// The crates below, by the names that the files of this one use.
use rocmforge_core::{Error, Result, batch};

pub use block_id::BlockId;
pub use block_table::SeqBlocks;
pub use config::KvCacheConfig;
pub use events::{KvEvent, StoredBlock};
pub use miss::{MissedTokens, PrefixMiss};
pub use offload::{ContentKey, Move, Moves, OffloadConfig, OffloadStats};
pub use plan::{AllocPlan, Demand, PrefixHit};
pub use prefix::hash_chain::{BlockHash, HashChain};
pub use prefix::tokens::Tokens;
pub use states::Snapshot;
pub use stats::{BlockInfo, BlockState, Histogram, KvCacheStats, Residency};

use block_table::Returned;
use crossbeam_channel::{Receiver, Sender};
use events::EventLog;
use groups::Group;
use miss::Evicted;
use offload::Offload;
use states::States;

use crate::batch::{GroupKind, SeqExtras};

/// The whole state of the cache. It lives behind one `RwLock`: the engine thread writes, and any thread may read.
#[derive(Debug)]
pub struct KvCache {
    config: KvCacheConfig,
    groups: Vec<Group>,
    states: Option<States>,
    /// Blocks and slots of dropped `SeqBlocks`, on their way back to the cache.
    returns: (Sender<Returned>, Receiver<Returned>),
    /// The caller's clock, in microseconds.
    now: u64,
    /// Grows with every change that could invalidate an allocation plan.
    version: u64,
    num_gains: u64,
    prefix_cache_queries: u64,
    prefix_cache_hits: u64,
    prefix_cache_misses: MissedTokens,
    evicted: Evicted,
    /// The tiers below the device, if there are any.
    offload: Option<Offload>,
    /// The log of KV events, if it is enabled.
    events: Option<EventLog>,
    /// A broken invariant found where no error could be returned; `check_integrity` reports it.
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
            offload: None,
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

    /// Returns the blocks of a new sequence, which has none yet.
    pub fn new_sequence(&self) -> SeqBlocks {
        SeqBlocks::new(self.groups.len(), self.returns.0.clone())
    }

    /// Returns the hash chain of a new sequence. Blocks are shared only under the same `salt` and adapter.
    pub fn new_chain(&self, salt: Option<&str>, extras: SeqExtras) -> HashChain {
        HashChain::new(self.config.hash_key, salt, extras)
    }

    /// Hashes the full blocks of `tokens` that have no hash yet.
    pub fn extend_chain(&self, chain: &mut HashChain, tokens: &Tokens) {
        if self.config.enable_prefix_caching {
            chain.extend(tokens, self.config.block_size);
        }
    }

    /// Notes that the step that computed `seq` up to `num_computed` tokens was committed. Its full blocks and snapshots
    /// can be hit from now on, and blocks that have left a sliding window are freed. `chain` has the hashes of the full
    /// blocks of `tokens`.
    ///
    /// # Errors
    /// `Internal` if `seq` does not hold the blocks that it was computed in.
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
                        log.stored(g, StoredBlock::of(group.kind, i, chain, tokens, block_size));
                    }
                }
            }
        }
        seq.num_named = seq.num_named.max(full);
        for (group, table) in self.groups.iter_mut().zip(&mut seq.tables) {
            let passed = group.first_needed_block(num_computed, block_size).min(table.len());
            // Placeholders are contiguous from the front. The earliest blocks are freed first, and so evicted first.
            // The blocks right before the window serve the longest hits.
            let held = table[..passed].iter().rev().take_while(|id| !id.is_null()).count();
            for id in &mut table[passed - held..passed] {
                group.pool.release(std::mem::replace(id, BlockId::NULL), self.now)?;
                self.version += 1;
                self.num_gains += 1;
            }
        }
        self.settle_states(seq, chain, num_computed)
    }

    /// Notes that the draft model has computed `seq` up to `num_tokens` tokens, like the model. A sequence that hits
    /// one of its full blocks then finds the keys and values of both models. They are in full-attention groups.
    ///
    /// # Errors
    /// `Internal` if `seq` does not hold the blocks that it was computed in.
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

    /// Frees the blocks of `seq` after its first `num_tokens` tokens, which were written for rejected drafts, and the
    /// states saved for these. Such blocks have no other owner, since a plan copies each shared block before it is
    /// written. Positions after `num_tokens` in the last remaining block are overwritten when the sequence continues.
    ///
    /// # Errors
    /// `Internal` if a later block can be hit already, since rejected content must never be indexed. Also if the state
    /// after these tokens was not saved.
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

    /// Adds a second owner to all blocks of `seq`, which must not be in a step in flight. The first owner to write to
    /// one of them gets its own copy.
    ///
    /// # Errors
    /// `Internal` if a block has too many owners.
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

    /// Takes back everything that a sequence held; there is no other way. Blocks are released from last to first, so
    /// that the tail of a prompt is evicted before its head.
    fn take_back(&mut self, Returned { tables, slots, rolling }: &Returned) {
        self.version += 1;
        self.num_gains += 1;
        if let (Some(states), Some(rolling)) = (&mut self.states, rolling) {
            states.rolling.remove(rolling);
        }
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

    /// True if a sequence alone can be computed up to `num_tokens` in steps of at most `max_step` tokens.
    pub fn can_ever_hold(&self, num_tokens: usize, max_step: usize) -> bool {
        num_tokens <= self.longest_sequence(max_step)
    }

    /// Returns the maximum length that a sequence, alone in the pool, can reach in steps of at most `max_step` tokens.
    pub fn longest_sequence(&self, max_step: usize) -> usize {
        let longest = self.groups.iter().map(|group| group.longest_sequence(max_step, self.config.block_size));
        longest.min().unwrap_or(0)
    }

    /// True if a sequence owns the block.
    pub fn is_owned(&self, group: usize, block: u32) -> bool {
        self.groups.get(group).and_then(|group| group.pool.get(BlockId(block)).ok()).is_some_and(|block| block.refs > 0)
    }

    /// True if each group has at least as many available blocks as `num_blocks` says.
    pub fn has_available(&self, num_blocks: &[usize]) -> bool {
        self.groups.iter().zip(num_blocks).all(|(group, wanted)| group.pool.num_available() >= *wanted)
    }

    /// Grows whenever an allocation that failed could have become possible: blocks were freed, or content was indexed
    /// that a sequence can share instead of allocating blocks.
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

    /// Describes each block, group after group. `now` is in microseconds of the caller's clock.
    pub fn block_map(&self, now: u64) -> Vec<BlockInfo> {
        self.groups.iter().flat_map(|group| group.pool.info(now)).collect()
    }

    /// Describes each slot of recurrent states, as `block_map` describes blocks. A cached slot is a snapshot.
    pub fn state_map(&self, now: u64) -> Vec<BlockInfo> {
        self.states.iter().flat_map(|states| states.pool.info(now)).collect()
    }

    /// Forgets all cached content, also in the lower tiers. Returns `false` and does nothing if any block or slot is
    /// owned.
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
        self.clear_offload();
        if let Some(log) = &mut self.events {
            log.cleared();
        }
        true
    }
}
