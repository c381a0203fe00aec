//! The input of one engine step, as flat arrays of integers: the scheduler writes it, the model and the backends read
//! it. Decode, prefill chunks and prefix-cache hits are all the same case.

use std::ops::Range;

/// Which tokens a group of layers attends to; it decides when the group's blocks may be freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupKind {
    Full,
    /// A token attends to itself and the `window - 1` before it; blocks wholly before that are freed.
    Sliding {
        window: u32,
    },
    /// A token attends to itself and to those that are at most `reach` away, before it and behind it. Its sequence is
    /// computed in one step: what the first token sees is not there before the last one is.
    Bidirectional {
        reach: u32,
    },
}

impl GroupKind {
    pub fn is_bidirectional(self) -> bool {
        matches!(self, Self::Bidirectional { .. })
    }

    /// Positions that the token at `position` attends to in a sequence of `context` tokens.
    pub fn keys(self, position: u32, context: u32) -> Range<u32> {
        match self {
            Self::Full => 0..position + 1,
            Self::Sliding { window } => (position + 1).saturating_sub(window)..position + 1,
            Self::Bidirectional { reach } => {
                position.saturating_sub(reach)..position.saturating_add(reach).saturating_add(1).min(context)
            }
        }
    }
}

/// Placeholder for a token that the model itself is to guess before the step that verifies it is computed.
pub const TO_GUESS: u32 = u32::MAX;

/// Placeholder in a block table for a block that a sliding window has left behind (never read).
pub const NULL_BLOCK: u32 = u32::MAX;

/// The batch of one step; `n` is the number of tokens of all sequences, `s` the number of sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Input token ids, `[n]`, sequence after sequence.
    pub token_ids: Vec<u32>,
    /// Tokens that are not in `token_ids` yet: an asynchronous device has chosen them, in the step before, and puts
    /// them there.
    pub chosen: Vec<ChosenToken>,
    /// Position of each token in its sequence, `[n]`.
    pub positions: Vec<u32>,
    /// Index of each sequence's first token in the flat arrays, `[s + 1]`: starts with 0 and ends with `n`.
    pub cu_seqlens_q: Vec<u32>,
    /// Tokens of each sequence whose K and V exist after this step (the attended length of its last token), `[s]`.
    pub context_lens: Vec<u32>,
    /// Needs of each sequence beside its tokens, `[s]`; empty in a batch of sequences that need nothing.
    pub extras: Vec<SeqExtras>,
    /// Block tables and slots, one entry per KV group of the model.
    pub groups: Vec<GroupTables>,
    /// Recurrent states that the step begins with and leaves; empty for a model without layers of states.
    pub states: StateTables,
    /// Flat indices of the tokens whose logits are wanted, increasing.
    pub logits_indices: Vec<u32>,
    /// Blocks to copy before anything is computed (copy-on-write of forked sequences).
    pub block_copies: Vec<BlockCopy>,
}

/// A token that the step before has chosen: of a row whose most likely token is all that was wanted (`Wanted::Argmax`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChosenToken {
    /// Its index in `token_ids`.
    pub index: u32,
    /// Row of logits of the step before.
    pub row: u32,
}

/// The paged cache's view of a batch for one KV group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupTables {
    /// Slot that each token's K and V go to: `block * block_size + offset`, `[n]`.
    pub slot_mapping: Vec<u32>,
    /// Block ids of all sequences, one after the other; entry `i` of a sequence holds positions
    /// `i * block_size ..`; `NULL_BLOCK` where a sliding window has passed.
    pub block_tables: Vec<u32>,
    /// Index of each sequence's first entry in `block_tables`, `[s + 1]`.
    pub cu_blocks: Vec<u32>,
}

/// Placeholder for the state before a sequence's first token: zeros.
pub const NO_STATE: u32 = u32::MAX;

/// The recurrent states of a batch. A slot holds one state of every layer that has one: what the layer carries from
/// token to token in place of keys and values.
///
/// A slot that one sequence writes is read in the same batch by no other. The sequence itself may read the slot that it
/// writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateTables {
    /// Slot of the state that each sequence's first token of the batch begins with, `[s]`, or `NO_STATE`.
    pub reads: Vec<u32>,
    /// States to keep, sequence after sequence, each sequence's by `num_tokens`, which may repeat.
    pub writes: Vec<StateWrite>,
    /// Index of each sequence's first entry in `writes`, `[s + 1]`.
    pub cu_writes: Vec<u32>,
}

impl StateTables {
    /// States of sequence `seq` to keep.
    pub fn writes_of(&self, seq: usize) -> &[StateWrite] {
        &self.writes[self.cu_writes[seq] as usize..self.cu_writes[seq + 1] as usize]
    }

    /// Keeps no state of any sequence.
    pub fn clear_writes(&mut self) {
        self.writes.clear();
        self.cu_writes.fill(0);
    }
}

/// Keep the state after the first `num_tokens` (at least 1) of a sequence's tokens of the batch in slot `slot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateWrite {
    pub num_tokens: u32,
    pub slot: u32,
}

/// Needs of a sequence beside its tokens, from its arrival to every batch that it is part of. All are absent in an
/// ordinary sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeqExtras {
    /// The adapter (LoRA) whose weights are added to the model's for it. The number is part of the names of its blocks
    /// in the prefix cache, so it is never given to another adapter.
    pub adapter: Option<u32>,
    /// Row of the mask that says which tokens may be sampled for it.
    pub mask: Option<u32>,
    /// Positions whose inputs are given embeddings and not those of their token ids. The prefix cache knows only the
    /// ids: a sequence with embeddings takes a `cache_salt` that tells their content.
    pub embeddings: Option<Range<u32>>,
}

/// Copy the whole of block `src` to block `dst`, in all layers of `group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    pub group: u32,
    pub src: u32,
    pub dst: u32,
}

impl Batch {
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len()
    }

    pub fn num_seqs(&self) -> usize {
        self.context_lens.len()
    }

    /// Flat token range of sequence `seq`.
    pub fn tokens_of(&self, seq: usize) -> Range<usize> {
        self.cu_seqlens_q[seq] as usize..self.cu_seqlens_q[seq + 1] as usize
    }

    /// Block table of sequence `seq` in `group`.
    pub fn block_table(&self, group: usize, seq: usize) -> &[u32] {
        let g = &self.groups[group];
        &g.block_tables[g.cu_blocks[seq] as usize..g.cu_blocks[seq + 1] as usize]
    }
}
