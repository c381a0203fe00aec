//! Products of many rows by the vendor's matrix library, over weights that are dequantised for it: once, where there
//! is memory to keep them, else right before each product.

use super::linear::Product;
use crate::backend::LinearPart;
use crate::backend::gpu::DevicePtr;
use crate::backend::gpu::args::{DEQUANTIZE_TILES, DequantizeArgs, Format, LINEAR_ADD};
use crate::backend::gpu::buffer::{Buffer, Segment, TILE_COLS, TILE_ROWS, count};
use crate::backend::gpu::compute::Compute;
use crate::backend::gpu::launcher::Launcher;
use crate::backend::gpu::tuning::VENDOR_WEIGHTS_BYTES;
use crate::backend::gpu::vendor::blas::{self, Element, Operands, VendorBlas};
use crate::{Error, Result};

/// The library, and the device memory that its products need.
pub struct Library {
    pub blas: VendorBlas,
    pub workspace: DevicePtr,
    /// `VENDOR_WEIGHTS_BYTES` at least, for weights that are not kept; and for all rows of a step in another format.
    pub weights: DevicePtr,
    pub weights_bytes: u64,
    /// It serves products of so many rows and more.
    pub least_rows: usize,
    /// What it has refused: from then on our own kernels serve.
    pub refusal: Option<blas::Refusal>,
}

/// Bytes of a matrix dequantised: whole tiles of 16-bit numbers.
pub fn dequantized_bytes(rows: usize, cols: usize) -> u64 {
    2 * rows.next_multiple_of(TILE_ROWS) as u64 * cols.next_multiple_of(TILE_COLS) as u64
}

/// Outputs of a matrix whose weights are dequantised at once where they are not kept.
pub fn piece_rows(cols: usize) -> usize {
    let row_bytes = 2 * cols.next_multiple_of(TILE_COLS);
    (VENDOR_WEIGHTS_BYTES as usize / row_bytes / TILE_ROWS).max(1) * TILE_ROWS
}

/// Bytes that a stack of matrices takes where its dequantised copy is kept; `None` for a stack that is not worth it:
/// prompts rarely want the logits of many rows, and the largest matrices serve only those.
pub fn kept_bytes(parts: &[LinearPart<'_>]) -> Option<u64> {
    let bytes = parts.iter().map(|part| dequantized_bytes(part.weight.rows, part.weight.cols));
    bytes.clone().all(|bytes| bytes <= VENDOR_WEIGHTS_BYTES).then(|| bytes.sum())
}

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
        unsafe { self.launch(&self.functions().of(segment.ty)?.dequantize, [blocks, 1, 1], &args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::gpu::arena::Arena;
    use crate::quant::GgmlType;
    use crate::tensor::TensorView;

    fn part(rows: usize, cols: usize) -> LinearPart<'static> {
        let weight = TensorView { name: "weights", ggml_type: GgmlType::Q4_K, rows, cols, data: &[] };
        LinearPart { weight, bias: None }
    }

    /// What is reserved for a stack is used, also where the parts together exceed the limit of each; what serves only
    /// logits is neither reserved nor kept.
    #[test]
    fn stacks_are_kept_whole_or_not_at_all() {
        let (rows, cols) = (17_408, 5120);
        let reserved = kept_bytes(&[part(rows, cols), part(rows, cols)]).unwrap();
        assert!(reserved > VENDOR_WEIGHTS_BYTES);
        let mut kept = Arena::new(DevicePtr(4096), reserved);
        assert_eq!(kept.take(dequantized_bytes(2 * rows, cols)), Some(DevicePtr(4096)));
        assert_eq!(kept.take(1), None);
        // Parts that do not fill their tiles are segments of their own.
        let separate = kept_bytes(&[part(17, 300), part(33, 300)]);
        assert_eq!(separate, Some(dequantized_bytes(17, 300) + dequantized_bytes(33, 300)));

        assert_eq!(kept_bytes(&[part(151_936, 5120)]), None);
        assert_eq!(kept_bytes(&[part(16, 256), part(151_936, 5120)]), None);
    }
}
