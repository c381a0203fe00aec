//! Products of many rows by the vendor's matrix library. It takes dequantised weights: kept in memory if there is room,
//! else dequantised before each product.

use std::ops::Range;
use std::path::Path;

use super::blas::{self, Element, Operands, VendorBlas};
use crate::Result;
use crate::buffer::{Dense, Segment, TILE_COLS, TILE_ROWS, count};
use crate::launch::args::{DEQUANTIZE_TILES, DequantizeArgs, Format, LINEAR_ADD};
use crate::launch::catalog::DEQUANTIZE;
use crate::launch::launcher::Launcher;
use crate::launch::product::Product;
use crate::weights::dense::piece_rows;
use crate::{DeviceBuffer, DevicePtr, Stream};

/// The library, and the device memory for its products.
pub struct Library {
    blas: VendorBlas,
    /// Room for weights that are not kept.
    weights: DeviceBuffer,
    workspace: DeviceBuffer,
    /// It serves products of at least this many rows.
    least_rows: usize,
    /// The reason why it refused a product. From then on our own kernels serve.
    refusal: Option<blas::Refusal>,
}

/// A product that the library refused.
pub(crate) struct Refused {
    /// The first output of the segment that it did not compute.
    pub first: usize,
    pub why: blas::Refusal,
}

impl Library {
    /// Creates a library that serves products of at least `least_rows` rows. `weights` has `VENDOR_WEIGHTS_BYTES`,
    /// `workspace` `blas::WORKSPACE_BYTES`.
    pub fn new(blas: VendorBlas, weights: DeviceBuffer, workspace: DeviceBuffer, least_rows: usize) -> Self {
        Self { blas, weights, workspace, least_rows, refusal: None }
    }

    pub fn file(&self) -> &Path {
        self.blas.file()
    }

    /// Returns the fewest rows that it serves; `None` once it has refused a product.
    pub fn rows(&self) -> Option<usize> {
        self.refusal.is_none().then_some(self.least_rows)
    }

    /// Returns the reason why it refused a product, if it has.
    pub fn refusal(&self) -> Option<&blas::Refusal> {
        self.refusal.as_ref()
    }

    /// Stops using the library. It stays open, since captured graphs may contain its kernels.
    pub fn retire(&mut self, refusal: blas::Refusal) {
        let file = self.blas.file().display();
        tracing::warn!(library = %file, refusal, "the matrix library refuses a product; our own kernels serve from here on");
        self.refusal = Some(refusal);
    }

    /// Multiplies one segment with row-major activations in `format`. After a refusal the library must not be used
    /// again (`Compute::give_up_library`), and `activation_format` returns the format of our own kernels.
    pub(crate) fn product(
        &mut self,
        launcher: &Launcher,
        segment: &Segment,
        format: Format,
        product: &Product<'_>,
    ) -> Result<Option<Refused>> {
        launcher.settle()?;
        let stream = launcher.stream();
        if let Some(dense) = &segment.dense {
            return self.product_of_rows(stream, segment, format, product, 0..segment.rows, Some(dense));
        }
        let cols = product.shape.cols;
        let piece_rows = piece_rows(cols);
        for first in (0..segment.rows).step_by(piece_rows) {
            let rows = first..segment.rows.min(first + piece_rows);
            launcher.dequantize(segment, cols, first, rows.len(), &self.weights)?;
            if let Some(refused) = self.product_of_rows(stream, segment, format, product, rows, None)? {
                return Ok(Some(refused));
            }
        }
        Ok(None)
    }

    /// Dequantises a segment of this many columns into its reserved room, if any.
    pub(crate) fn keep(&self, launcher: &Launcher, segment: &Segment, cols: usize) -> Result<()> {
        let Some(Dense { rows, scales }) = &segment.dense else { return Ok(()) };
        let Some(scales) = scales else { return launcher.dequantize(segment, cols, 0, segment.rows, rows) };
        let piece_rows = piece_rows(cols);
        let format_in = match segment.ty.matmul_format().map(Format::row_major) {
            Some(Format::Bf16) => Format::Bf16,
            _ => Format::F16,
        };
        for first in (0..segment.rows).step_by(piece_rows) {
            let count = piece_rows.min(segment.rows - first);
            launcher.dequantize(segment, cols, first, count, &self.weights)?;
            let before = first as u64 * cols.next_multiple_of(TILE_COLS) as u64;
            let out = [rows.slice().after(before)?, scales.slice().after(4 * first as u64)?];
            launcher.round_to_fp8(self.weights.slice(), format_in, [count, cols], out)?;
        }
        Ok(())
    }

    /// Multiplies some outputs of a segment. Their dequantised rows are in `kept`, else in `weights`.
    fn product_of_rows(
        &mut self,
        stream: &Stream,
        segment: &Segment,
        format: Format,
        product: &Product<'_>,
        rows: Range<usize>,
        kept: Option<&Dense>,
    ) -> Result<Option<Refused>> {
        let shape = &product.shape;
        let bias = segment.outputs_from(rows.start, shape.cols)?.bias;
        let input = match format {
            Format::Fp8 => Element::Fp8,
            Format::Bf16 => Element::Bf16,
            _ => Element::F16,
        };
        let scales = match kept.and_then(|dense| dense.scales.as_ref()) {
            Some(of_weights) => {
                let of_x = product.x.after(Format::fp8_bytes(shape.rows, shape.cols)[0])?;
                [of_weights.ptr(), of_x.ptr()]
            }
            None => [DevicePtr::NULL; 2],
        };
        let wanted = blas::Product {
            rows: shape.rows,
            out_rows: rows.len(),
            cols: shape.cols.next_multiple_of(TILE_COLS),
            out_stride: shape.out_stride,
            input,
            output: if shape.out_format == Format::F16 { Element::F16 } else { Element::F32 },
            add: shape.flags & LINEAR_ADD != 0,
            bias: bias.is_some(),
        };
        let operands = Operands {
            weights: kept.map_or(&self.weights, |dense| &dense.rows).ptr(),
            x: product.x.ptr(),
            bias: bias.into(),
            out: product.out_from(segment.first_row + rows.start)?.ptr(),
            scales,
            workspace: self.workspace.ptr(),
        };
        // SAFETY: see `ops`; the weights were written by a kernel before, on the same stream.
        let refusal = unsafe { self.blas.multiply(stream, wanted, operands)? };
        Ok(refusal.err().map(|why| Refused { first: rows.start, why }))
    }
}

impl Launcher {
    /// Writes rows `first .. first + rows` of a segment (`first` a multiple of 16) as 16-bit numbers to `out`.
    pub(crate) fn dequantize(
        &self,
        segment: &Segment,
        cols: usize,
        first: usize,
        rows: usize,
        out: &DeviceBuffer,
    ) -> Result<()> {
        let num_tiles = rows.div_ceil(TILE_ROWS);
        let args = DequantizeArgs {
            weights: segment.outputs_from(first, cols)?.tiles.ptr(),
            out: out.ptr(),
            num_tiles: count(num_tiles)?,
            cols: count(cols)?,
        };
        let blocks = count((num_tiles * cols.div_ceil(TILE_COLS)).div_ceil(DEQUANTIZE_TILES as usize))?;
        // SAFETY: see `ops`; the rows fit where they go.
        unsafe { self.launch(DEQUANTIZE, segment.ty, [blocks, 1, 1], &args) }
    }
}
