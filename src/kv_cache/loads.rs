//! Loads: contents of host memory that are copied to the device, each into a block that belongs to no sequence yet.
//!
//! A load goes on whatever becomes of the sequence that needs it. At its end the block gets its name and is cached like
//! any other. So a cancelled request needs no undoing, and others find what was loaded for it.

use std::collections::HashMap;

use super::events::StoredBlock;
use super::offload::Loading;
use super::plan::{AllocPlan, PrefixHit};
use super::pool::Pool;
use super::{BlockHash, BlockId, ContentKey, HashChain, KvCache, Tokens};
use crate::{Error, Result};

impl KvCache {
    /// True if a hit has contents in host memory, and fewer than `most` are on their way to the device.
    pub fn may_begin_loads(&self, hit: &PrefixHit, most: usize) -> bool {
        self.num_loading() < most && !self.places(hit).is_empty()
    }

    /// True if a content has a block that it is being copied to.
    pub(super) fn is_on_its_way(&self, pool: usize, hash: &BlockHash) -> bool {
        self.offload.as_ref().is_some_and(|offload| offload.loading.contains_key(&ContentKey { pool, hash: *hash }))
    }

    /// Returns the number of contents that are on their way to the device.
    pub fn num_loading(&self) -> usize {
        self.offload.as_ref().map_or(0, |offload| offload.loading.len())
    }

    /// Takes blocks for contents of a planned hit that are in host memory, and for nothing else of the plan. At most
    /// `most` contents are then on their way. The rest of the hit counts as used, so that it is still there when these
    /// have arrived. `take_moves` returns the loads. Returns their number.
    ///
    /// # Errors
    /// `Internal` if the cache has changed since the plan was made; then nothing is done.
    pub fn begin_loads(&mut self, plan: AllocPlan, chain: &HashChain, tokens: &Tokens, most: usize) -> Result<usize> {
        if plan.version != self.version {
            return Err(Error::internal("loads were planned before the KV cache changed"));
        }
        let hit = plan.hit;
        for (group, table) in self.groups.iter_mut().zip(&hit.tables) {
            table.iter().filter(|id| !id.is_null()).try_for_each(|id| group.pool.add_owner(*id))?;
        }
        let state = hit.state.and_then(std::result::Result::ok);
        if let (Some(states), Some(slot)) = (&mut self.states, state) {
            states.pool.add_owner(slot)?;
        }
        let places = self.places(&hit);
        if let Some(offload) = &mut self.offload {
            // The end of a prefix leaves host memory before its beginning.
            places.iter().rev().for_each(|(key, _)| offload.touch(key));
        }
        let num_loads = most.saturating_sub(self.num_loading()).min(places.len());
        for (key, index) in &places[..num_loads] {
            self.begin_load(key.pool, *index, chain, tokens)?;
        }
        for (group, table) in self.groups.iter_mut().zip(&hit.tables) {
            // The end of a prefix is evicted before its beginning.
            table.iter().rev().filter(|id| !id.is_null()).try_for_each(|id| group.pool.release(*id, self.now))?;
        }
        if let (Some(states), Some(slot)) = (&mut self.states, state) {
            states.pool.release(slot, self.now)?;
        }
        Ok(num_loads)
    }

    /// Begins to load contents of a sequence that is not scheduled yet, while half of each pool is left for others.
    /// Those that are not in host memory are left out.
    pub fn load_early(&mut self, keys: &[ContentKey], chain: &HashChain, tokens: &Tokens) {
        let indices: HashMap<&BlockHash, usize> = chain.hashes().iter().zip(0..).collect();
        for key in keys {
            let may_load = self.offload.as_ref().is_some_and(|offload| offload.may_load(key)) && !self.is_cached(key);
            let has_room = self.pool(key.pool).is_some_and(|pool| pool.num_available() > pool.blocks.len() / 2);
            if let Some(index) = indices.get(&key.hash).filter(|_| may_load && has_room)
                && let Err(error) = self.begin_load(key.pool, *index, chain, tokens)
            {
                self.fault.get_or_insert(error);
            }
        }
    }

