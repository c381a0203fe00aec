//! Norms of rows. On every instruction set, a sum consists of 4 × 16 partial sums, added in one fixed tree.

use super::cpu_backend::CpuBackend;
use super::pool::ThreadPool;
use super::simd::{Isa, Kernel, LANES, Simd};
use super::split::for_rows;
use crate::backend::{Norm, NormKind};

/// Computes `out = norm(x)`, or `out = factor * (out + norm(x))` with a factor. Rows are as long as the norm's weights.
pub(super) fn norm(
    pool: &ThreadPool,
    isa: Isa,
    x: &[f32],
    norm: Norm<'_, CpuBackend>,
    sum: Option<f32>,
    out: &mut [f32],
) {
    let cols = norm.weight.len();
    for_rows(pool, out, cols, |first, out| {
        let x = &x[first * cols..][..out.len()];
        isa.run(NormRows { x, norm, sum, out });
    });
}

/// Computes `rows = norm(rows)`. Rows are as long as the norm's weights.
pub(super) fn norm_in_place(pool: &ThreadPool, isa: Isa, rows: &mut [f32], norm: Norm<'_, CpuBackend>) {
    for_rows(pool, rows, norm.weight.len(), |_, rows| isa.run(NormInPlace { rows, norm }));
}

/// Norms columns `from..` of each row in place.
pub(super) fn norm_columns(
    pool: &ThreadPool,
    isa: Isa,
    rows: &mut [f32],
    cols: usize,
    from: usize,
    weight: &[f32],
    eps: f32,
) {
    for_rows(pool, rows, cols, |_, rows| isa.run(NormColumns { rows, cols, from, weight, eps }));
}

struct NormRows<'a> {
    x: &'a [f32],
    norm: Norm<'a, CpuBackend>,
    sum: Option<f32>,
    out: &'a mut [f32],
}

impl Kernel for NormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Norm { weight, bias, .. } = self.norm;
        let cols = weight.len();
        for (x, out) in self.x.chunks_exact(cols).zip(self.out.chunks_exact_mut(cols)) {
            let (mean, scale) = mean_and_scale(s, x, self.norm);
            let values = x.iter().zip(weight.iter()).map(|(x, weight)| (x - mean) * scale * weight);
            match bias {
                None => put(values, self.sum, out),
                Some(bias) => put(values.zip(bias.iter()).map(|(value, bias)| value + bias), self.sum, out),
            }
        }
    }
}

/// Returns the mean that a norm subtracts from a row, and the factor that it applies afterwards.
#[inline(always)]
fn mean_and_scale<S: Simd>(s: S, x: &[f32], norm: Norm<'_, CpuBackend>) -> (f32, f32) {
    let (mean, squares) = match norm.kind {
        NormKind::Weights => return (0.0, 1.0),
        NormKind::Rms => (0.0, sum_of_squares(s, x, 0.0)),
        NormKind::Layer => {
            let mean = sum(s, x) / x.len() as f32;
            (mean, sum_of_squares(s, x, mean))
        }
    };
    (mean, 1.0 / (squares / x.len() as f32 + norm.eps).sqrt())
}

struct NormInPlace<'a> {
    rows: &'a mut [f32],
    norm: Norm<'a, CpuBackend>,
}

impl Kernel for NormInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Norm { weight, bias, .. } = self.norm;
        for row in self.rows.chunks_exact_mut(weight.len()) {
            let (mean, scale) = mean_and_scale(s, row, self.norm);
            row.iter_mut().zip(weight.iter()).for_each(|(x, weight)| *x = (*x - mean) * scale * weight);
            if let Some(bias) = bias {
                row.iter_mut().zip(bias.iter()).for_each(|(x, bias)| *x += bias);
            }
        }
    }
}

/// Writes normed values to `out`, or with a factor `factor * (out + value)`.
#[inline(always)]
fn put(values: impl Iterator<Item = f32>, sum: Option<f32>, out: &mut [f32]) {
    match sum {
        None => out.iter_mut().zip(values).for_each(|(out, value)| *out = value),
        Some(factor) => out.iter_mut().zip(values).for_each(|(out, value)| *out = factor * (*out + value)),
    }
}

struct NormColumns<'a> {
    rows: &'a mut [f32],
    cols: usize,
    from: usize,
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for NormColumns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.rows.chunks_exact_mut(self.cols) {
            normalize(s, &mut row[self.from..][..self.weight.len()], self.weight, self.eps);
        }
    }
}

/// Divides a row, such as a head of v, by its root mean square in place.
#[inline(always)]
pub(super) fn divide_by_rms<S: Simd>(s: S, row: &mut [f32], eps: f32) {
    let scale = 1.0 / (sum_of_squares(s, row, 0.0) / row.len() as f32 + eps).sqrt();
    row.iter_mut().for_each(|x| *x *= scale);
}

/// Applies an RMS norm to a row in place, also to a head of q or k.
#[inline(always)]
pub(super) fn normalize<S: Simd>(s: S, row: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (sum_of_squares(s, row, 0.0) / row.len() as f32 + eps).sqrt();
    for (x, weight) in row.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

#[inline(always)]
pub(super) fn sum<S: Simd>(s: S, row: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let (vectors, tail) = row.as_chunks::<LANES>();
    for (i, x) in vectors.iter().enumerate() {
        sums[i % 4] = s.add(sums[i % 4], s.load(x));
    }
    sums[1] = s.add(sums[1], s.load_partial(tail));
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}

/// Returns the sum of `(x - mean)^2`.
#[inline(always)]
pub(super) fn sum_of_squares<S: Simd>(s: S, row: &[f32], mean: f32) -> f32 {
    let mean = s.splat(mean);
    let mut sums = [s.splat(0.0); 4];
    let (vectors, tail) = row.as_chunks::<LANES>();
    let (fours, rest) = vectors.as_chunks::<4>();
    for four in fours {
        for i in 0..4 {
            let x = s.sub(s.load(&four[i]), mean);
            sums[i] = s.fma(x, x, sums[i]);
        }
    }
    for x in rest {
        let x = s.sub(s.load(x), mean);
        sums[0] = s.fma(x, x, sums[0]);
    }
    let there = ((1u32 << tail.len()) - 1) as u16;
    let x = s.keep_lanes(s.sub(s.load_partial(tail), mean), there, 0.0);
    sums[1] = s.fma(x, x, sums[1]);
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}
