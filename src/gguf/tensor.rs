//! A borrowed view of a matrix in GGUF's own block format.

use crate::quant::GgmlType;

/// `rows` rows of `cols` elements each, row after row, in `ggml_type` blocks. A vector has one row. GGUF's `ne[0]` is
/// `cols`: the input dimension of a linear layer, whose rows are its outputs.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub ggml_type: GgmlType,
    pub rows: usize,
    pub cols: usize,
    /// Exactly `rows * row_bytes(cols)` bytes.
    pub data: &'a [u8],
    /// Factors of the values, each an f32 in the file's bytes for an equal number of rows; none where the values are
    /// those of `data`.
    pub scales: &'a [u8],
}

impl TensorView<'_> {
    /// Returns the factor of the first row's values.
    pub fn scale(&self) -> f32 {
        self.scales.first_chunk().map_or(1.0, |bytes| f32::from_le_bytes(*bytes))
    }
}
