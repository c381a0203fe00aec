//! Several hidden streams per token (AltUp): their prediction, correction and level. Also sparse gates.

use std::ops::Range;

use crate::backend::{LevelRows, STREAMS, Sparsify, Streams};
use crate::cpu_backend::CpuBackend;
use crate::norm::{sum, sum_of_squares};
use crate::pool::ThreadPool;
use crate::simd::{Isa, Kernel, LANES, Simd};
use crate::split::{for_rows, for_rows_of};

/// See `Ops::sparsify`.
pub(crate) fn sparsify(pool: &ThreadPool, isa: Isa, args: Sparsify<'_, CpuBackend>) {
    let Sparsify { x, rows, cols, deviations } = args;
    for_rows(pool, &mut x[..rows * 2 * cols], 2 * cols, |_, rows| isa.run(Clip { rows, cols, deviations }));
}

struct Clip<'a> {
    rows: &'a mut [f32],
    cols: usize,
    deviations: f32,
}

impl Kernel for Clip<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.rows.chunks_exact_mut(2 * self.cols) {
            let gates = &mut row[..self.cols];
            let mean = sum(s, gates) / self.cols as f32;
            let deviation = (sum_of_squares(s, gates, mean) / self.cols as f32).sqrt();
            let cutoff = mean + self.deviations * deviation;
            // A comparison, so that NaN stays NaN.
            gates.iter_mut().for_each(|x| *x = if *x <= cutoff { 0.0 } else { *x - cutoff });
        }
    }
}

/// See `Ops::level_rows`.
pub(crate) fn level_rows(pool: &ThreadPool, isa: Isa, args: LevelRows<'_, CpuBackend>) {
    let LevelRows { x, like, rows, cols, least, out } = args;
    for_rows(pool, &mut out[..rows * cols], cols, |first, out| {
        let [x, like] = [x, like].map(|all| &all[first * cols..][..out.len()]);
        isa.run(Level { x, like, cols, least, out });
    });
}

struct Level<'a> {
    x: &'a [f32],
    like: &'a [f32],
    cols: usize,
    least: f32,
    out: &'a mut [f32],
}

impl Kernel for Level<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, like, cols, least, out } = self;
        let rows = x.chunks_exact(cols).zip(like.chunks_exact(cols)).zip(out.chunks_exact_mut(cols));
        for ((x, like), out) in rows {
            let x_square = sum_of_squares(s, x, 0.0) / cols as f32;
            let square = sum_of_squares(s, like, 0.0) / cols as f32;
            let factor = square.sqrt() / if x_square < least { least } else { x_square }.sqrt();
            out.iter_mut().zip(x).for_each(|(out, x)| *out = x * factor);
        }
    }
}

/// See `Ops::predict_streams`.
pub(crate) fn predict(pool: &ThreadPool, isa: Isa, args: Streams<'_, CpuBackend>) {
    run(pool, args, |routing, cols, [predicted, streams @ ..]| {
        isa.run(Predict { routing, cols, predicted, streams });
    });
}

/// See `Ops::correct_streams`.
pub(crate) fn correct(pool: &ThreadPool, isa: Isa, args: Streams<'_, CpuBackend>) {
    run(pool, args, |routing, cols, [predicted, streams @ ..]| {
        isa.run(Correct { routing, cols, predicted, streams });
    });
}

/// Calls `job` for chunks of rows of the prediction and of the streams, the active one first.
fn run(
    pool: &ThreadPool,
    args: Streams<'_, CpuBackend>,
    job: impl Fn(Routing<'_>, usize, [&mut [f32]; 1 + STREAMS]) + Sync,
) {
    let Streams { routed, weight, scale, rows, cols, active, predicted, others } = args;
    let [first, second, third] = others;
    let rows_of_all = [predicted, active, first, second, third].map(|stream| &mut stream[..rows * cols]);
    for_rows_of(pool, rows_of_all, cols, |first, rows| {
        job(Routing { routed: &routed[first * STREAMS..], weight, scale }, cols, rows);
    });
}

/// The inputs of the coefficients of some rows.
struct Routing<'a> {
    routed: &'a [f32],
    weight: &'a [f32],
    scale: f32,
}

impl Routing<'_> {
    /// Returns `N` coefficients of each row.
    fn coefficients<const N: usize>(&self) -> impl Iterator<Item = [f32; N]> {
        let (of_rows, _) = self.routed.as_chunks::<STREAMS>();
        let (weights, _) = self.weight.as_chunks::<STREAMS>();
        of_rows.iter().map(move |routed| {
            let routed = routed.map(|x| (self.scale * x).tanh());
            std::array::from_fn(|i| weights[i].iter().zip(&routed).map(|(weight, x)| weight * x).sum())
        })
    }
}

/// Returns the parts of `len` elements from `start` on, a vector each.
fn parts(start: usize, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = start + len;
    (start..end).step_by(LANES).map(move |first| first..(first + LANES).min(end))
}

struct Predict<'a> {
    routing: Routing<'a>,
    cols: usize,
    predicted: &'a mut [f32],
    streams: [&'a mut [f32]; STREAMS],
}

impl Kernel for Predict<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { routing, cols, predicted, mut streams } = self;
        for (row, coefficients) in (0..predicted.len() / cols).zip(routing.coefficients::<{ STREAMS * STREAMS }>()) {
            for part in parts(row * cols, cols) {
                let mut old = [s.splat(0.0); STREAMS];
                for (old, stream) in old.iter_mut().zip(&streams) {
                    *old = s.load_partial(&stream[part.clone()]);
                }
                for (k, stream) in streams.iter_mut().enumerate() {
                    let mut sum = old[k];
                    for (&coefficient, old) in coefficients[k * STREAMS..].iter().zip(old) {
                        sum = s.fma(s.splat(coefficient), old, sum);
                    }
                    s.store_partial(sum, &mut stream[part.clone()]);
                }
                predicted[part.clone()].copy_from_slice(&streams[0][part]);
            }
        }
    }
}

struct Correct<'a> {
    routing: Routing<'a>,
    cols: usize,
    predicted: &'a [f32],
    streams: [&'a mut [f32]; STREAMS],
}

impl Kernel for Correct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { routing, cols, predicted, mut streams } = self;
        for (row, coefficients) in (0..predicted.len() / cols).zip(routing.coefficients::<STREAMS>()) {
            for part in parts(row * cols, cols) {
                let before = s.load_partial(&predicted[part.clone()]);
                let news = s.sub(s.load_partial(&streams[0][part.clone()]), before);
                streams[0][part.clone()].copy_from_slice(&predicted[part.clone()]);
                for (stream, coefficient) in streams.iter_mut().zip(coefficients) {
                    let stream = &mut stream[part.clone()];
                    s.store_partial(s.fma(s.splat(1.0 + coefficient), news, s.load_partial(stream)), stream);
                }
            }
        }
    }
}
