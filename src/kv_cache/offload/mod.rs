//! The tiers below the device: contents of blocks and state slots that are kept in host memory or in files.
//!
//! This is their index, with integers only; the engine has the bytes. A content is named by its pool and its hash.
//!
//! - A cached block near its eviction is copied to the host (`saves_ahead`). One that is evicted without a copy is
//!   copied before the next step overwrites it (`take_moves`). Once its bytes have arrived, `end_save` adds it here.
//! - A prefix is looked up in the device's blocks and in host memory alike. A content of host memory first gets a new
//!   block, which is filled during the steps (`loads`). Then it can be hit like any other.
//! - Contents that are only in files come into host memory before their sequence is scheduled (`missing_files`).

mod tier;

use std::ops::Range;

use hashbrown::{HashMap, HashSet};

use super::events::StoredBlock;
use super::miss::{Evicted, PrefixMiss};
use super::pool::Pool;
use super::{BlockHash, BlockId, HashChain, KvCache};
use crate::{Error, Result};

use tier::Tier;

/// Names a content: the group of a block, or the number of groups for a state slot, and the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentKey {
    pub pool: usize,
    pub hash: BlockHash,
}

/// A content to copy between a block (or state slot) of the device and the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub key: ContentKey,
    pub block: u32,
}

/// Copies to begin before the next step.
#[derive(Debug, Default)]
pub struct Moves {
    /// Contents of blocks that have a new owner. They are read before anything is written.
    pub saves: Vec<Move>,
    /// Contents for blocks that no sequence has yet. They are copied after the saves, beside the steps.
    pub loads: Vec<Move>,
    /// True if a block has a new owner while it is still being copied.
    pub overtakes: bool,
}

#[derive(Debug, Clone)]
pub struct OffloadConfig {
    /// The bytes of host memory.
    pub memory: u64,
    /// The bytes of a block of each group, then those of a state slot if there are any.
    pub content_bytes: Vec<u64>,
    /// The number of blocks or slots of each pool, counted from the next eviction, that are copied ahead. All together
    /// take at most half of host memory.
    pub num_ahead: Vec<usize>,
}

/// Gauges and counters of the index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OffloadStats {
    /// Bytes that host memory may hold, and that it holds.
    pub memory_capacity: u64,
    pub memory_bytes: u64,
    /// Blocks and snapshots in host memory, and those known to be in files.
    pub memory_contents: usize,
    pub disk_contents: usize,
    /// Blocks and snapshots that were copied to host memory.
    pub saved: u64,
    /// Blocks and snapshots that were evicted from the device and could not be copied.
    pub lost: u64,
    /// Blocks and snapshots that were copied back to the device.
    pub loaded: u64,
    /// Prompt tokens found in host memory, including those that came from files for it.
    pub memory_hit_tokens: u64,
    /// Prompt tokens that came from files.
    pub disk_hit_tokens: u64,
}

#[derive(Debug)]
pub(super) struct Offload {
    config: OffloadConfig,
    memory: Tier,
    files: HashSet<ContentKey>,
    /// Contents whose files had vanished or were damaged.
    unreadable: Evicted,
    /// Contents whose copies to the host are under way, and the blocks that are read.
    saving: HashMap<ContentKey, u32>,
    /// Contents that are copied to the device.
    pub(super) loading: HashMap<ContentKey, Loading>,
    moves: Moves,
    pub(super) counters: OffloadStats,
}

/// A content that is copied to a block.
#[derive(Debug)]
pub(super) struct Loading {
    pub(super) block: BlockId,
    /// Describes the block for the log of events, if there is one.
    pub(super) stored: Option<StoredBlock>,
}

impl Offload {
    fn bytes_of(&self, pool: usize) -> u64 {
        self.config.content_bytes.get(pool).copied().unwrap_or(0)
    }

    /// Returns the bytes that contents take in host memory.
    fn bytes_with_entries(&self, contents: &[ContentKey]) -> u64 {
        contents.iter().map(|key| self.bytes_of(key.pool) + tier::ENTRY_BYTES).sum()
    }

    /// True if a content is in host memory or on its way to the device.
    pub(super) fn is_near(&self, key: &ContentKey) -> bool {
        self.memory.contains(key) || self.loading.contains_key(key)
    }

