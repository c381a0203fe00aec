//! Allocation in two steps: a plan of what would be taken, and its commit. A plan that cannot be made changes nothing,
//! and a committed plan cannot fail half-way.

use std::ops::Range;

use super::block_table::{SeqBlocks, Tables};
use super::groups::Group;
use super::seq_states::StateAt;
use super::{BlockHash, BlockId, ContentKey, HashChain, KvCache, Snapshot};
use crate::batch::{BlockCopy, GroupKind};
use crate::{Error, Result};

/// Cached content that a sequence can begin with. It is valid until the cache changes.
#[derive(Debug, Default)]
pub struct PrefixHit {
    /// Tokens that need not be computed: a multiple of the block size, less than the sequence's length.
    pub num_tokens: usize,
    /// Tokens whose keys and values are cached, with or without the recurrent state after them.
    pub num_held: usize,
    /// The number of the first `num_tokens` tokens for which the draft model's keys and values are cached as well.
    pub num_drafted: usize,
    /// The blocks; placeholders stand for those that are not needed, and for `loads`.
    pub(super) tables: Tables,
    /// Blocks whose contents come from host memory.
    pub(super) loads: Vec<Load>,
    /// Tokens that could not have been found without the tiers below the device.
    pub num_below: usize,
    /// The snapshot of the state after them, for a model with recurrent states: its slot, or its hash if it comes from
    /// host memory.
    pub(super) state: Option<std::result::Result<BlockId, BlockHash>>,
}

/// An entry of a hit's block table that is to be filled from host memory.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) group: usize,
    pub(super) index: usize,
    pub(super) hash: BlockHash,
}

/// The lengths of prefixes in blocks.
pub(super) struct Longest {
    /// The keys and values are cached, with or without the recurrent state after them.
    held: usize,
    /// Everything is cached.
    pub(super) found: usize,
}

impl PrefixHit {
    /// True if some of it is in host memory. No sequence can begin with it before that is loaded (`begin_loads`).
    pub fn has_loads(&self) -> bool {
        self.num_loads() > 0
    }

    /// Returns the number of its contents that are in host memory, or on their way from there.
    pub fn num_loads(&self) -> usize {
        self.loads.len() + usize::from(matches!(self.state, Some(Err(_))))
    }
}

/// The blocks that one allocation takes.
#[derive(Debug)]
#[must_use = "a plan takes nothing until it is committed"]
pub struct AllocPlan {
    /// The version of the cache for which the plan was made.
    pub(super) version: u64,
    pub(super) hit: PrefixHit,
    /// The first position that will be written.
    write_start: usize,
    /// Groups that need blocks.
    needs: Vec<GroupNeed>,
    /// State slots that the sequence lacks.
    num_slots: usize,
    /// Token counts whose states get their own slots.
    keep_states: Range<usize>,
}

#[derive(Debug)]
struct GroupNeed {
    group: usize,
    /// Entries of the block table whose blocks have other owners and will be written.
    copy_on_write: Vec<usize>,
    /// The number of blocks to append to the table.
    append: usize,
}

/// The blocks that a sequence needs next.
#[derive(Debug, Clone, Default)]
pub struct Demand<'a> {
    /// Positions that the next step writes.
    pub write: Range<usize>,
    /// Full-attention groups get blocks up to here at once: a prompt's end, so that the prompt is never stalled.
    pub reserve: usize,
    /// Blocks that must stay available in the pool of each group; empty if there is no such limit.
    pub keep_free: &'a [usize],
    /// Token counts to which the sequence may be cut back after the step: those before drafts. The next step saves the
    /// recurrent state after each of them in its own slot.
    pub keep_states: Range<usize>,
}

impl KvCache {
    /// Returns the longest cached prefix of the sequence hashed by `chain`. It leaves at least one of `num_tokens` to
    /// compute, since that token's logits are needed. With recurrent states a prefix ends at a snapshot. Contents of
    /// host memory count like those of the device.
    pub fn find_prefix(&self, chain: &HashChain, num_tokens: usize) -> PrefixHit {
        let is_below = |key: &ContentKey| self.offload.as_ref().is_some_and(|offload| offload.is_near(key));
        self.find_with(chain, num_tokens, &|key| self.is_cached(key) || is_below(key))
    }

