//! A product with a matrix, for any kernel or library.

use super::args::Format;
use crate::DeviceSlice;
use crate::Result;

/// A product with the memory of its rows and outputs.
pub(crate) struct Product<'b> {
    pub x: DeviceSlice<'b>,
    /// Outputs of the whole stack.
    pub out: DeviceSlice<'b>,
    pub shape: ProductShape<'b>,
}

/// The shape of a product, independent of its memory.
#[derive(Clone, Copy)]
pub(crate) struct ProductShape<'b> {
    /// Weights of a fused RMSNorm of the rows, `gemv` only; `None` for rows without a norm.
    pub norm: Option<DeviceSlice<'b>>,
    pub eps: f32,
    pub rows: usize,
    pub cols: usize,
    pub out_format: Format,
    pub out_stride: usize,
    pub flags: u32,
}

impl<'b> Product<'b> {
    /// Returns the memory of the outputs that start at `row` of the stack.
    pub(crate) fn out_from(&self, row: usize) -> Result<DeviceSlice<'b>> {
        self.out.after(self.shape.out_format.element_bytes() * row as u64)
    }
}
