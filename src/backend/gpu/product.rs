//! What a product with a matrix is, whichever kernel or library computes it.

use super::DeviceSlice;
use super::args::Format;
use crate::Result;

/// Where a product's rows come from and go to.
pub(super) struct Product<'b> {
    pub x: DeviceSlice<'b>,
    /// Of the whole stack.
    pub out: DeviceSlice<'b>,
    pub shape: ProductShape<'b>,
}

/// What a product is, wherever its rows lie.
#[derive(Clone, Copy)]
pub(super) struct ProductShape<'b> {
    /// RMSNorm of the rows on the way, `gemv` only; `None` for the rows as they are.
    pub norm: Option<DeviceSlice<'b>>,
    pub eps: f32,
    pub rows: usize,
    pub cols: usize,
    pub out_format: Format,
    pub out_stride: usize,
    pub flags: u32,
}

impl<'b> Product<'b> {
    /// Where the outputs from `row` of the stack on go.
    pub(super) fn out_from(&self, row: usize) -> Result<DeviceSlice<'b>> {
        self.out.after(self.shape.out_format.element_bytes() * row as u64)
    }
}