    /// True if the content is in memory or a file. One without bytes is nowhere missing.
    fn is_anywhere(&self, key: &ContentKey) -> bool {
        self.is_near(key) || self.files.contains(key) || self.bytes_of(key.pool) == 0
    }

    /// Notes that a block has a new owner. `evicted`: the content that no block has any more.
    pub(super) fn taken(&mut self, pool: usize, block: BlockId, evicted: Option<BlockHash>) {
        // It may be read even if its content is not evicted: another block has it, or it was forgotten.
        self.moves.overtakes |= self.saving.iter().any(|(key, read)| key.pool == pool && *read == block.0);
        let evicted = evicted.map(|hash| ContentKey { pool, hash });
        if let Some(key) = evicted.filter(|key| !self.saving.contains_key(key) && !self.memory.contains(key)) {
            self.moves.saves.push(Move { key, block: block.0 });
        }
    }

    /// Like `taken`, for a state slot. States are the last pool.
    pub(super) fn taken_state(&mut self, slot: BlockId, evicted: Option<BlockHash>) {
        self.taken(self.config.content_bytes.len() - 1, slot, evicted);
    }

    /// True if a content is in host memory and not on its way to the device.
    pub(super) fn may_load(&self, key: &ContentKey) -> bool {
        self.memory.contains(key) && !self.loading.contains_key(key)
    }

    /// Notes that a content is used.
    pub(super) fn touch(&mut self, key: &ContentKey) {
        self.memory.touch(key);
    }

    /// Notes that a block is to be filled with a content of host memory.
    pub(super) fn load(&mut self, key: ContentKey, block: BlockId, stored: Option<StoredBlock>) {
        self.memory.touch(&key);
        self.moves.loads.push(Move { key, block: block.0 });
        self.loading.insert(key, Loading { block, stored });
    }

    fn clear(&mut self) {
        self.memory.clear();
        self.files.clear();
        // Their blocks are still read.
        self.moves = Moves { overtakes: !self.saving.is_empty(), ..Moves::default() };
        self.saving.clear();
    }

    pub(super) fn check(&self) -> Result<()> {
        self.memory.check().map_err(|problem| Error::internal(format!("KV offloading: {problem}")))
    }

    fn stats(&self) -> OffloadStats {
        OffloadStats {
            memory_capacity: self.memory.capacity(),
            memory_bytes: self.memory.bytes(),
            memory_contents: self.memory.len(),
            disk_contents: self.files.len(),
            ..self.counters
        }
    }
}

impl KvCache {
    /// Keeps evicted contents in host memory from now on.
    ///
    /// # Errors
    /// `InvalidRequest` if there is no prefix cache, or too little memory for contents. `Internal` if the sizes are not
    /// those of the pools.
    pub fn enable_offload(&mut self, config: OffloadConfig) -> Result<()> {
        if !self.config.enable_prefix_caching {
            let expected = "a model and settings with a prefix cache, or no kv_offload_memory and kv_offload_dir";
            return Err(Error::invalid("KV offloading", "an engine without prefix cache", expected));
        }
        let num_pools = self.groups.len() + usize::from(self.states.is_some());
        if config.content_bytes.len() != num_pools || config.num_ahead.len() != num_pools {
            return Err(Error::internal(format!("{config:?} is for another number of pools than {num_pools}")));
        }
        let largest = config.content_bytes.iter().max().map_or(0, |bytes| bytes.saturating_add(tier::ENTRY_BYTES));
        let least = largest.saturating_mul(2 * num_pools as u64);
        if config.memory < least {
            let expected = format!("at least {least} bytes, which blocks and snapshots of this model need");
            return Err(Error::invalid("kv_offload_memory", config.memory, expected));
        }
        // Otherwise contents that were copied ahead would push each other out, and be copied again without end.
        let of_pool = config.memory / 2 / num_pools as u64;
        let limits = config.content_bytes.iter().map(|bytes| of_pool / bytes.saturating_add(tier::ENTRY_BYTES));
        let limits = limits.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let num_ahead = config.num_ahead.iter().zip(limits).map(|(wanted, limit)| limit.min(*wanted)).collect();
        self.offload = Some(Offload {
            memory: Tier::new(config.memory),
            config: OffloadConfig { num_ahead, ..config },
            files: HashSet::new(),
            unreadable: Evicted::default(),
            saving: HashMap::new(),
            loading: HashMap::new(),
            moves: Moves::default(),
            counters: OffloadStats::default(),
        });
        Ok(())
    }

