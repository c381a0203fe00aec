//! RMS norm. The sum of squares is taken in 4 × 16 partial sums and one fixed tree, on every instruction set.

use super::pool::ThreadPool;
use super::simd::{Isa, Kernel, LANES, Simd};
use super::split::for_rows;

/// `out = x / rms(x) * weight`, rows of `weight.len()`.
pub(super) fn rms_norm(pool: &ThreadPool, isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let cols = weight.len();
    for_rows(pool, out, cols, |first, out| {
        let start = first * cols;
        out.copy_from_slice(&x[start..start + out.len()]);
        isa.run(NormRows { rows: out, weight, eps });
    });
}

struct NormRows<'a> {
    rows: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for NormRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.rows.chunks_exact_mut(self.weight.len()) {
            normalize(s, row, self.weight, self.eps);
        }
    }
}

/// One row in place; also the norm of a head of q or k.
#[inline(always)]
pub(super) fn normalize<S: Simd>(s: S, row: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (sum_of_squares(s, row) / row.len() as f32 + eps).sqrt();
    for (x, weight) in row.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

#[inline(always)]
fn sum_of_squares<S: Simd>(s: S, row: &[f32]) -> f32 {
    let mut sums = [s.splat(0.0); 4];
    let (vectors, tail) = row.as_chunks::<LANES>();
    let (fours, rest) = vectors.as_chunks::<4>();
    for four in fours {
        for i in 0..4 {
            let x = s.load(&four[i]);
            sums[i] = s.fma(x, x, sums[i]);
        }
    }
    for x in rest {
        let x = s.load(x);
        sums[0] = s.fma(x, x, sums[0]);
    }
    let x = s.load_partial(tail);
    sums[1] = s.fma(x, x, sums[1]);
    s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
}
