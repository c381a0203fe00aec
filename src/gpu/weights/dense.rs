//! Weights dequantised for the vendor's matrix library: their size, and which are worth keeping.

use crate::backend::LinearPart;
use crate::buffer::{TILE_COLS, TILE_ROWS};
use crate::config::ComputeDtype;
use crate::launch::args::Format;
use crate::launch::plans::VENDOR_WEIGHTS_BYTES;

/// The output projection, which may also be the embedding table. It has few rows in most steps, and nothing corrects
/// errors of logits.
const HEADS: [&str; 2] = ["output.weight", "token_embd.weight"];

/// True if a stack is multiplied as 8-bit floats under this `dtype`. The library takes their outputs in groups of 16,
/// and adds no f32 bias to them.
pub(crate) fn is_fp8(parts: &[LinearPart<'_>], dtype: ComputeDtype) -> bool {
    let fits = |part: &LinearPart<'_>| {
        let is_head = HEADS.contains(&part.weight.name);
        part.bias.is_none() && part.weight.rows.is_multiple_of(TILE_ROWS) && !is_head
    };
    dtype == ComputeDtype::Fp8 && parts.iter().all(fits)
}

/// Returns the bytes of a dequantised matrix: whole tiles of 16-bit numbers.
pub(crate) fn dequantized_bytes(rows: usize, cols: usize) -> u64 {
    2 * rows.next_multiple_of(TILE_ROWS) as u64 * cols.next_multiple_of(TILE_COLS) as u64
}

/// Returns the number of a matrix's outputs that are dequantised at once if its weights are not kept.
pub(crate) fn piece_rows(cols: usize) -> usize {
    let row_bytes = 2 * cols.next_multiple_of(TILE_COLS);
    (VENDOR_WEIGHTS_BYTES as usize / row_bytes / TILE_ROWS).max(1) * TILE_ROWS
}

/// Returns the bytes of a stack's dequantised copy, or `None` if it is not worth keeping. The largest matrices serve
/// only logits, and prompts rarely need the logits of many rows.
pub(crate) fn kept_bytes(parts: &[LinearPart<'_>], dtype: ComputeDtype) -> Option<u64> {
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
        let weight = TensorView { name: "weights", ggml_type: GgmlType::Q4_K, rows, cols, data: &[], scales: &[] };
        LinearPart { weight, bias: None }
    }

    /// The room reserved for a stack is used, even if the parts together exceed the limit of each. A matrix that serves
    /// only logits is neither reserved nor kept.
    #[test]
    fn stacks_are_kept_whole_or_not_at_all() {
        let (rows, cols) = (17_408, 5120);
        let reserved = kept_bytes(&[part(rows, cols), part(rows, cols)], ComputeDtype::Auto).unwrap();
        assert!(reserved > VENDOR_WEIGHTS_BYTES);
        // Both are one segment, which takes all of the room.
        assert_eq!(dequantized_bytes(2 * rows, cols), reserved);
        // Parts that do not fill their tiles are separate segments.
        let separate = kept_bytes(&[part(17, 300), part(33, 300)], ComputeDtype::Auto);
        assert_eq!(separate, Some(dequantized_bytes(17, 300) + dequantized_bytes(33, 300)));

        for dtype in [ComputeDtype::Auto, ComputeDtype::Fp8] {
            assert_eq!(kept_bytes(&[part(151_936, 5120)], dtype), None);
            assert_eq!(kept_bytes(&[part(16, 256), part(151_936, 5120)], dtype), None);
        }
    }

    /// 8-bit floats take half the bytes, plus scales. A stack that the library does not take as 8-bit floats keeps 16
    /// bits.
    #[test]
    fn stacks_are_kept_in_8_bits_where_the_library_takes_them() {
        let fp8 = |parts: &[LinearPart<'_>]| kept_bytes(parts, ComputeDtype::Fp8);
        assert_eq!(fp8(&[part(4096, 300), part(80, 300)]), Some(4096 * 512 + 4 * 4096 + 80 * 512 + 512));
        assert_eq!(fp8(&[part(4096, 300), part(72, 300)]), Some(2 * (4096 + 80) * 512));
        let biased = LinearPart { bias: Some(part(1, 16).weight), ..part(16, 256) };
        assert_eq!(fp8(&[biased, part(16, 256)]), Some(2 * 32 * 256));
        let head = LinearPart { weight: TensorView { name: "output.weight", ..part(32, 256).weight }, bias: None };
        assert_eq!(fp8(&[head]), Some(2 * 32 * 256));
    }
}
