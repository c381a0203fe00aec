//! The norms of the heads of a gated delta net's output, times their gates.

use super::DeltaNet;
use crate::backend::cpu::norm::normalize;
use crate::backend::cpu::pool::ThreadPool;
use crate::backend::cpu::simd::{Isa, Kernel, LANES, Simd, silu};
use crate::backend::cpu::split::for_rows;

/// `out = norm(out) * silu(z)`, head by head.
pub(super) fn gate(net: &DeltaNet<'_>, pool: &ThreadPool, isa: Isa, out: &mut [f32]) {
    for_rows(pool, out, net.shape.value_cols(), |first, rows| isa.run(Rows { net, first, rows }));
}

struct Rows<'a> {
    net: &'a DeltaNet<'a>,
    /// Index of the first of the rows in the batch.
    first: usize,
    rows: &'a mut [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { net, first, rows } = self;
        let shape = net.shape;
        let x = net.x[first * shape.cols()..].chunks_exact(shape.cols());
        for (row, x) in rows.chunks_exact_mut(shape.value_cols()).zip(x) {
            let z = x[shape.channels()..].chunks_exact(shape.value_size);
            for (head, z) in row.chunks_exact_mut(shape.value_size).zip(z) {
                normalize(s, head, net.norm, net.eps);
                for (out, z) in head.chunks_mut(LANES).zip(z.chunks(LANES)) {
                    let gated = s.mul(s.load_partial(out), silu(s, s.load_partial(z)));
                    s.store_partial(gated, out);
                }
            }
        }
    }
}
