//! Allocation in two steps: a plan of what would be taken, and its commit. A plan that cannot be made changes nothing,
//! and a committed plan cannot fail half-way.

use std::ops::Range;

use super::block_table::{SeqBlocks, Tables};
use super::groups::Group;
use super::seq_states::StateAt;
use super::{BlockId, HashChain, KvCache, Snapshot};
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
    pub(super) tables: Tables,
    /// The snapshot of the state after them, for a model with recurrent states.
    pub(super) state: Option<BlockId>,
}

/// The blocks that one allocation takes.
#[derive(Debug)]
#[must_use = "a plan takes nothing until it is committed"]
pub struct AllocPlan {
    /// The version of the cache for which the plan was made.
    version: u64,
    hit: PrefixHit,
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
    /// compute, since that token's logits are needed. With recurrent states a prefix ends at a snapshot.
    pub fn find_prefix(&self, chain: &HashChain, num_tokens: usize) -> PrefixHit {
        if !self.config.enable_prefix_caching {
            return PrefixHit::default();
        }
        let block_size = self.config.block_size;
        let hashes = chain.hashes();
        let mut blocks = hashes.len().min(num_tokens.saturating_sub(1) / block_size);
        for group in self.groups.iter().filter(|group| group.kind == GroupKind::Full) {
            blocks = group.contiguous_hits(&hashes[..blocks]);
        }
        let sliding: Vec<Vec<bool>> = self
            .groups
            .iter()
            .filter(|group| group.kind != GroupKind::Full)
            .map(|group| group.usable_prefixes(&hashes[..blocks], block_size))
            .collect();
        let has_keys = |blocks: usize| sliding.iter().all(|usable| usable[blocks]);
        let held = (1..=blocks).rev().find(|blocks| has_keys(*blocks)).unwrap_or(0);
        let nothing = PrefixHit { num_held: held * block_size, ..PrefixHit::default() };
        let snapshot = |blocks: usize| self.states.as_ref().and_then(|states| states.get(&hashes[blocks - 1]));
        let has_state = |blocks: usize| self.states.is_none() || snapshot(blocks).is_some();
        let found = (1..=held).rev().find(|blocks| has_state(*blocks) && has_keys(*blocks));
        let Some(blocks) = found else { return nothing };
        let tables: Option<Tables> =
            self.groups.iter().map(|group| group.hit_table(&hashes[..blocks], block_size)).collect();
        let Some(tables) = tables else { return nothing };
        let num_drafted = self.num_drafted(&tables) * block_size;
        PrefixHit { num_tokens: blocks * block_size, num_drafted, tables, state: snapshot(blocks), ..nothing }
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
            let is_new = |last: &usize| mine.hashes().get(*last).is_some_and(|name| states.get(name).is_none());
            let ends = ends.filter(|end| *end > first && *end <= first + num_shared && is_new(&(end - 1)));
            return ends.max().map_or(0, |end| (end - first) * block_size);
        }
        let is_named = |hash| self.groups.iter().all(|group| group.pool.index.get(hash).is_some());
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
            let taken = append + copy_on_write.len() + revived;
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
            let revived = usize::from(hit.state.is_some_and(is_free));
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
        if has_hit && !seq.is_empty() {
            return Err(Error::internal("a prefix hit was given to a sequence that has blocks"));
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
        if has_hit {
            seq.tables = plan.hit.tables;
            seq.num_named = plan.hit.num_tokens / self.config.block_size;
            seq.num_drafted = plan.hit.num_drafted / self.config.block_size;
        }
        if let Some(states) = &mut self.states {
            if let Some(slot) = plan.hit.state {
                states.pool.touch(slot, now)?;
                seq.states.line.push_back(StateAt { position: plan.hit.num_tokens, slot });
            }
            for _ in 0..plan.num_slots {
                seq.states.own.push(states.allocate(now)?);
            }
            for position in plan.keep_states {
                seq.states.kept.push(StateAt { position, slot: states.allocate(now)? });
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

    fn allocate(&mut self, group: usize) -> Result<BlockId> {
        let pool = &mut self.groups[group].pool;
        let overcommitted = || Error::internal("an allocation plan promised more blocks than exist");
        let (id, forgotten) = pool.allocate(self.now).ok_or_else(overcommitted)?;
        if let Some(hash) = forgotten.filter(|hash| pool.index.get(hash).is_none()) {
            self.evicted.insert(&hash);
            if let Some(log) = &mut self.events {
                log.removed(group, hash);
            }
        }
        Ok(id)
    }
}
