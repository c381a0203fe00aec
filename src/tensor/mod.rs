//! A borrowed view of a matrix in GGUF's own block format.

use crate::quant::GgmlType;

/// `rows` rows of `cols` elements each, row after row, in `ggml_type` blocks (a vector has one row).
/// GGUF's `ne[0]` is `cols`: the input dimension of a linear layer, whose rows are its outputs.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub ggml_type: GgmlType,
    pub rows: usize,
    pub cols: usize,
    /// Exactly `rows * row_bytes(cols)` bytes.
    pub data: &'a [u8],
}
