//! Products of many rows by the vendor's matrix library, over weights that are dequantised for it: once, where there
//! is memory to keep them, else right before each product.

use super::linear::Product;
use crate::backend::gpu::DevicePtr;
use crate::backend::gpu::args::{DEQUANTIZE_TILES, DequantizeArgs, Format, LINEAR_ADD};
use crate::backend::gpu::buffer::{Buffer, Segment, TILE_COLS, TILE_ROWS, count};
use crate::backend::gpu::compute::Compute;
use crate::backend::gpu::dense::piece_rows;
use crate::backend::gpu::kernel::DEQUANTIZE;
use crate::backend::gpu::launcher::Launcher;
use crate::backend::gpu::vendor::blas::{self, Element, Operands};
use crate::{Error, Result};

impl Compute {
    /// Dequantises the segments (with their columns) that have a place for it.
    pub(in super::super) fn keep_dequantized(&mut self, segments: &[(Segment, usize)]) -> Result<()> {
        segments.iter().try_for_each(|(segment, cols)| match segment.dense {
            Some(place) => self.launcher.dequantize(segment, *cols, 0, segment.rows, place),
            None => Ok(()),
        })
    }

    /// One segment with its activations row-major in `format`. `Some` where the library refused: the first output that
    /// it did not compute. It is not asked again then, and `activation_format` is that of our own kernels.
    pub(super) fn library_product(
        &mut self,
        segment: &Segment,
        format: Format,
        product: &Product,
    ) -> Result<Option<usize>> {
        let Some(library) = &self.library else {
            return Err(Error::internal("row-major activations without a vendor's library"));
        };
        if let Some(weights) = segment.dense {
            return self.product_of_rows(segment, format, product, 0, segment.rows, weights);
        }
        let weights = library.weights;
        let piece_rows = piece_rows(product.cols);
        for first in (0..segment.rows).step_by(piece_rows) {
            let rows = piece_rows.min(segment.rows - first);
            self.launcher.dequantize(segment, product.cols, first, rows, weights)?;
            if let Some(refused) = self.product_of_rows(segment, format, product, first, rows, weights)? {
                return Ok(Some(refused));
            }
        }
        Ok(None)
    }

    /// Goes on without the library, which was warned of once. It stays open: recorded steps may hold what it launched.
    fn give_up_library(&mut self, refusal: blas::Refusal) {
        let Some(library) = &mut self.library else { return };
        let file = library.blas.file().display();
        tracing::warn!(library = %file, refusal, "the matrix library refuses a product; our own kernels serve from here on");
        library.refusal = Some(refusal);
        // Rows of this step may be row-major already, and all of them have to be converted for our kernels.
        if self.workspace.conversion.bytes < library.weights_bytes {
            self.workspace.conversion =
                Buffer { ptr: library.weights, bytes: library.weights_bytes, format: Format::F32 };
        }
    }

    /// The product of those rows, which lie dequantised at `weights`; `first` where the library refused it.
    fn product_of_rows(
        &mut self,
        segment: &Segment,
        format: Format,
        product: &Product,
        first: usize,
        rows: usize,
        weights: DevicePtr,
    ) -> Result<Option<usize>> {
        let Some(library) = &mut self.library else {
            return Err(Error::internal("a library's product without the library"));
        };
        let wanted = blas::Product {
            rows: product.rows,
            out_rows: rows,
            cols: product.cols.next_multiple_of(TILE_COLS),
            out_stride: product.out_stride,
            input: if format == Format::Bf16 { Element::Bf16 } else { Element::F16 },
            output: if product.out_format == Format::F16 { Element::F16 } else { Element::F32 },
            add: product.flags & LINEAR_ADD != 0,
            bias: segment.bias != DevicePtr::NULL,
        };
        let operands = Operands {
            weights,
            x: product.x,
            bias: if wanted.bias { segment.bias.offset(4 * first as u64) } else { DevicePtr::NULL },
            out: product.out_of(segment).offset(product.out_format.element_bytes() * first as u64),
            workspace: library.workspace,
        };
        // SAFETY: see `ops`; the weights were written by a kernel before, on the same stream.
        let refusal = unsafe { library.blas.multiply(self.launcher.stream(), wanted, operands)? };
        Ok(refusal.err().map(|refusal| {
            self.give_up_library(refusal);
            first
        }))
    }
}

impl Launcher {
    /// Rows `first .. first + rows` of a segment (`first` a multiple of 16) as 16-bit numbers, to `out`.
    fn dequantize(&self, segment: &Segment, cols: usize, first: usize, rows: usize, out: DevicePtr) -> Result<()> {
        let num_tiles = rows.div_ceil(TILE_ROWS);
        let args = DequantizeArgs {
            weights: segment.tiles.offset(segment.ty.matrix_bytes(first, cols)),
            out,
            num_tiles: count(num_tiles)?,
            cols: count(cols)?,
        };
        let blocks = count((num_tiles * cols.div_ceil(TILE_COLS)).div_ceil(DEQUANTIZE_TILES as usize))?;
        // SAFETY: see `ops`; the rows fit where they go.
        unsafe { self.launch(DEQUANTIZE, segment.ty, [blocks, 1, 1], &args) }
    }
}
