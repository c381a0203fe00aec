//! Layers with recurrent states: their pool, and the passes of gated delta nets, Mamba mixers and short convolutions.
//! Rows of projections go through a causal convolution. Each head then walks along its sequence, and the output rows
//! are normed and gated.
//!
//! Batch invariance is bitwise. The tokens of a sequence are processed one by one, for any chunking of the prompt. The
//! state that a chunk stores equals the registers with which an uninterrupted pass would continue.

mod convolution;
mod delta;
mod join_rows;
mod mamba;
mod mamba2;
mod short_convolution;
mod softplus;
mod walk;

pub(super) use delta::DeltaNet;
pub(super) use join_rows::JoinRows;
pub(super) use mamba::{Mamba, MambaConvolution};
pub(super) use mamba2::Mamba2;
pub(super) use short_convolution::ShortConvolution;
pub(super) use softplus::softplus;

use crate::batch::{Batch, NO_STATE};

/// Returns the slot of a sequence's initial state.
fn first_slot(batch: &Batch, seq: usize) -> Option<usize> {
    Some(batch.states.reads[seq]).filter(|&slot| slot != NO_STATE).map(|slot| slot as usize)
}
