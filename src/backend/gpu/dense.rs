//! Weights dequantised for the vendor's matrix library: how many bytes they take, and which are worth keeping.

use super::args::Format;
use super::buffer::{TILE_COLS, TILE_ROWS};
use super::plans::VENDOR_WEIGHTS_BYTES;
use crate::backend::LinearPart;
use crate::config::ComputeDtype;

/// Whether a stack is multiplied as 8-bit floats where that is asked for. The library takes their outputs in groups of
/// 16, and adds no f32 bias to them.
pub(super) fn is_fp8(parts: &[LinearPart<'_>], dtype: ComputeDtype) -> bool {
    let fits = |part: &LinearPart<'_>| part.bias.is_none() && part.weight.rows.is_multiple_of(TILE_ROWS);
    dtype == ComputeDtype::Fp8 && parts.iter().all(fits)
}

/// Bytes of a matrix dequantised: whole tiles of 16-bit numbers.
pub(super) fn dequantized_bytes(rows: usize, cols: usize) -> u64 {
    2 * rows.next_multiple_of(TILE_ROWS) as u64 * cols.next_multiple_of(TILE_COLS) as u64
}

/// Outputs of a matrix that are dequantised at once where its weights are not kept.
pub(super) fn piece_rows(cols: usize) -> usize {
    let row_bytes = 2 * cols.next_multiple_of(TILE_COLS);
    (VENDOR_WEIGHTS_BYTES as usize / row_bytes / TILE_ROWS).max(1) * TILE_ROWS
}

/// Bytes that a stack of matrices takes where its dequantised copy is kept; `None` for a stack that is not worth it:
/// prompts rarely want the logits of many rows, and the largest matrices serve only those.
pub(super) fn kept_bytes(parts: &[LinearPart<'_>], dtype: ComputeDtype) -> Option<u64> {
    let dense = |part: &LinearPart<'_>| dequantized_bytes(part.weight.rows, part.weight.cols);
    let kept = |part: &LinearPart<'_>| match is_fp8(parts, dtype) {
        true => Format::fp8_bytes(part.weight.rows, part.weight.cols).iter().sum(),
        false => dense(part),
    };
    let is_worth_it = parts.iter().all(|part| dense(part) <= VENDOR_WEIGHTS_BYTES);
    is_worth_it.then(|| parts.iter().map(kept).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::GgmlType;
    use crate::tensor::TensorView;

    fn part(rows: usize, cols: usize) -> LinearPart<'static> {
        let weight = TensorView { name: "weights", ggml_type: GgmlType::Q4_K, rows, cols, data: &[] };
        LinearPart { weight, bias: None }
    }

    /// The room that is reserved for a stack is used, also where the parts together exceed the limit of each. A matrix
    /// that serves only logits is neither reserved nor kept.
    #[test]
    fn stacks_are_kept_whole_or_not_at_all() {
        let (rows, cols) = (17_408, 5120);
        let reserved = kept_bytes(&[part(rows, cols), part(rows, cols)], ComputeDtype::Auto).unwrap();
        assert!(reserved > VENDOR_WEIGHTS_BYTES);
        // Both are one segment: all of it is taken, and nothing is left.
        assert_eq!(dequantized_bytes(2 * rows, cols), reserved);
        // Parts that do not fill their tiles are segments of their own.
        let separate = kept_bytes(&[part(17, 300), part(33, 300)], ComputeDtype::Auto);
        assert_eq!(separate, Some(dequantized_bytes(17, 300) + dequantized_bytes(33, 300)));

        for dtype in [ComputeDtype::Auto, ComputeDtype::Fp8] {
            assert_eq!(kept_bytes(&[part(151_936, 5120)], dtype), None);
            assert_eq!(kept_bytes(&[part(16, 256), part(151_936, 5120)], dtype), None);
        }
    }

    /// 8-bit floats take half the bytes and their scales; stacks that the library would not take so keep 16 bits.
    #[test]
    fn stacks_are_kept_in_8_bits_where_the_library_takes_them() {
        let fp8 = |parts: &[LinearPart<'_>]| kept_bytes(parts, ComputeDtype::Fp8);
        assert_eq!(fp8(&[part(4096, 300), part(80, 300)]), Some(4096 * 512 + 4 * 4096 + 80 * 512 + 512));
        assert_eq!(fp8(&[part(4096, 300), part(72, 300)]), Some(2 * (4096 + 80) * 512));
        let biased = LinearPart { bias: Some(part(1, 16).weight), ..part(16, 256) };
        assert_eq!(fp8(&[biased, part(16, 256)]), Some(2 * 32 * 256));
    }
}
