//! Layers of states: their pool, and gated delta nets, in three passes over the tokens of a step. Rows of projections
//! go through the convolution; each head walks along its sequence; heads of the output are normed and gated.
//!
//! Batch invariance is bitwise: tokens of a sequence are taken one by one, whatever the chunks that they come in, and
//! what a chunk leaves behind are the very numbers that the next one would have had in its registers.

mod convolution;
mod delta;
mod gate;
mod softplus;

use super::pool::ThreadPool;
use super::simd::Isa;
use super::split::Split;
use super::state_layer::StateLayer;
use crate::backend::DeltaNetShape;
use crate::batch::{Batch, NO_STATE};

/// Arguments of one gated delta net beside the states and the outputs.
pub(super) struct DeltaNet<'a> {
    /// `[n, shape.cols()]`.
    pub(super) x: &'a [f32],
    pub(super) shape: DeltaNetShape,
    pub(super) taps: &'a [f32],
    pub(super) decay: &'a [f32],
    pub(super) decay_bias: &'a [f32],
    pub(super) norm: &'a [f32],
    pub(super) eps: f32,
    pub(super) batch: &'a Batch,
}

impl DeltaNet<'_> {
    /// Computes all rows into `out`, `[n, shape.value_cols()]`; `convolved`, `[n, shape.channels()]`, is scratch.
    pub(super) fn run_on(
        &self,
        pool: &ThreadPool,
        isa: Isa,
        state: &mut StateLayer,
        convolved: &mut [f32],
        out: &mut [f32],
    ) {
        let StateLayer { spec, windows, matrices } = state;
        convolution::convolve(self, pool, isa, windows, convolved);
        convolution::keep_windows(self, pool, spec, &Split::new(windows));
        delta::walk(self, pool, isa, convolved, &Split::new(matrices), &Split::new(out));
        gate::gate(self, pool, isa, out);
    }

    /// The slot of the state that a sequence begins with.
    fn first_slot(&self, seq: usize) -> Option<usize> {
        Some(self.batch.states.reads[seq]).filter(|&slot| slot != NO_STATE).map(|slot| slot as usize)
    }
}
