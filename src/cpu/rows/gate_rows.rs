//! Multiplies rows by the sigmoid of a product, which is the gate of a shared expert.

use crate::norm::sum_of_squares;
use crate::pool::ThreadPool;
use crate::simd::{Isa, Kernel, LANES, Simd};
use crate::split::for_rows;

/// The weights and epsilon of an RMS norm.
pub(crate) type RmsNorm<'a> = (&'a [f32], f32);

/// Computes `out[r] *= sigmoid(weight · norm(x[r]))`, where rows of `out` have `cols` columns.
pub(crate) fn gate_rows(
    pool: &ThreadPool,
    isa: Isa,
    x: &[f32],
    norm: Option<RmsNorm<'_>>,
    weight: &[f32],
    cols: usize,
    out: &mut [f32],
) {
    for_rows(pool, out, cols, |first, rows| isa.run(Rows { x: &x[first * weight.len()..], norm, weight, cols, rows }));
}

struct Rows<'a> {
    x: &'a [f32],
    norm: Option<RmsNorm<'a>>,
    weight: &'a [f32],
    cols: usize,
    rows: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, norm, weight, cols, rows } = self;
        let hidden = weight.len();
        for (row, x) in rows.chunks_exact_mut(cols).zip(x.chunks_exact(hidden)) {
            let mut sum = s.splat(0.0);
            for (i, (x, weight)) in x.chunks(LANES).zip(weight.chunks(LANES)).enumerate() {
                let mut weight = s.load_partial(weight);
                if let Some((norm, _)) = norm {
                    weight = s.mul(weight, s.load_partial(&norm[i * LANES..][..x.len()]));
                }
                sum = s.fma(weight, s.load_partial(x), sum);
            }
            let scale = norm.map_or(1.0, |(_, eps)| 1.0 / (sum_of_squares(s, x, 0.0) / hidden as f32 + eps).sqrt());
            let gate = 1.0 / (1.0 + (-scale * s.sum(sum)).exp());
            row.iter_mut().for_each(|x| *x *= gate);
        }
    }
}
