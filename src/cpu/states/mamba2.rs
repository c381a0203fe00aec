//! Mamba-2 mixers (arXiv 2405.21060) in three passes: the convolution over x, B and C, the recurrence, and the gates
//! with the norms of groups after them.

use std::ops::Range;

use super::convolution::{Convolution, Inputs, SiluOfSums};
use super::softplus::softplus;
use super::walk::{Part, Rule, TileRow, walk};
use crate::backend::Mamba2Shape;
use crate::batch::Batch;
use crate::norm::normalize;
use crate::pool::ThreadPool;
use crate::simd::{Isa, Kernel, LANES, Simd, silu};
use crate::split::{Split, for_rows};
use crate::state_layer::StateLayer;

/// The arguments of one Mamba-2 mixer except the states and the outputs.
pub(crate) struct Mamba2<'a> {
    /// `[n, shape.cols()]`.
    pub(crate) x: &'a [f32],
    pub(crate) shape: Mamba2Shape,
    pub(crate) taps: &'a [f32],
    pub(crate) taps_bias: Option<&'a [f32]>,
    pub(crate) decay: &'a [f32],
    pub(crate) step_bias: &'a [f32],
    pub(crate) skip: &'a [f32],
    pub(crate) norm: Option<&'a [f32]>,
    pub(crate) eps: f32,
    pub(crate) batch: &'a Batch,
}

impl Mamba2<'_> {
    /// Computes all rows into `out`, `[n, shape.inner_cols()]`; `convolved`, `[n, shape.channels()]`, is scratch.
    pub(crate) fn run_on(
        &self,
        pool: &ThreadPool,
        isa: Isa,
        state: &mut StateLayer,
        convolved: &mut [f32],
        out: &mut [f32],
    ) {
        let StateLayer { spec, windows, matrices } = state;
        let &Self { x, shape, taps, taps_bias: bias, batch, .. } = self;
        let inputs = Inputs { x, cols: shape.cols(), first: shape.inner_cols(), factor: None };
        let convolution = Convolution { inputs, channels: shape.channels(), taps, bias, batch };
        convolution.run_on(pool, isa, windows, &SiluOfSums, convolved);
        convolution.keep_windows(pool, spec, &Split::new(windows));
        let rule = Recurrence { mixer: self, convolved };
        walk(&rule, batch, pool, isa, spec, &Split::new(matrices), &Split::new(out));
        for_rows(pool, out, shape.inner_cols(), |first, rows| isa.run(GateRows { mixer: self, first, rows }));
    }
}

struct Recurrence<'a> {
    mixer: &'a Mamba2<'a>,
    convolved: &'a [f32],
}

impl Rule for Recurrence<'_> {
    #[inline(always)]
    fn walk<S: Simd, const C: usize>(
        &self,
        s: S,
        part: &Part<'_>,
        tile: &mut [TileRow<C>],
        tokens: Range<usize>,
        keep: &mut impl FnMut(&[TileRow<C>], usize),
    ) {
        let (mixer, head) = (self.mixer, part.head);
        let shape = mixer.shape;
        let (rate, step_bias, skip) = (mixer.decay[head], mixer.step_bias[head], s.splat(mixer.skip[head]));
        let of_group = shape.inner_cols() + shape.group(head) * shape.state_size;
        for row in tokens {
            let step = softplus(mixer.x[row * shape.cols() + shape.time_step(head)] + step_bias);
            let convolved = &self.convolved[row * shape.channels()..];
            let x = &convolved[head * shape.head_size + part.first..][..part.count];
            let (b, c) = (&convolved[of_group..], &convolved[of_group + shape.group_cols()..]);
            let (mut values, mut changes) = ([s.splat(0.0); C], [s.splat(0.0); C]);
            for ((value, change), x) in values.iter_mut().zip(&mut changes).zip(x.chunks(LANES)) {
                *value = s.load_partial(x);
                *change = s.mul(s.splat(step), *value);
            }
            let sums = update_and_sum(s, tile, (step * rate).exp(), changes, [b, c]);
            for ((out, sum), x) in part.out(row).chunks_mut(LANES).zip(sums).zip(values) {
                s.store_partial(s.fma(skip, x, sum), out);
            }
            keep(tile, row);
        }
    }
}

/// Computes `S = decay * S + B change^T`, then `S^T C`.
#[inline(always)]
fn update_and_sum<S: Simd, const C: usize>(
    s: S,
    tile: &mut [TileRow<C>],
    decay: f32,
    change: [S::V; C],
    [b, c]: [&[f32]; 2],
) -> [S::V; C] {
    let decay = s.splat(decay);
    let mut sums = [s.splat(0.0); C];
    for ((row, b), c) in tile.iter_mut().zip(b).zip(c) {
        let (b, c) = (s.splat(*b), s.splat(*c));
        for i in 0..C {
            let x = s.fma(b, change[i], s.mul(decay, s.load(&row[i])));
            s.store(x, &mut row[i]);
            sums[i] = s.fma(c, x, sums[i]);
        }
    }
    sums
}

/// Computes `out = norm(out * silu(z))`, group by group; the norm is optional.
struct GateRows<'a> {
    mixer: &'a Mamba2<'a>,
    /// Index of the first row in the batch.
    first: usize,
    rows: &'a mut [f32],
}

impl Kernel for GateRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { mixer, first, rows } = self;
        let shape = mixer.shape;
        let group_size = shape.inner_cols() / shape.groups;
        let x = mixer.x[first * shape.cols()..].chunks_exact(shape.cols());
        for (row, x) in rows.chunks_exact_mut(shape.inner_cols()).zip(x) {
            for (out, z) in row.chunks_mut(LANES).zip(x[..shape.inner_cols()].chunks(LANES)) {
                s.store_partial(s.mul(s.load_partial(out), silu(s, s.load_partial(z))), out);
            }
            let norms = mixer.norm.unwrap_or_default().chunks_exact(group_size);
            for (group, norm) in row.chunks_exact_mut(group_size).zip(norms) {
                normalize(s, group, norm, mixer.eps);
            }
        }
    }
}