    fn begin_load(&mut self, pool: usize, index: usize, chain: &HashChain, tokens: &Tokens) -> Result<()> {
        let hash = *chain.hashes().get(index).ok_or_else(|| Error::internal(format!("block {index} has no hash")))?;
        self.version += 1;
        let (block, stored) = match self.groups.get(pool).map(|group| group.kind) {
            Some(kind) => {
                let describe = || StoredBlock::of(kind, index, chain, tokens, self.config.block_size);
                let stored = self.events.is_some().then(describe);
                (self.allocate(pool)?, stored)
            }
            None => {
                let states = self.states.as_mut().ok_or_else(without_states)?;
                (states.allocate(self.now, &mut self.offload)?, None)
            }
        };
        if let Some(offload) = &mut self.offload {
            offload.load(ContentKey { pool, hash }, block, stored);
        }
        Ok(())
    }

    /// Ends a load whose bytes have arrived: the content can be hit from now on.
    ///
    /// # Errors
    /// `Internal` for a content that is not being loaded.
    pub fn end_load(&mut self, key: &ContentKey) -> Result<()> {
        let loading = self.offload.as_mut().and_then(|offload| {
            offload.counters.loaded += 1;
            offload.loading.remove(key)
        });
        let unknown = || Error::internal(format!("{key:?} was not being loaded"));
        let Loading { block, stored } = loading.ok_or_else(unknown)?;
        self.version += 1;
        self.num_gains += 1;
        let Some(group) = self.groups.get_mut(key.pool) else {
            let states = self.states.as_mut().ok_or_else(without_states)?;
            states.pool.set_loaded(block);
            return states.name(block, key.hash, self.now);
        };
        // Otherwise it was computed meanwhile, and this block stays empty.
        if group.pool.index.get(&key.hash).is_none() {
            group.pool.set_hash(block, key.hash)?;
            group.pool.set_loaded(block);
            if let (Some(log), Some(stored)) = (&mut self.events, stored) {
                log.stored(key.pool, stored);
            }
        }
        group.pool.release(block, self.now)
    }

    /// Frees the blocks of all loads. The caller copies and computes nothing more.
    pub fn abandon_loads(&mut self) {
        let loading = self.offload.as_mut().map(|offload| std::mem::take(&mut offload.loading)).unwrap_or_default();
        for (key, Loading { block, .. }) in loading {
            let pool = match self.groups.get_mut(key.pool) {
                Some(group) => Some(&mut group.pool),
                None => self.states.as_mut().map(|states| &mut states.pool),
            };
            if let Some(Err(error)) = pool.map(|pool| pool.release(block, self.now)) {
                self.fault.get_or_insert(error);
            }
        }
    }

    /// Returns the blocks of a pool that are being filled.
    pub(super) fn loading(&self, pool: usize) -> impl Iterator<Item = BlockId> {
        let loading = self.offload.iter().flat_map(|offload| &offload.loading);
        loading.filter(move |(key, _)| key.pool == pool).map(|(_, loading)| loading.block)
    }

    /// True if the content of a cached block came from host memory, and no sequence has used it since.
    pub(super) fn was_loaded(&self, key: &ContentKey) -> bool {
        let is_loaded = |pool: &Pool| pool.get(pool.index.get(&key.hash)?).ok().map(|block| block.is_loaded);
        self.pool(key.pool).and_then(is_loaded).unwrap_or(false)
    }

    /// Returns the contents of a hit that are in host memory and not on their way, each with the index of its block.
    fn places(&self, hit: &PrefixHit) -> Vec<(ContentKey, usize)> {
        let blocks = hit.loads.iter().map(|load| (ContentKey { pool: load.group, hash: load.hash }, load.index));
        let last = (hit.num_tokens / self.config.block_size).saturating_sub(1);
        let state = hit
            .state
            .and_then(std::result::Result::err)
            .map(|hash| (ContentKey { pool: self.groups.len(), hash }, last));
        blocks.chain(state).filter(|(key, _)| !self.is_on_its_way(key.pool, &key.hash)).collect()
    }
}

fn without_states() -> Error {
    Error::internal("a snapshot of a model without states")
}