    /// Takes what has to be copied from before the next step on, as a result of the last `schedule`. Each save must end
    /// in `end_save` or `give_up_save`, and each load in `end_load`.
    pub fn take_moves(&mut self) -> Moves {
        let Some(offload) = &mut self.offload else { return Moves::default() };
        let moves = std::mem::take(&mut offload.moves);
        offload.saving.extend(moves.saves.iter().map(|save| (save.key, save.block)));
        moves
    }

    /// Returns contents without a copy that are evicted soon, or all cached ones if `all` is true, in the order of
    /// their eviction. There are at most as many of each pool as `most` says. Each must end in `end_save` or
    /// `give_up_save`.
    pub fn saves_ahead(&mut self, most: &[usize], all: bool) -> Vec<Move> {
        let Some(offload) = &mut self.offload else { return Vec::new() };
        let mut saves = Vec::new();
        let pools = self.groups.iter().map(|group| &group.pool).chain(self.states.iter().map(|states| &states.pool));
        for (index, (pool, most)) in pools.zip(most).enumerate() {
            let num_ahead = if all { usize::MAX } else { offload.config.num_ahead[index] };
            if pool.num_available() - pool.num_cached >= num_ahead {
                continue;
            }
            // Empty blocks come first in the list.
            let soon = pool.free.iter().take(num_ahead).filter_map(|id| Some((id, pool.blocks[id.index()].hash?)));
            // A rolling snapshot is soon replaced by the next one.
            let is_rolling = |id: &BlockId| self.states.as_ref().is_some_and(|states| states.rolling.contains(id));
            let is_replaced = |id: &BlockId| !all && index == self.groups.len() && is_rolling(id);
            let num_before = saves.len();
            for (id, hash) in soon.filter(|(id, _)| !is_replaced(id)) {
                if saves.len() - num_before == *most {
                    break;
                }
                let key = ContentKey { pool: index, hash };
                if !offload.memory.contains(&key) && !offload.saving.contains_key(&key) {
                    offload.saving.insert(key, id.0);
                    saves.push(Move { key, block: id.0 });
                }
            }
        }
        saves
    }

    /// Ends a save whose bytes have arrived. The content is in host memory from now on. Returns the contents that host
    /// memory has lost for it, or the content itself if it is not kept.
    pub fn end_save(&mut self, key: ContentKey) -> Vec<ContentKey> {
        if let Some(offload) = &mut self.offload {
            offload.saving.remove(&key);
            offload.counters.saved += 1;
        }
        self.keep_in_memory(key)
    }

    /// Ends a save that is not made. The content counts as lost unless the device still has it.
    pub fn give_up_save(&mut self, key: &ContentKey) {
        let is_lost = !self.is_cached(key);
        if let Some(offload) = &mut self.offload {
            offload.saving.remove(key);
            offload.counters.lost += u64::from(is_lost);
        }
    }

    /// Adds a content that was read from a file to host memory. Returns the contents that host memory has lost for it.
    pub fn keep_in_memory(&mut self, key: ContentKey) -> Vec<ContentKey> {
        let Some(offload) = &mut self.offload else { return vec![key] };
        self.num_gains += 1;
        offload.memory.insert(key, offload.bytes_of(key.pool))
    }

    /// Notes contents that are in files now, and contents that no longer are.
    pub fn note_files(&mut self, present: &[ContentKey], gone: &[ContentKey]) {
        let Some(offload) = &mut self.offload else { return };
        offload.files.extend(present);
        for key in gone {
            offload.files.remove(key);
        }
    }

    /// Notes that the file of a content had vanished or was damaged.
    pub fn note_unreadable(&mut self, key: &ContentKey) {
        if let Some(offload) = &mut self.offload {
            offload.files.remove(key);
            offload.unreadable.insert(&key.hash);
        }
    }

