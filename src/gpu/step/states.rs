//! The integers of a step's recurrent states.

use super::{Layout, StepInputs, Words};
use crate::DeviceSlice;
use crate::Result;
use crate::batch::Batch;
use crate::launch::args::{NO_SEQUENCE, NO_STATE};

/// Places of the integers of a step's states on the device.
pub struct StateInputs<'a> {
    /// The sequence of each row.
    pub sequences: DeviceSlice<'a>,
    /// First row of each sequence.
    pub starts: DeviceSlice<'a>,
    pub reads: DeviceSlice<'a>,
    /// For each sequence, the start of its pairs in `writes`.
    pub write_starts: DeviceSlice<'a>,
    pub writes: DeviceSlice<'a>,
}

/// Returns the states that a batch of single rows may keep: the last of each sequence, and one at the end of a block.
pub(super) fn of_single_rows(rows: usize) -> usize {
    2 * rows
}

/// Writes the states of a batch. The padding rows, up to `padded`, have none.
pub(super) fn put(words: &mut Words<'_>, at: &Layout, batch: &Batch, padded: usize) {
    let tokens = batch.num_tokens();
    let padding = |value: u32| std::iter::repeat_n(value, padded - tokens);
    let states = &batch.states;
    let sequences = (0..batch.num_seqs()).flat_map(|seq| batch.tokens_of(seq).map(move |_| seq as u32));
    words.put(at.state_sequences, sequences.chain(padding(NO_SEQUENCE)));
    words.put(at.state_starts, batch.cu_seqlens_q.iter().copied().chain(padding(tokens as u32)));
    words.put(at.state_reads, states.reads.iter().copied().chain(padding(NO_STATE)));
    words.put(at.state_write_starts, states.cu_writes.iter().copied().chain(padding(states.writes.len() as u32)));
    words.put(at.state_writes, states.writes.iter().flat_map(|write| [write.num_tokens, write.slot]));
}

impl StepInputs {
    /// Returns the states of the step; `None` for a model without states.
    pub fn states(&self) -> Result<Option<StateInputs<'_>>> {
        if !self.limits.has_states() {
            return Ok(None);
        }
        Ok(Some(StateInputs {
            sequences: self.at(self.layout.state_sequences)?,
            starts: self.at(self.layout.state_starts)?,
            reads: self.at(self.layout.state_reads)?,
            write_starts: self.at(self.layout.state_write_starts)?,
            writes: self.at(self.layout.state_writes)?,
        }))
    }
}
