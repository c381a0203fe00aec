//! The input of one engine step, as flat arrays of integers. The scheduler writes it; the model and the backends read
//! it. Decode, prefill chunks and prefix-cache hits are all the same case.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::images::{BatchImages, ImageRun, SeqImages, Sight};

/// The tokens that a group of layers attends to, which decides when the group's blocks may be freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupKind {
    Full,
    /// A token attends to itself and the `window - 1` before it. Blocks entirely before that are freed.
    Sliding {
        window: u32,
    },
    /// A token attends to itself and to those before it in its own chunk: the first of `size`, a power of two, the next
    /// ones, and so on. Blocks wholly before a chunk are freed.
    Chunked {
        size: u32,
    },
    /// A token attends to itself and to tokens at most `reach` positions away, before and after it. Its sequence is
    /// computed in one step, since the first token attends to later ones.
    Bidirectional {
        reach: u32,
    },
}

impl GroupKind {
    pub fn is_bidirectional(self) -> bool {
        matches!(self, Self::Bidirectional { .. })
    }

    /// True if the tokens of an image attend to each other in layers of this kind.
    pub fn sees_whole_images(self, sight: Sight) -> bool {
        match sight {
            Sight::Causal => false,
            Sight::InWindows => matches!(self, Self::Sliding { .. }),
            Sight::All => true,
        }
    }

    /// Returns the positions that the token at `position` attends to, in a sequence of `context` tokens.
    pub fn keys(self, position: u32, context: u32) -> Range<u32> {
        match self {
            Self::Full => 0..position + 1,
            Self::Sliding { window } => (position + 1).saturating_sub(window)..position + 1,
            Self::Chunked { size } => position / size * size..position + 1,
            Self::Bidirectional { reach } => {
                position.saturating_sub(reach)..position.saturating_add(reach).saturating_add(1).min(context)
            }
        }
    }
}

/// Placeholder for a token that has to be drafted before the step that verifies it is computed.
pub const TO_DRAFT: u32 = u32::MAX;

/// Placeholder in a block table for a block that has left a sliding window; never read.
pub const NULL_BLOCK: u32 = u32::MAX;

/// The batch of one step. `n` is the number of tokens of all sequences, `s` the number of sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Input token ids, `[n]`, sequence after sequence.
    pub token_ids: Vec<u32>,
    /// Tokens that are not yet in `token_ids`. An asynchronous device picked them in the previous step, and fills them
    /// in.
    pub chosen: Vec<ChosenToken>,
    /// The position of each token in its sequence, `[n]`.
    pub positions: Vec<u32>,
    /// The index of each sequence's first token in the flat arrays, `[s + 1]`: starts with 0 and ends with `n`.
    pub cu_seqlens_q: Vec<u32>,
    /// The context length of each sequence after this step: its tokens whose keys and values then exist, `[s]`.
    pub context_lens: Vec<u32>,
    /// Block tables and slots, one entry per KV group of the model.
    pub groups: Vec<GroupTables>,
    /// Recurrent states that the step reads and writes; empty for a model without them.
    pub states: StateTables,
    /// Flat indices of the tokens whose logits are needed, in increasing order.
    pub logits_indices: Vec<u32>,
    /// Blocks to copy before anything is computed, for copy-on-write of forked sequences.
    pub block_copies: Vec<BlockCopy>,
    /// Rows of images among the tokens.
    pub images: BatchImages,
    /// Three positions of each token for RoPE (M-RoPE): time, row and column, `[n]`. They are equal for text. Empty if
    /// they equal `positions`, as in a batch without images. Only models that use positions for RoPE alone have them.
    pub rope_positions: Vec<[u32; 3]>,
}

/// A token that the previous step picked, from a row whose most likely token was requested (`Wanted::Argmax`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChosenToken {
    /// The token's index in `token_ids`.
    pub index: u32,
    /// The row of logits in the previous step.
    pub row: u32,
}

