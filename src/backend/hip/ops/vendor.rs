//! Products of many rows by the vendor's matrix library, over weights that are dequantised right before.

use super::linear::Product;
use crate::backend::hip::DevicePtr;
use crate::backend::hip::args::{DequantizeArgs, Format, LINEAR_ADD};
use crate::backend::hip::backend::HipBackend;
use crate::backend::hip::blas::{self, Element, Operands, VendorBlas};
use crate::backend::hip::buffer::{Segment, TILE_COLS, TILE_ROWS, count};
use crate::backend::hip::tuning::VENDOR_WEIGHTS_BYTES;
use crate::{Error, Result};

/// Tiles (of 16 rows x 256 columns) that a block of `dequantize_<type>` decodes.
const TILES_PER_BLOCK: usize = 4;

/// The library, and the device memory that its products need.
pub struct Vendor {
    pub blas: VendorBlas,
    pub workspace: DevicePtr,
    /// `VENDOR_WEIGHTS_BYTES`.
    pub weights: DevicePtr,
}

impl HipBackend {
    /// One segment with its activations row-major in `format`.
    pub(super) fn vendor_product(&mut self, segment: &Segment, format: Format, product: &Product) -> Result<()> {
        let Some(vendor) = &mut self.vendor else {
            return Err(Error::internal("row-major activations without a vendor's library"));
        };
        let padded_cols = product.cols.next_multiple_of(TILE_COLS);
        let super_blocks = padded_cols / TILE_COLS;
        let piece_rows = (VENDOR_WEIGHTS_BYTES as usize / (2 * padded_cols) / TILE_ROWS).max(1) * TILE_ROWS;
        let dequantize = &self.functions.of(segment.ty)?.dequantize;
        let input = if format == Format::Bf16 { Element::Bf16 } else { Element::F16 };
        for first in (0..segment.rows).step_by(piece_rows) {
            let out_rows = piece_rows.min(segment.rows - first);
            let num_tiles = out_rows.div_ceil(TILE_ROWS);
            let args = DequantizeArgs {
                weights: segment.tiles.offset(segment.ty.matrix_bytes(first, product.cols)),
                out: vendor.weights,
                num_tiles: count(num_tiles)?,
                cols: count(product.cols)?,
            };
            let blocks = count((num_tiles * super_blocks).div_ceil(TILES_PER_BLOCK))?;
            // SAFETY: see `ops`; a piece fits the memory for weights.
            unsafe { self.stream.launch(dequantize, [blocks, 1, 1], &args)? };
            let wanted = blas::Product {
                rows: product.rows,
                out_rows,
                cols: padded_cols,
                out_stride: product.out_stride,
                input,
                output: Element::F32,
                add: product.flags & LINEAR_ADD != 0,
                bias: segment.bias != DevicePtr::NULL,
            };
            let operands = Operands {
                weights: vendor.weights,
                x: product.x,
                bias: if wanted.bias { segment.bias.offset(4 * first as u64) } else { DevicePtr::NULL },
                out: product.out.offset(4 * first as u64),
                workspace: vendor.workspace,
            };
            // SAFETY: see `ops`; the dequantised rows are those of this piece, queued on the same stream.
            unsafe { vendor.blas.multiply(&self.stream, wanted, operands)? };
        }
        Ok(())
    }
}
