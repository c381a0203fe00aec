//! Products of several matrices at once, such as those of a step's experts. One job of the pool computes all of them: a
//! job costs microseconds, about as much as a small matrix.

use super::scratch::Inputs;
use super::{GROUP, LinearScratch, Outputs, PackedMatrix, Pass, Split, Store, ThreadPool, multiply_pass};

/// A product of `count` rows from row `first` on, of the inputs and of the outputs.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub matrix: &'a PackedMatrix,
    pub first: usize,
    pub count: usize,
}

/// Computes the products, which have different rows, of matrices of one shape. Rows have the same bits as those of
/// `PackedMatrix::multiply`.
///
/// # Panics
/// If `x` or `out` is too short, or `scratch` was allocated for fewer columns.
pub(crate) fn multiply_each(
    products: &[Product<'_>],
    x: &[f32],
    out: &mut [f32],
    scratch: &mut LinearScratch,
    pool: &ThreadPool,
) {
    let Some((cols, stride)) = products.first().map(|product| (product.matrix.cols, product.matrix.rows)) else {
        return;
    };
    assert!(cols <= scratch.max_cols(), "scratch for {} columns, not {cols}", scratch.max_cols());
    let room = scratch.groups(cols);
    let mut rest = products;
    while let Some(next) = rest.first() {
        let mut groups = 0;
        let fits = |product: &&Product<'_>| {
            groups += product.count.div_ceil(GROUP);
            groups <= room
        };
        let count = rest.iter().take_while(fits).count();
        if count == 0 {
            let (x, out) = (&x[next.first * cols..], &mut out[next.first * stride..]);
            next.matrix.multiply(x, next.count, out, Store::Assign, scratch, pool);
            rest = &rest[1..];
            continue;
        }
        let (these, others) = rest.split_at(count);
        rest = others;
        let mut first_group = 0;
        let split = Split::new(out);
        let mut passes = Vec::with_capacity(count);
        for &Product { matrix, first, count } in these.iter().filter(|product| product.count > 0) {
            assert!(matrix.cols == cols && matrix.rows == stride && (first + count) * stride <= split.len());
            let rows = Inputs::of_rows(&x[first * cols..(first + count) * cols], count, cols);
            let outputs =
                Outputs { out: &split, first: first * stride, stride, head_stride: stride, store: Store::Assign };
            passes.push(Pass { matrix, inputs: Inputs { first_group, ..rows }, outputs });
            first_group += count.div_ceil(GROUP);
        }
        multiply_pass(&passes, scratch, pool);
    }
}
