//! Checks a batch before a device reads it: its parts have to fit each other.

use crate::batch::Batch;
use crate::{Error, Result};

/// Checks that the parts of a batch fit each other, so that the ops may index without asking again. Block ids and slots
/// are checked where they are used, against the pool.
///
/// # Errors
/// `Error::Internal`: batches are made by the scheduler, never by a caller.
pub(super) fn validate_batch(batch: &Batch) -> Result<()> {
    let (n, s) = (batch.num_tokens(), batch.num_seqs());
    let ensure = |ok: bool, what: &str| {
        if ok { Ok(()) } else { Err(Error::internal(format!("batch of {n} tokens, {s} sequences: {what}"))) }
    };
    ensure(batch.positions.len() == n, "positions are not one per token")?;
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
    ensure(batch.logits_indices.iter().all(|&index| (index as usize) < n), "logits of a token that is not there")
}

/// Returns whether `offsets` cuts `total` things into `parts` runs.
fn is_cumulative(offsets: &[u32], parts: usize, total: usize) -> bool {
    offsets.len() == parts + 1
        && offsets[0] == 0
        && offsets.is_sorted()
        && offsets.last().is_some_and(|&last| last as usize == total)
}
