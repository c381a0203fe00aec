//! One matrix of a stack: the layout of its rows in memory, packing, and reading a row back.

use crate::quant::{self, GgmlType};
use crate::simd::Isa;
use crate::simd::linear::{KernelSet, Layout, MAX_BLOCK_BYTES, TILE, element_bytes, kernels};
use crate::tensor::TensorView;
use crate::{Error, Result};

/// The layout of a tile of 16 rows in memory.
#[derive(Debug, Clone)]
pub(super) enum Storage {
    /// Code planes and side bytes; see `Layout`.
    Blocks(Layout, KernelSet),
    /// Elements column by column, with 16 rows adjacent.
    Floats(usize, KernelSet),
}

#[derive(Debug, Clone)]
pub(super) struct Part {
    pub ggml_type: GgmlType,
    pub rows: usize,
    pub cols: usize,
    /// Factor of the blocks' values.
    pub scale: f32,
    /// The first of the part's outputs in a row of the stack.
    pub first_row: usize,
    pub storage: Storage,
    /// Bytes per tile of 16 rows, a multiple of 64.
    pub tile_bytes: usize,
    /// The index of the part's biases, padded to whole tiles, among the stack's biases.
    pub bias: Option<usize>,
}

impl Part {
    /// Lays out a matrix by its shape; its bytes may be absent.
    ///
    /// # Errors
    /// `Error::Internal` if the shape is no whole number of blocks, or the type cannot be decoded.
    pub(super) fn new(isa: Isa, view: &TensorView<'_>, first_row: usize) -> Result<Self> {
        let TensorView { name, ggml_type, rows, cols, .. } = *view;
        let row_bytes = ggml_type.row_bytes(cols).filter(|&b| b > 0 && rows > 0 && b.checked_mul(rows).is_some());
        let Some(row_bytes) = row_bytes else {
            return Err(Error::internal(format!("matrix {name} has {rows} rows of {cols} {}", ggml_type.name())));
        };
        let storage = match (kernels(isa, ggml_type), Layout::of(ggml_type), element_bytes(ggml_type)) {
            (Some(kernels), Some(layout), _) => Storage::Blocks(layout, kernels),
            (Some(kernels), None, Some(bytes)) => Storage::Floats(bytes, kernels),
            _ => return Err(Error::internal(format!("matrix {name}: no kernel for {}", ggml_type.name()))),
        };
        let tile_bytes = match &storage {
            Storage::Blocks(layout, _) => layout.tile_bytes(cols),
            Storage::Floats(..) => (TILE * row_bytes).next_multiple_of(64),
        };
        Ok(Self { ggml_type, rows, cols, scale: view.scale(), first_row, storage, tile_bytes, bias: None })
    }

    /// # Errors
    /// `Error::Internal` if the view's bytes do not fit its shape.
    pub(super) fn check_data(&self, view: &TensorView<'_>) -> Result<()> {
        let (got, expected) = (view.data.len(), self.rows * self.row_bytes());
        if got != expected {
            let problem = format!("matrix {}: {got} bytes, expected {expected}", view.name);
            return Err(Error::internal(problem));
        }
        Ok(())
    }

    pub(super) fn num_tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    pub(super) fn bytes(&self) -> usize {
        self.num_tiles() * self.tile_bytes
    }

    fn row_bytes(&self) -> usize {
        self.cols / self.ggml_type.block_elements() * self.ggml_type.block_bytes()
    }

    /// Returns the GGUF rows of tile `index` in `data`.
    fn tile_rows<'d>(&self, data: &'d [u8], index: usize) -> impl Iterator<Item = &'d [u8]> {
        data.chunks_exact(self.row_bytes()).skip(index * TILE).take(TILE)
    }

    /// Permutes the rows of tile `index` of the GGUF matrix `data` into `tile`, which must be zero.
    pub(super) fn pack_tile(&self, data: &[u8], index: usize, tile: &mut [u8]) {
        for (row, data) in self.tile_rows(data, index).enumerate() {
            match &self.storage {
                Storage::Blocks(layout, _) => layout.pack_row(data, row, self.cols, tile),
                Storage::Floats(bytes, _) => {
                    for (element, column) in data.chunks_exact(*bytes).zip(tile.chunks_exact_mut(TILE * bytes)) {
                        column[row * bytes..][..*bytes].copy_from_slice(element);
                    }
                }
            }
        }
    }

    /// Decodes row `row` of `tile`.
    pub(super) fn dequantize_row(&self, tile: &[u8], row: usize, out: &mut [f32]) {
        match &self.storage {
            Storage::Blocks(layout, _) => {
                let mut block = [0u8; MAX_BLOCK_BYTES];
                for (i, out) in out.chunks_exact_mut(self.ggml_type.block_elements()).enumerate() {
                    decode(self.ggml_type, layout.unpack_block(tile, row, self.cols, i, &mut block), out);
                }
            }
            Storage::Floats(bytes, _) => {
                for (out, column) in out.iter_mut().zip(tile.chunks_exact(TILE * bytes)) {
                    decode(self.ggml_type, &column[row * bytes..][..*bytes], std::slice::from_mut(out));
                }
            }
        }
        out.iter_mut().for_each(|value| *value *= self.scale);
    }
}

/// Decodes one block. Sizes fit by construction, and types without a kernel were refused, so an error would be a bug
/// here. The values are then NaN instead of something plausible.
fn decode(ggml_type: GgmlType, block: &[u8], out: &mut [f32]) {
    if quant::dequantize(ggml_type, block, out).is_err() {
        out.fill(f32::NAN);
    }
}