    /// Does the same without host memory.
    pub fn find_on_device(&self, chain: &HashChain, num_tokens: usize) -> PrefixHit {
        self.find_with(chain, num_tokens, &|key| self.is_cached(key))
    }

    fn find_with(&self, chain: &HashChain, num_tokens: usize, has: &dyn Fn(&ContentKey) -> bool) -> PrefixHit {
        if !self.config.enable_prefix_caching {
            return PrefixHit::default();
        }
        let block_size = self.config.block_size;
        let Longest { held, found: blocks } = self.longest_prefix(chain, num_tokens, has);
        let nothing = PrefixHit { num_held: held * block_size, ..PrefixHit::default() };
        if blocks == 0 {
            return nothing;
        }
        let hashes = &chain.hashes()[..blocks];
        let (mut tables, mut loads) = (Tables::new(), Vec::new());
        for (g, group) in self.groups.iter().enumerate() {
            let first = group.first_needed_block(blocks * block_size, block_size).min(blocks);
            let mut table = vec![BlockId::NULL; blocks];
            for (i, hash) in hashes.iter().enumerate().skip(first) {
                match group.pool.index.get(hash) {
                    Some(id) => table[i] = id,
                    None => loads.push(Load { group: g, index: i, hash: *hash }),
                }
            }
            tables.push(table);
        }
        let last = hashes[blocks - 1];
        let state = self.states.as_ref().map(|states| states.get(&last).ok_or(last));
        let num_drafted = self.num_drafted(&tables) * block_size;
        let hit = PrefixHit { num_tokens: blocks * block_size, num_drafted, tables, loads, state, ..nothing };
        if self.offload.is_none() {
            return hit;
        }
        let was_here = |key: &ContentKey| self.is_cached(key) && !self.was_loaded(key);
        let without = self.longest_prefix(chain, num_tokens, &was_here).found * block_size;
        PrefixHit { num_below: hit.num_tokens - without, ..hit }
    }

    /// Returns the longest prefixes in whole blocks of which everything that a sequence needs is somewhere, according
    /// to `has`.
    pub(super) fn longest_prefix(
        &self,
        chain: &HashChain,
        num_tokens: usize,
        has: &dyn Fn(&ContentKey) -> bool,
    ) -> Longest {
        let (block_size, hashes) = (self.config.block_size, chain.hashes());
        let mut blocks = hashes.len().min(num_tokens.saturating_sub(1) / block_size);
        let holds = |pool: usize, hash: &BlockHash| has(&ContentKey { pool, hash: *hash });
        for (g, _) in self.groups.iter().enumerate().filter(|(_, group)| group.kind == GroupKind::Full) {
            blocks = hashes[..blocks].iter().take_while(|hash| holds(g, hash)).count();
        }
        let sliding: Vec<Vec<bool>> = (0..self.groups.len())
            .filter(|g| self.groups[*g].kind != GroupKind::Full)
            .map(|g| self.groups[g].usable_prefixes(&hashes[..blocks], block_size, |hash| holds(g, hash)))
            .collect();
        let has_keys = |blocks: usize| sliding.iter().all(|usable| usable[blocks]);
        let held = (1..=blocks).rev().find(|blocks| has_keys(*blocks)).unwrap_or(0);
        let has_state = |blocks: usize| self.states.is_none() || holds(self.groups.len(), &hashes[blocks - 1]);
        let found = (1..=held).rev().find(|blocks| has_state(*blocks) && has_keys(*blocks)).unwrap_or(0);
        Longest { held, found }
    }

