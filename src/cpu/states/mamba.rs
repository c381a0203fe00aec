//! Mamba mixers of the first version (arXiv 2312.00752) in two passes: the convolution over x, and the recurrence with
//! the gates. Between them, products of the convolved x give time steps, B and C.

use std::ops::Range;

use super::convolution::{Convolution, Inputs, SiluOfSums};
use super::softplus::softplus;
use super::walk::{Part, Rule, TileRow, walk};
use crate::backend::MambaShape;
use crate::batch::Batch;
use crate::pool::ThreadPool;
use crate::simd::{Isa, LANES, Simd, exp, silu};
use crate::split::Split;
use crate::state_layer::StateLayer;

/// The arguments of the convolution except the output.
pub(crate) struct MambaConvolution<'a> {
    /// `[n, shape.cols()]`.
    pub(crate) x: &'a [f32],
    pub(crate) shape: MambaShape,
    pub(crate) taps: &'a [f32],
    pub(crate) taps_bias: Option<&'a [f32]>,
    pub(crate) state: &'a StateLayer,
    pub(crate) batch: &'a Batch,
}

impl MambaConvolution<'_> {
    /// Computes all rows into `out`, `[n, shape.channels]`.
    pub(crate) fn run_on(&self, pool: &ThreadPool, isa: Isa, out: &mut [f32]) {
        let &Self { x, shape, taps, taps_bias, batch, .. } = self;
        convolution(x, shape, taps, taps_bias, batch).run_on(pool, isa, &self.state.windows, &SiluOfSums, out);
    }
}

fn convolution<'a>(
    x: &'a [f32],
    shape: MambaShape,
    taps: &'a [f32],
    bias: Option<&'a [f32]>,
    batch: &'a Batch,
) -> Convolution<'a> {
    let inputs = Inputs { x, cols: shape.cols(), first: 0, factor: None };
    Convolution { inputs, channels: shape.channels, taps, bias, batch }
}

/// The arguments of the recurrence except the states and the output.
pub(crate) struct Mamba<'a> {
    /// `[n, shape.cols()]`.
    pub(crate) x: &'a [f32],
    pub(crate) shape: MambaShape,
    pub(crate) convolved: &'a [f32],
    pub(crate) time_steps: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) c: &'a [f32],
    pub(crate) decay: &'a [f32],
    pub(crate) skip: &'a [f32],
    pub(crate) batch: &'a Batch,
}

impl Mamba<'_> {
    /// Computes all rows into `out`, `[n, shape.channels]`, and saves the states.
    pub(crate) fn run_on(&self, pool: &ThreadPool, isa: Isa, state: &mut StateLayer, out: &mut [f32]) {
        let StateLayer { spec, windows, matrices } = state;
        let &Self { x, shape, batch, .. } = self;
        // The inputs alone are kept, so taps do not matter.
        convolution(x, shape, &[], None, batch).keep_windows(pool, spec, &Split::new(windows));
        walk(self, batch, pool, isa, spec, &Split::new(matrices), &Split::new(out));
    }
}

/// Returns up to `C` vectors of columns, with zeros after the last one.
#[inline(always)]
fn load<S: Simd, const C: usize>(s: S, columns: &[f32]) -> [S::V; C] {
    let mut vectors = [s.splat(0.0); C];
    for (vector, columns) in vectors.iter_mut().zip(columns.chunks(LANES)) {
        *vector = s.load_partial(columns);
    }
    vectors
}

/// The matrix of a sequence has a column for each channel.
impl Rule for Mamba<'_> {
    #[inline(always)]
    fn walk<S: Simd, const C: usize>(
        &self,
        s: S,
        part: &Part<'_>,
        tile: &mut [TileRow<C>],
        tokens: Range<usize>,
        keep: &mut impl FnMut(&[TileRow<C>], usize),
    ) {
        let MambaShape { channels, state_size, .. } = self.shape;
        let (first, count) = (part.first, part.count);
        let skip = load::<S, C>(s, &self.skip[first..][..count]);
        for row in tokens {
            let mut steps: TileRow<C> = [[0.0; LANES]; C];
            let raw = &self.time_steps[row * channels + first..][..count];
            for (step, raw) in steps.as_flattened_mut().iter_mut().zip(raw) {
                *step = softplus(*raw);
            }
            let x = load::<S, C>(s, &self.convolved[row * channels + first..][..count]);
            let (mut times, mut changes, mut sums) = ([s.splat(0.0); C], [s.splat(0.0); C], [s.splat(0.0); C]);
            for i in 0..C {
                times[i] = s.load(&steps[i]);
                changes[i] = s.mul(times[i], x[i]);
            }
            let (b, c) = (&self.b[row * state_size..], &self.c[row * state_size..]);
            let decays = self.decay.chunks_exact(channels);
            for (((state, b), c), decay) in tile.iter_mut().zip(b).zip(c).zip(decays) {
                let (b, c, decay) = (s.splat(*b), s.splat(*c), load::<S, C>(s, &decay[first..][..count]));
                for i in 0..C {
                    let old = s.mul(exp(s, s.mul(decay[i], times[i])), s.load(&state[i]));
                    let new = s.fma(b, changes[i], old);
                    s.store(new, &mut state[i]);
                    sums[i] = s.fma(c, new, sums[i]);
                }
            }
            let z = load::<S, C>(s, &self.x[row * self.shape.cols() + channels + first..][..count]);
            for (i, out) in part.out(row).chunks_mut(LANES).enumerate() {
                s.store_partial(s.mul(s.fma(skip[i], x[i], sums[i]), silu(s, z[i])), out);
            }
            keep(tile, row);
        }
    }
}