    /// Returns why contents of these pools and hashes did not come from the tiers below the device: the reason of the
    /// uppermost tier that has one which the device lacks.
    pub(super) fn miss_below(&self, pools: Range<usize>, hashes: &[BlockHash]) -> Option<PrefixMiss> {
        let offload = self.offload.as_ref()?;
        let keys = pools.flat_map(|pool| hashes.iter().map(move |hash| ContentKey { pool, hash: *hash }));
        let absent: Vec<ContentKey> = keys.filter(|key| !self.is_cached(key)).collect();
        let is_unreadable = |key: &ContentKey| offload.unreadable.contains(&key.hash);
        if absent.iter().any(|key| offload.is_near(key)) {
            Some(PrefixMiss::HostMemory)
        } else if absent.iter().any(|key| offload.files.contains(key)) {
            Some(PrefixMiss::Files)
        } else {
            absent.iter().any(is_unreadable).then_some(PrefixMiss::Unreadable)
        }
    }

    /// Returns the contents of host memory, least recently used first.
    pub fn memory_contents(&self) -> Vec<ContentKey> {
        self.offload.iter().flat_map(|offload| offload.memory.keys().copied()).collect()
    }

    /// Returns the contents that must be read from files so that a sequence of `num_tokens` tokens can continue from
    /// its longest stored prefix. Also returns the number of tokens that they add to the prefix. They take at most half
    /// of host memory; a longer prefix is cut. The other contents of the prefix count as used.
    pub fn missing_files(&mut self, chain: &HashChain, num_tokens: usize) -> (Vec<ContentKey>, usize) {
        let (missing, blocks, num_added) = self.find_missing(chain, num_tokens);
        let needed: Vec<ContentKey> = self.needed_at(chain, blocks).collect();
        if let Some(offload) = &mut self.offload {
            // In this order the end of the prefix leaves host memory before its beginning.
            needed.iter().rev().for_each(|key| offload.memory.touch(key));
        }
        (missing, num_added)
    }

    /// Returns the contents to read, the blocks of the prefix, and the tokens that are added to it.
    fn find_missing(&self, chain: &HashChain, num_tokens: usize) -> (Vec<ContentKey>, usize, usize) {
        let nothing = (Vec::new(), 0, 0);
        let Some(offload) = self.offload.as_ref().filter(|offload| !offload.files.is_empty()) else { return nothing };
        let room = offload.memory.capacity() / 2;
        let is_near = |key: &ContentKey| self.is_cached(key) || offload.is_near(key);
        let near = self.longest_prefix(chain, num_tokens, &is_near).found;
        let mut most = num_tokens;
        loop {
            let far = self.longest_prefix(chain, most, &|key| self.is_cached(key) || offload.is_anywhere(key)).found;
            if far <= near {
                return nothing;
            }
            let below: Vec<_> = self.needed_at(chain, far).filter(|key| !self.is_cached(key)).collect();
            let missing: Vec<_> = below.iter().copied().filter(|key| !offload.is_near(key)).collect();
            // Contents that are read must not push out the rest of the prefix.
            if offload.bytes_with_entries(&missing) <= room
                && offload.bytes_with_entries(&below) <= offload.memory.capacity()
            {
                return (missing, far, (far - near) * self.config.block_size);
            }
            // Half of what is added, and at least one block less.
            most = (near + (far - near) / 2) * self.config.block_size + 1;
        }
    }

    /// Counts prompt tokens that were found below the device.
    pub fn count_memory_hit(&mut self, num_tokens: usize) {
        if let Some(offload) = &mut self.offload {
            offload.counters.memory_hit_tokens += num_tokens as u64;
        }
    }

    /// Counts prompt tokens that came from files.
    pub fn count_disk_hit(&mut self, num_tokens: usize) {
        if let Some(offload) = &mut self.offload {
            offload.counters.disk_hit_tokens += num_tokens as u64;
        }
    }

    /// Returns zeros if nothing is offloaded.
    pub fn offload_stats(&self) -> OffloadStats {
        self.offload.as_ref().map_or_else(OffloadStats::default, Offload::stats)
    }

    /// True if a block or slot of the device has this content.
    pub(super) fn is_cached(&self, key: &ContentKey) -> bool {
        self.pool(key.pool).is_some_and(|pool| pool.index.get(&key.hash).is_some())
    }

    /// Returns the pool of a group, or that of the states after them.
    pub(super) fn pool(&self, index: usize) -> Option<&Pool> {
        let states = || self.states.as_ref().map(|states| &states.pool);
        self.groups.get(index).map(|group| &group.pool).or_else(states)
    }

    /// Forgets the lower tiers. The caller forgets the copies that are under way.
    pub(super) fn clear_offload(&mut self) {
        if let Some(offload) = &mut self.offload {
            offload.clear();
        }
    }
}