/// The part of a batch that describes the paged cache of one KV group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupTables {
    /// The slot for each token's keys and values, `block * block_size + offset`, `[n]`.
    pub slot_mapping: Vec<u32>,
    /// Block ids of all sequences, one after the other. Entry `i` of a sequence holds positions `i * block_size ..`.
    /// `NULL_BLOCK` stands for blocks that have left the sliding window.
    pub block_tables: Vec<u32>,
    /// The index of each sequence's first entry in `block_tables`, `[s + 1]`.
    pub cu_blocks: Vec<u32>,
}

/// Placeholder for the state before a sequence's first token, which is zero.
pub const NO_STATE: u32 = u32::MAX;

/// The recurrent states of a batch. A slot holds one state of every layer that has one, which the layer carries from
/// token to token instead of keys and values.
///
/// If one sequence writes a slot, no other sequence reads it in the same batch. The same sequence may read it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateTables {
    /// The slot of the state before each sequence's first token of the batch, `[s]`, or `NO_STATE`.
    pub reads: Vec<u32>,
    /// States to save, sequence after sequence, and within each ordered by `num_tokens`, which may repeat.
    pub writes: Vec<StateWrite>,
    /// The index of each sequence's first entry in `writes`, `[s + 1]`.
    pub cu_writes: Vec<u32>,
}

impl StateTables {
    /// Returns the states of sequence `seq` to save.
    pub fn writes_of(&self, seq: usize) -> &[StateWrite] {
        &self.writes[self.cu_writes[seq] as usize..self.cu_writes[seq + 1] as usize]
    }

    /// Removes all writes, so that no state is saved.
    pub fn clear_writes(&mut self) {
        self.writes.clear();
        self.cu_writes.fill(0);
    }
}

/// Saves the state after the first `num_tokens` (at least 1) of a sequence's tokens of the batch in slot `slot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateWrite {
    pub num_tokens: u32,
    pub slot: u32,
}

/// Inputs of a sequence besides its tokens. An ordinary sequence has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeqExtras {
    /// The adapter (LoRA) whose weights are added to the model's. The number is hashed into its block hashes in the
    /// prefix cache, so it must never be reused for another adapter.
    pub adapter: Option<u32>,
    /// The images of the prompt.
    pub images: Option<Arc<SeqImages>>,
}

/// Copies the whole block `src` to block `dst`, in all layers of `group`.
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

    /// Returns the RoPE position of each token. For a token of an image it is the first of three.
    pub fn first_rope_positions(&self) -> Cow<'_, [u32]> {
        match self.rope_positions.as_slice() {
            [] => Cow::Borrowed(&self.positions),
            positions => positions.iter().map(|&[first, ..]| first).collect(),
        }
    }

    /// Returns the end of the positions that an image token attends to in layers of a kind; `None` if image tokens
    /// attend causally there.
    pub fn image_end(&self, token: usize, kind: GroupKind) -> Option<u32> {
        if !kind.sees_whole_images(self.images.sight) {
            return None;
        }
        let run = self.run_of(token)?;
        Some(self.positions[run.tokens().end - 1] + 1)
    }

    /// Returns the run of an image that the token at flat index `token` belongs to.
    fn run_of(&self, token: usize) -> Option<&ImageRun> {
        let runs = &self.images.runs;
        let behind = runs.partition_point(|run| run.first_token as usize <= token);
        runs[..behind].last().filter(|run| run.tokens().contains(&token))
    }

    pub fn num_seqs(&self) -> usize {
        self.context_lens.len()
    }

    /// Returns the flat token range of sequence `seq`.
    pub fn tokens_of(&self, seq: usize) -> Range<usize> {
        self.cu_seqlens_q[seq] as usize..self.cu_seqlens_q[seq + 1] as usize
    }

    /// Returns the block table of sequence `seq` in `group`.
    pub fn block_table(&self, group: usize, seq: usize) -> &[u32] {
        let g = &self.groups[group];
        &g.block_tables[g.cu_blocks[seq] as usize..g.cu_blocks[seq + 1] as usize]
    }
}
