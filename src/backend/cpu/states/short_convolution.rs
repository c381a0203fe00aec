//! Gated short convolutions (LFM2) in one pass.

use super::convolution::{Convolution, Finish, Inputs};
use crate::backend::ShortConvolutionShape;
use crate::backend::cpu::pool::ThreadPool;
use crate::backend::cpu::simd::{Isa, LANES, Simd};
use crate::backend::cpu::split::Split;
use crate::backend::cpu::state_layer::StateLayer;
use crate::batch::Batch;

/// The arguments of one short convolution except the states and the outputs.
pub(in crate::backend::cpu) struct ShortConvolution<'a> {
    /// `[n, shape.cols()]`.
    pub(in crate::backend::cpu) x: &'a [f32],
    pub(in crate::backend::cpu) shape: ShortConvolutionShape,
    pub(in crate::backend::cpu) taps: &'a [f32],
    pub(in crate::backend::cpu) batch: &'a Batch,
}

impl ShortConvolution<'_> {
    /// Computes all rows into `out`, `[n, shape.channels]`.
    pub(in crate::backend::cpu) fn run_on(&self, pool: &ThreadPool, isa: Isa, state: &mut StateLayer, out: &mut [f32]) {
        let StateLayer { spec, windows, .. } = state;
        let &Self { x, shape, taps, batch } = self;
        let channels = shape.channels;
        let inputs = Inputs { x, cols: shape.cols(), first: 0, factor: Some(2 * channels) };
        let convolution = Convolution { inputs, channels, taps, bias: None, batch };
        convolution.run_on(pool, isa, windows, self, out);
        convolution.keep_windows(pool, spec, &Split::new(windows));
    }
}

/// Multiplies the sums by `C`.
impl Finish for ShortConvolution<'_> {
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, row: usize, sums: &mut [f32]) {
        let channels = self.shape.channels;
        let gates = &self.x[row * self.shape.cols() + channels..][..channels];
        for (sum, gate) in sums.chunks_mut(LANES).zip(gates.chunks(LANES)) {
            s.store_partial(s.mul(s.load_partial(sum), s.load_partial(gate)), sum);
        }
    }
}
