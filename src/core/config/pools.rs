//! The pools of the KV cache.

use crate::batch::GroupKind;

/// One KV group of a model: the tokens that its layers attend to, and the number of blocks in its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupConfig {
    pub kind: GroupKind,
    pub num_blocks: usize,
}

/// The pool of recurrent states of a model that has them: the running sequences' own states, and snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateConfig {
    /// The number of slots. Each holds one state of all layers that have one.
    pub num_slots: usize,
    /// Slots of each running sequence. There are two where a step may be interrupted: it reads one and writes the
    /// other, so that its first state still exists if it is repeated. Otherwise there is one, which each step
    /// overwrites.
    pub slots_per_seq: usize,
    /// Tokens of a long prompt between two snapshots, a multiple of the block size.
    pub snapshot_interval: usize,
}