    /// Returns all contents that a sequence needs in order to continue after `blocks` blocks.
    pub(super) fn needed_at<'a>(&'a self, chain: &'a HashChain, blocks: usize) -> impl Iterator<Item = ContentKey> {
        let (block_size, hashes) = (self.config.block_size, &chain.hashes()[..blocks]);
        let of_groups = self.groups.iter().enumerate().flat_map(move |(pool, group)| {
            let first = group.first_needed_block(blocks * block_size, block_size).min(blocks);
            hashes[first..].iter().map(move |hash| ContentKey { pool, hash: *hash })
        });
        let of_states = self.states.as_ref().and(hashes.last());
        of_groups.chain(of_states.map(|hash| ContentKey { pool: self.groups.len(), hash: *hash }))
    }

    /// Returns the leading blocks of a hit with the draft model's keys and values, which are in full-attention groups.
    fn num_drafted(&self, tables: &Tables) -> usize {
        let full = self.groups.iter().zip(tables).filter(|(group, _)| group.kind == GroupKind::Full);
        let drafted = |(group, table): (&Group, &Vec<BlockId>)| {
            table.iter().take_while(|id| group.pool.get(**id).is_ok_and(|block| block.is_drafted)).count()
        };
        full.map(drafted).min().unwrap_or(0)
    }

    /// Returns the prefix tokens that a sequence of `num_tokens` hashed by `mine` cannot find yet, but will find soon.
    /// They become available once the positions `computing` of the sequence hashed by `theirs`, and its `snapshots`,
    /// are computed.
    pub fn tokens_shared_soon(
        &self,
        mine: &HashChain,
        num_tokens: usize,
        theirs: &HashChain,
        computing: Range<usize>,
        snapshots: &[Snapshot],
    ) -> usize {
        let block_size = self.config.block_size;
        let first = computing.start / block_size;
        let end = (computing.end / block_size).min(num_tokens.saturating_sub(1) / block_size);
        // A hash identifies a whole prefix, so equal hashes mean that everything before is equal.
        let is_shared = |i: &usize| mine.hashes().get(*i).is_some_and(|hash| theirs.hashes().get(*i) == Some(hash));
        let num_shared = (first..end).take_while(is_shared).count();
        if let Some(states) = &self.states {
            // The keys and values may be cached already, so the last state that both have in common counts.
            let ends = snapshots.iter().map(|snapshot| snapshot.position / block_size);
            let pool = self.groups.len();
            let is_found = |hash: &BlockHash| states.get(hash).is_some() || self.is_in_memory(pool, hash);
            let is_new = |last: &usize| mine.hashes().get(*last).is_some_and(|name| !is_found(name));
            let ends = ends.filter(|end| *end > first && *end <= first + num_shared && is_new(&(end - 1)));
            return ends.max().map_or(0, |end| (end - first) * block_size);
        }
        let is_named = |hash: &BlockHash| {
            let mut pools = self.groups.iter().enumerate();
            pools.all(|(g, group)| group.pool.index.get(hash).is_some() || self.is_in_memory(g, hash))
        };
        if mine.hashes().get(first).is_some_and(is_named) {
            return 0;
        }
        num_shared * block_size
    }

    /// Plans the blocks for `seq` and `demand`, and the state slots that it lacks. `seq` must be empty if it begins
    /// with a `hit`. `None` if there are too few of either.
    pub fn plan(&self, seq: &SeqBlocks, hit: PrefixHit, demand: &Demand<'_>) -> Option<AllocPlan> {
        let block_size = self.config.block_size;
        let mut needs = Vec::new();
        for (g, group) in self.groups.iter().enumerate() {
            let table = &seq.tables[g];
            let hit_table = hit.tables.get(g).map_or(&[][..], Vec::as_slice);
            let end = match group.kind {
                GroupKind::Full | GroupKind::Bidirectional { .. } => demand.reserve.max(demand.write.end),
                GroupKind::Sliding { .. } | GroupKind::Chunked { .. } => demand.write.end,
            };
            let append = end.div_ceil(block_size).saturating_sub(table.len().max(hit_table.len()));
            let written = demand.write.start / block_size..demand.write.end.div_ceil(block_size).min(table.len());
            let is_shared = |i: &usize| group.pool.get(table[*i]).is_ok_and(|block| block.refs > 1);
            let copy_on_write: Vec<usize> = written.filter(is_shared).collect();
            // A hit without an owner is in the free list, so it is not available for other allocations.
            let is_free = |id: &&BlockId| group.pool.get(**id).is_ok_and(|block| block.refs == 0);
            let revived = hit_table.iter().filter(|id| !id.is_null()).filter(is_free).count();
            let lacks_block = |load: &&Load| load.group == g && !self.is_on_its_way(g, &load.hash);
            let loaded = hit.loads.iter().filter(lacks_block).count();
            let taken = append + copy_on_write.len() + revived + loaded;
            let keep_free = demand.keep_free.get(g).copied().unwrap_or(0);
            if taken.saturating_add(keep_free) > group.pool.num_available() {
                return None;
            }
            if append + copy_on_write.len() > 0 {
                needs.push(GroupNeed { group: g, copy_on_write, append });
            }
        }
        let num_slots = self.slots_lacking(seq);
        let mut keep_states = 0..0;
        if let Some(states) = &self.states {
            keep_states = demand.keep_states.clone();
            let is_free = |slot| states.pool.get(slot).is_ok_and(|slot| slot.refs == 0);
            // A state of host memory takes a slot as well.
            let lacks_slot = |hash| !self.is_on_its_way(self.groups.len(), &hash);
            let revived = usize::from(hit.state.is_some_and(|state| state.map_or_else(lacks_slot, is_free)));
            if num_slots + keep_states.len() + revived > states.pool.num_available() {
                return None;
            }
        }
        let (version, write_start) = (self.version, demand.write.start);
        Some(AllocPlan { version, hit, write_start, needs, num_slots, keep_states })
    }

    /// Gives `seq` what `plan` says, and adds to `copies` the blocks to copy before the next step computes.
    ///
    /// # Errors
    /// `Internal` if the cache has changed since the plan was made; then nothing is done.
    pub fn commit(&mut self, plan: AllocPlan, seq: &mut SeqBlocks, copies: &mut Vec<BlockCopy>) -> Result<()> {
        if plan.version != self.version {
            return Err(Error::internal("an allocation plan was committed after the KV cache had changed"));
        }
        let has_hit = plan.hit.num_tokens > 0;
        if has_hit && (!seq.is_empty() || plan.hit.has_loads()) {
            return Err(Error::internal("a prefix hit for a sequence that has blocks, or before it was loaded"));
        }
        if has_hit || !plan.needs.is_empty() || plan.num_slots > 0 || !plan.keep_states.is_empty() {
            self.version += 1;
        }
        // Hits get their owner first, so that this allocation cannot evict them.
        let now = self.now;
        for (group, table) in self.groups.iter_mut().zip(&plan.hit.tables) {
            for id in table.iter().filter(|id| !id.is_null()) {
                group.pool.touch(*id, now)?;
            }
        }
        if let (Some(states), Some(Ok(slot))) = (&mut self.states, plan.hit.state) {
            states.pool.touch(slot, now)?;
        }
        if has_hit {
            seq.num_named = plan.hit.num_tokens / self.config.block_size;
            seq.num_drafted = plan.hit.num_drafted / self.config.block_size;
            let position = plan.hit.num_tokens;
            seq.tables = plan.hit.tables;
            seq.states
                .line
                .extend(plan.hit.state.and_then(std::result::Result::ok).map(|slot| StateAt { position, slot }));
        }
        if let Some(states) = &mut self.states {
            for _ in 0..plan.num_slots {
                seq.states.own.push(states.allocate(now, &mut self.offload)?);
            }
            for position in plan.keep_states {
                seq.states.kept.push(StateAt { position, slot: states.allocate(now, &mut self.offload)? });
            }
        }
        for need in plan.needs {
            let table = &mut seq.tables[need.group];
            for i in need.copy_on_write {
                let dst = self.allocate(need.group)?;
                let src = std::mem::replace(&mut table[i], dst);
                self.groups[need.group].pool.release(src, now)?;
                if i * self.config.block_size < plan.write_start {
                    copies.push(BlockCopy { group: need.group as u32, src: src.0, dst: dst.0 });
                }
            }
            for _ in 0..need.append {
                table.push(self.allocate(need.group)?);
            }
        }
        Ok(())
    }

    pub(super) fn allocate(&mut self, group: usize) -> Result<BlockId> {
        let pool = &mut self.groups[group].pool;
        let overcommitted = || Error::internal("an allocation plan promised more blocks than exist");
        let (id, forgotten) = pool.allocate(self.now).ok_or_else(overcommitted)?;
        let evicted = forgotten.filter(|hash| pool.index.get(hash).is_none());
        if let Some(hash) = evicted {
            self.evicted.insert(&hash);
            if let Some(log) = &mut self.events {
                log.removed(group, hash);
            }
        }
        if let Some(offload) = &mut self.offload {
            offload.taken(group, id, evicted);
        }
        Ok(id)
    }

    fn is_in_memory(&self, pool: usize, hash: &BlockHash) -> bool {
        self.offload.as_ref().is_some_and(|offload| offload.is_near(&ContentKey { pool, hash: *hash }))
    }
}
