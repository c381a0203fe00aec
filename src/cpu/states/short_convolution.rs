//! Gated short convolutions (LFM2) in one pass.

use super::convolution::{Convolution, Finish, Inputs};
use crate::backend::ShortConvolutionShape;
use crate::batch::Batch;
use crate::pool::ThreadPool;
use crate::simd::{Isa, LANES, Simd};
use crate::split::Split;
use crate::state_layer::StateLayer;

/// The arguments of one short convolution except the states and the outputs.
pub(crate) struct ShortConvolution<'a> {
    /// `[n, shape.cols()]`.
    pub(crate) x: &'a [f32],
    pub(crate) shape: ShortConvolutionShape,
    pub(crate) taps: &'a [f32],
    pub(crate) batch: &'a Batch,
}

impl ShortConvolution<'_> {
    /// Computes all rows into `out`, `[n, shape.channels]`.
    pub(crate) fn run_on(&self, pool: &ThreadPool, isa: Isa, state: &mut StateLayer, out: &mut [f32]) {
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
