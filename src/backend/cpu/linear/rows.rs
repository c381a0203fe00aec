//! Types without a micro-kernel: rows stay in GGUF blocks, which are decoded to f32 block by block and multiplied with
//! unquantised activations.

use std::ops::Range;

use crate::quant::{self, GgmlType};

/// Elements of the largest GGUF block.
const MAX_ELEMENTS: usize = 256;
/// Partial sums of a row, so that the loop vectorises, in one fixed order. Blocks are a multiple of it.
pub(super) const LANES: usize = 8;
/// Activation rows that share one decoding of a block.
const ROWS: usize = 64;

/// `out(r, Σ w · x(r))` for one weight row, `r` in `rows`.
pub(super) fn multiply_row<'x>(
    ggml_type: GgmlType,
    data: &[u8],
    rows: Range<usize>,
    x: impl Fn(usize) -> &'x [f32],
    mut out: impl FnMut(usize, f32),
) {
    let (elements, bytes) = (ggml_type.block_elements(), ggml_type.block_bytes());
    let mut weights = [0.0f32; MAX_ELEMENTS];
    let weights = &mut weights[..elements];
    for first in rows.clone().step_by(ROWS) {
        let group = first..rows.end.min(first + ROWS);
        let mut sums = [[0.0f32; LANES]; ROWS];
        for (i, block) in data.chunks_exact(bytes).enumerate() {
            decode(ggml_type, block, weights);
            for (row, sums) in group.clone().zip(&mut sums) {
                let (x, _) = x(row)[i * elements..(i + 1) * elements].as_chunks::<LANES>();
                for (x, w) in x.iter().zip(weights.as_chunks::<LANES>().0) {
                    for lane in 0..LANES {
                        sums[lane] += x[lane] * w[lane];
                    }
                }
            }
        }
        for (row, sums) in group.zip(&sums) {
            out(row, sums.iter().sum());
        }
    }
}

/// Decodes one block. The sizes fit by construction and `pack` has checked that there is a decoder, so that an error
/// would be ours; the values are then NaN rather than something plausible.
pub(super) fn decode(ggml_type: GgmlType, block: &[u8], out: &mut [f32]) {
    if quant::dequantize(ggml_type, block, out).is_err() {
        out.fill(f32::NAN);
    }
}
