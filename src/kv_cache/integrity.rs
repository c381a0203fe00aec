//! Checks of the invariants that hold after every operation.

use super::block_table::SeqBlocks;
use super::offload::Offload;
use super::pool::Pool;
use super::{BlockId, KvCache};
use crate::batch::GroupKind;
use crate::{Error, Result};

impl KvCache {
    /// Checks the state of each block and state slot: free + cached + owned = total, no block in two states, an intact
    /// free list, and an index that finds every findable content.
    ///
    /// # Errors
    /// `Internal` naming the broken invariant.
    pub fn check_integrity(&self) -> Result<()> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        self.groups.iter().zip(&self.config.groups).enumerate().try_for_each(|(g, (group, config))| {
            check_pool(&group.pool, config.num_blocks).map_err(|problem| broken(g, &problem))
        })?;
        self.offload.iter().try_for_each(Offload::check)?;
        self.states.iter().try_for_each(|states| {
            check_pool(&states.pool, states.config.num_slots).map_err(|problem| broken_states(&problem))
        })
    }

    /// Checks that `holders` and loads are the only owners of blocks and slots, so every reference count is the number
    /// of them that list it. Checks that the blocks that count as drafted for a holder are marked so.
    ///
    /// # Errors
    /// `Internal` naming the block or slot whose count differs, or the block that is not drafted.
    pub fn check_owners<'a>(&self, holders: impl Iterator<Item = &'a SeqBlocks> + Clone) -> Result<()> {
        for (g, group) in self.groups.iter().enumerate() {
            let named = holders.clone().flat_map(|holder| holder.table(g)).filter(|id| !id.is_null());
            let named = named.copied().chain(self.loading(g));
            check_counts(&group.pool, named).map_err(|problem| broken(g, &problem))?;
            if group.kind == GroupKind::Full {
                let drafted = holders.clone().flat_map(|holder| &holder.table(g)[..holder.num_drafted]);
                check_drafted(&group.pool, drafted.copied()).map_err(|problem| broken(g, &problem))?;
            }
        }
        self.states.iter().try_for_each(|states| {
            let named = holders.clone().flat_map(|holder| holder.states.held()).chain(self.loading(self.groups.len()));
            check_counts(&states.pool, named).map_err(|problem| broken_states(&problem))
        })
    }
}

fn broken(group: usize, problem: &str) -> Error {
    Error::internal(format!("KV cache group {group}: {problem}"))
}

fn broken_states(problem: &str) -> Error {
    Error::internal(format!("slots of states: {problem}"))
}

fn check_counts(pool: &Pool, named: impl Iterator<Item = BlockId>) -> std::result::Result<(), String> {
    let mut owners = vec![0u32; pool.blocks.len()];
    for id in named {
        *owners.get_mut(id.index()).ok_or_else(|| format!("a sequence names {id:?}"))? += 1;
    }
    match pool.blocks.iter().zip(&owners).position(|(block, owners)| block.refs != *owners) {
        None => Ok(()),
        Some(i) => Err(format!("{i} counts {} owners and has {}", pool.blocks[i].refs, owners[i])),
    }
}

fn check_drafted(pool: &Pool, mut drafted: impl Iterator<Item = BlockId>) -> std::result::Result<(), String> {
    match drafted.find(|id| !pool.get(*id).is_ok_and(|block| block.is_drafted)) {
        None => Ok(()),
        Some(id) => Err(format!("{id:?} lacks what the draft model is said to have computed")),
    }
}

fn check_pool(pool: &Pool, num_blocks: usize) -> std::result::Result<(), String> {
    if pool.blocks.len() != num_blocks {
        return Err(format!("{} blocks of {num_blocks}", pool.blocks.len()));
    }
    let mut listed = vec![false; num_blocks];
    for id in pool.free.iter() {
        if std::mem::replace(&mut listed[id.index()], true) {
            return Err(format!("{id:?} is in the free list twice"));
        }
    }
    let num_listed = listed.iter().filter(|listed| **listed).count();
    if num_listed != pool.free.len() {
        return Err(format!("the free list holds {num_listed} blocks and counts {}", pool.free.len()));
    }
    let (mut cached, mut named, mut owned) = (0, 0, 0);
    for (i, block) in pool.blocks.iter().enumerate() {
        let id = BlockId(i as u32);
        if (block.refs == 0) != listed[i] || listed[i] != pool.free.contains(id) {
            return Err(format!("{id:?} has {} owners, in the free list: {}", block.refs, listed[i]));
        }
        owned += usize::from(block.refs > 0);
        if block.is_drafted && block.hash.is_none() {
            return Err(format!("{id:?} has no content, and the draft model's keys and values"));
        }
        if let Some(hash) = &block.hash {
            named += 1;
            cached += usize::from(block.refs == 0);
            if !pool.index.contains(hash, id) {
                return Err(format!("{id:?} has content that the index does not find"));
            }
        }
    }
    if pool.index.len() != named {
        return Err(format!("the index finds {} blocks, {named} have content", pool.index.len()));
    }
    if pool.num_cached != cached {
        return Err(format!("{cached} blocks are cached, {} are counted", pool.num_cached));
    }
    let free = pool.free.len() - cached;
    if free + cached + owned != num_blocks {
        return Err(format!("{free} free + {cached} cached + {owned} owned blocks are not {num_blocks}"));
    }
    Ok(())
}
