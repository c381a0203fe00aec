//! One matrix of a stack: how its rows lie in memory, packing, and reading a row back.

use super::kernels::{KernelSet, element_bytes, kernels};
use super::layout::{Layout, MAX_BLOCK_BYTES, TILE};
use crate::backend::cpu::simd::Isa;
use crate::quant::{self, GgmlType};
use crate::tensor::TensorView;
use crate::{Error, Result};

/// How a tile of 16 rows lies in memory.
#[derive(Debug, Clone)]
pub(super) enum Storage {
    /// Code planes and side bytes, see `layout`.
    Blocks(Layout, KernelSet),
    /// Elements column by column, 16 rows side by side.
    Floats(usize, KernelSet),
}

#[derive(Debug, Clone)]
pub(super) struct Part {
    pub ggml_type: GgmlType,
    pub rows: usize,
    pub cols: usize,
    /// First of the part's outputs in a row of the stack.
    pub first_row: usize,
    pub storage: Storage,
    /// Bytes per tile of 16 rows, a multiple of 64.
    pub tile_bytes: usize,
    /// Byte at which the part's tiles begin in the stack's memory.
    pub offset: usize,
    /// Index at which the part's biases, padded to whole tiles, begin among the stack's.
    pub bias: Option<usize>,
}

impl Part {
    /// # Errors
    /// `Error::Internal` when the view's sizes contradict each other or its type cannot be decoded.
    pub(super) fn new(isa: Isa, view: &TensorView<'_>, first_row: usize, offset: usize) -> Result<Self> {
        let TensorView { name, ggml_type, rows, cols, data } = *view;
        let row_bytes = ggml_type.row_bytes(cols).filter(|&b| b > 0 && rows > 0);
        let expected = row_bytes.and_then(|b| b.checked_mul(rows));
        let (Some(row_bytes), true) = (row_bytes, expected == Some(data.len())) else {
            return Err(Error::internal(format!(
                "matrix {name}: {} bytes for {rows} rows of {cols} {}",
                data.len(),
                ggml_type.name()
            )));
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
        Ok(Self { ggml_type, rows, cols, first_row, storage, tile_bytes, offset, bias: None })
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

    /// The GGUF rows of tile `index` in `data`.
    fn tile_rows<'d>(&self, data: &'d [u8], index: usize) -> impl Iterator<Item = &'d [u8]> {
        data.chunks_exact(self.row_bytes()).skip(index * TILE).take(TILE)
    }

    /// Permutes the rows of tile `index` of the GGUF matrix `data` into `tile`, which is zero.
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
    }
}

/// Decodes one block. The sizes fit by construction and types without a kernel have been refused, so that an error
/// would be ours; the values are then NaN rather than something plausible.
fn decode(ggml_type: GgmlType, block: &[u8], out: &mut [f32]) {
    if quant::dequantize(ggml_type, block, out).is_err() {
        out.fill(f32::NAN);
    }
}
