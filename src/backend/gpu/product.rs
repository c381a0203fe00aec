//! A product with a matrix, whichever kernel or library computes it.

use super::DeviceSlice;
use super::args::Format;
use crate::Result;

/// A product with the places that its rows come from and go to.
pub(super) struct Product<'b> {
    pub x: DeviceSlice<'b>,
    /// Outputs of the whole stack.
    pub out: DeviceSlice<'b>,
    pub shape: ProductShape<'b>,
}

/// The shape of a product, wherever its rows lie.
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
    /// Place of the outputs from `row` of the stack on.
    pub(super) fn out_from(&self, row: usize) -> Result<DeviceSlice<'b>> {
        self.out.after(self.shape.out_format.element_bytes() * row as u64)
    }
}
