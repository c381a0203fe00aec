//! Types without a micro-kernel: rows stay in GGUF blocks, which are decoded to f32 block by block and multiplied with
//! unquantised activations.

use crate::quant::{self, GgmlType};

/// Elements of the largest GGUF block.
const MAX_ELEMENTS: usize = 256;
/// Partial sums of a row, so that the loop vectorises in one fixed order.
const LANES: usize = 8;

/// `out(r, Σ w · x[r])` for one weight row, `r` over the rows of `x` (`cols` each).
pub(super) fn multiply_row(ggml_type: GgmlType, data: &[u8], x: &[f32], cols: usize, mut out: impl FnMut(usize, f32)) {
    let (elements, bytes) = (ggml_type.block_elements(), ggml_type.block_bytes());
    let mut weights = [0.0f32; MAX_ELEMENTS];
    for (group, x) in x.chunks(16 * cols).enumerate() {
        let mut sums = [[0.0f32; LANES]; 16];
        for (i, block) in data.chunks_exact(bytes).enumerate() {
            decode(ggml_type, block, &mut weights[..elements]);
            for (x, sums) in x.chunks_exact(cols).zip(&mut sums) {
                let x = &x[i * elements..(i + 1) * elements];
                for (x, w) in x.chunks(LANES).zip(weights.chunks(LANES)) {
                    for ((sum, x), w) in sums.iter_mut().zip(x).zip(w) {
                        *sum += x * w;
                    }
                }
            }
        }
        for (r, sums) in sums.iter().enumerate().take(x.len() / cols) {
            out(16 * group + r, sums.iter().sum());
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
