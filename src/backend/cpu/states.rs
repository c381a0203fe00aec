//! Layers of states: their pool, and the passes that gated delta nets, Mamba-2 mixers and short convolutions are made
//! of. Rows of projections go through a causal convolution; each head walks along its sequence; rows of the output are
//! normed and gated.
//!
//! Batch invariance is bitwise: tokens of a sequence are taken one by one, whatever the chunks that they come in, and
//! what a chunk leaves behind are the very numbers that the next one would have had in its registers.

mod convolution;
mod delta;
mod join_rows;
mod mamba2;
mod short_convolution;
mod softplus;
mod walk;

pub(super) use delta::DeltaNet;
pub(super) use join_rows::JoinRows;
pub(super) use mamba2::Mamba2;
pub(super) use short_convolution::ShortConvolution;

use crate::batch::{Batch, NO_STATE};

/// The slot of the state that a sequence begins with.
fn first_slot(batch: &Batch, seq: usize) -> Option<usize> {
    Some(batch.states.reads[seq]).filter(|&slot| slot != NO_STATE).map(|slot| slot as usize)
}
