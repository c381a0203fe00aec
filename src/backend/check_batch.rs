//! Checks that the parts of a batch are consistent before a device reads it.

use crate::batch::{Batch, NO_STATE, StateTables};
use crate::{Error, Result};

/// Checks that the parts of a batch are consistent, so that ops may index without further checks. Block ids and slots
/// are checked against the pool at their use.
///
/// # Errors
/// `Error::Internal`, since only the scheduler makes batches.
pub fn validate_batch(batch: &Batch) -> Result<()> {
    let (n, s) = (batch.num_tokens(), batch.num_seqs());
    let ensure = |ok: bool, what: &str| {
        if ok { Ok(()) } else { Err(Error::internal(format!("batch of {n} tokens, {s} sequences: {what}"))) }
    };
    ensure(batch.positions.len() == n, "positions are not one per token")?;
    ensure(batch.chosen.iter().all(|chosen| (chosen.index as usize) < n), "a chosen token that is not there")?;
    ensure(is_cumulative(&batch.cu_seqlens_q, s, n), "cu_seqlens_q does not cut the tokens into sequences")?;
    for seq in 0..s {
        let positions = &batch.positions[batch.tokens_of(seq)];
        ensure(positions.is_sorted_by(|a, b| a < b), "positions do not increase")?;
        ensure(positions.last().is_none_or(|&last| last < batch.context_lens[seq]), "a token is beyond its context")?;
    }
    for group in &batch.groups {
        ensure(group.slot_mapping.len() == n, "slots are not one per token")?;
        ensure(is_cumulative(&group.cu_blocks, s, group.block_tables.len()), "cu_blocks does not cut block_tables")?;
    }
    validate_states(batch)?;
    ensure(batch.logits_indices.iter().all(|&index| (index as usize) < n), "logits of a token that is not there")
}

/// Checks that each position of a batch has a row in a table of `rows` rows.
///
/// # Errors
/// `Error::Internal`, since no sequence may be longer than the model's table.
pub(super) fn check_positions(batch: &Batch, rows: usize) -> Result<()> {
    match batch.positions.iter().find(|&&position| position as usize >= rows) {
        None => Ok(()),
        Some(position) => Err(Error::internal(format!("position {position} of a table of {rows} positions"))),
    }
}

/// Checks that the states of a batch, if any, belong to its sequences. No slot may be written twice, or be written by
/// one sequence and read by another.
fn validate_states(batch: &Batch) -> Result<()> {
    let StateTables { reads, writes, cu_writes } = &batch.states;
    if reads.is_empty() && writes.is_empty() && cu_writes.is_empty() {
        return Ok(());
    }
    let seqs = batch.num_seqs();
    if reads.len() != seqs || !is_cumulative(cu_writes, seqs, writes.len()) {
        return Err(Error::internal(format!("states of {} sequences in a batch of {seqs}", reads.len())));
    }
    let mut written = Vec::with_capacity(writes.len());
    for seq in 0..seqs {
        let writes = batch.states.writes_of(seq);
        let tokens = batch.tokens_of(seq).len();
        let is_inside = |count: u32| (1..=tokens).contains(&(count as usize));
        if !writes.is_sorted_by_key(|write| write.num_tokens) || !writes.iter().all(|w| is_inside(w.num_tokens)) {
            return Err(Error::internal(format!("{writes:?} of a sequence of {tokens} tokens")));
        }
        written.extend(writes.iter().map(|write| (write.slot, seq)));
    }
    written.sort_unstable();
    if let Some(pair) = written.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(Error::internal(format!("state {} is written twice", pair[0].0)));
    }
    for (seq, &slot) in reads.iter().enumerate().filter(|&(_, &slot)| slot != NO_STATE) {
        if let Ok(at) = written.binary_search_by_key(&slot, |&(slot, _)| slot)
            && written[at].1 != seq
        {
            return Err(Error::internal(format!("state {slot} is written by one sequence and read by another")));
        }
    }
    Ok(())
}

/// True if `offsets` cuts `total` items into `parts` consecutive ranges.
fn is_cumulative(offsets: &[u32], parts: usize, total: usize) -> bool {
    offsets.len() == parts + 1
        && offsets[0] == 0
        && offsets.is_sorted()
        && offsets.last().is_some_and(|&last| last as usize == total)
}
