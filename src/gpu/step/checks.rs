//! Checks of a batch's integers before kernels use them as indices. The kernels do not check again.

use crate::backend::{KvLayerSpec, StateLayerSpec, TableRow};
use crate::batch::{Batch, GroupTables, NULL_BLOCK};
use crate::{Error, Result};

/// A property of a batch that an op relies on. Each replay of a captured graph repeats the checks of its ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Token ids are rows of an embedding table.
    TokenIds { rows: usize },
    /// Tokens have rows in a table of this many rows.
    TableRows { row: TableRow, rows: usize },
    /// Slots are inside the cache.
    Slots { group: usize, spec: KvLayerSpec },
    /// Blocks that attention reads are inside the cache.
    Tables { group: usize, spec: KvLayerSpec },
    /// Each sequence has a state, and all states are inside the pool.
    States { spec: StateLayerSpec },
}

impl Check {
    /// # Errors
    /// `Error::InvalidRequest` for a token outside the vocabulary, else `Error::Internal`, since the scheduler makes
    /// slots and tables.
    pub fn run(self, batch: &Batch) -> Result<()> {
        match self {
            Self::TokenIds { rows } => match batch.token_ids.iter().find(|&&id| id as usize >= rows) {
                Some(id) => Err(Error::invalid("token id", id, format!("less than the vocabulary's {rows}"))),
                None => Ok(()),
            },
            Self::TableRows { row, rows } => row.check(batch, rows),
            Self::Slots { group, spec } => {
                let num_slots = spec.num_blocks * spec.block_size;
                match tables(batch, group)?.slot_mapping.iter().find(|&&slot| slot as usize >= num_slots) {
                    Some(slot) => {
                        Err(Error::internal(format!("KV slot {slot} is outside the pool of {num_slots} slots")))
                    }
                    None => Ok(()),
                }
            }
            Self::Tables { group, spec } => {
                tables(batch, group)?;
                (0..batch.num_seqs()).try_for_each(|seq| check_table(batch, group, seq, spec))
            }
            Self::States { spec } => spec.check(batch),
        }
    }
}

/// Checks the blocks that the tokens of one sequence see.
fn check_table(batch: &Batch, group: usize, seq: usize, spec: KvLayerSpec) -> Result<()> {
    let (num_blocks, size) = (spec.num_blocks, spec.block_size);
    let Some(&first) = batch.positions[batch.tokens_of(seq)].first() else { return Ok(()) };
    let table = batch.block_table(group, seq);
    let context = batch.context_lens[seq];
    let needed = spec.kind.keys(first, context).start as usize / size..(context as usize).div_ceil(size);
    let Some(blocks) = table.get(needed.clone()) else {
        return Err(Error::internal(format!("a block table of {} for blocks {needed:?}", table.len())));
    };
    match blocks.iter().find(|&&block| block as usize >= num_blocks) {
        None => Ok(()),
        Some(&NULL_BLOCK) => Err(Error::internal("a null block stands where tokens are to be read")),
        Some(block) => Err(Error::internal(format!("block {block} is outside the pool of {num_blocks} blocks"))),
    }
}

fn tables(batch: &Batch, group: usize) -> Result<&GroupTables> {
    let have = batch.groups.len();
    batch.groups.get(group).ok_or_else(|| Error::internal(format!("KV group {group} of a batch with {have}")))
}
