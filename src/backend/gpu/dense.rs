//! Weights dequantised for the vendor's matrix library: how many bytes they take, and which are worth keeping.

use super::buffer::{TILE_COLS, TILE_ROWS};
use super::plans::VENDOR_WEIGHTS_BYTES;
use crate::backend::LinearPart;

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
pub(super) fn kept_bytes(parts: &[LinearPart<'_>]) -> Option<u64> {
    let bytes = parts.iter().map(|part| dequantized_bytes(part.weight.rows, part.weight.cols));
    bytes.clone().all(|bytes| bytes <= VENDOR_WEIGHTS_BYTES).then(|| bytes.sum())
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
        let reserved = kept_bytes(&[part(rows, cols), part(rows, cols)]).unwrap();
        assert!(reserved > VENDOR_WEIGHTS_BYTES);
        // Both are one segment: all of it is taken, and nothing is left.
        assert_eq!(dequantized_bytes(2 * rows, cols), reserved);
        // Parts that do not fill their tiles are segments of their own.
        let separate = kept_bytes(&[part(17, 300), part(33, 300)]);
        assert_eq!(separate, Some(dequantized_bytes(17, 300) + dequantized_bytes(33, 300)));

        assert_eq!(kept_bytes(&[part(151_936, 5120)]), None);
        assert_eq!(kept_bytes(&[part(16, 256), part(151_936, 5120)]), None);
    }
}
