//! How a stack of matrices lies on the device: computed before anything is uploaded, since the shapes of products
//! follow from it.

use super::KernelType;
use super::arena::aligned;
use super::buffer::TILE_ROWS;
use crate::backend::LinearPart;
use crate::quant::GgmlType;
use crate::tensor::TensorView;

/// How a tensor lies on the device: in the tiles of its own type, else dequantised to f16.
pub(super) fn device_type(ty: GgmlType) -> KernelType {
    KernelType::of(ty).unwrap_or(KernelType::F16)
}

/// Bytes of all numbers of a tensor as f32, with the gap behind them.
pub(super) fn values_bytes(tensor: &TensorView<'_>) -> u64 {
    aligned(4 * (tensor.rows * tensor.cols) as u64)
}

/// Bytes of a tensor on the device.
pub(super) fn part_bytes(weight: &TensorView<'_>) -> u64 {
    aligned(device_type(weight.ggml_type).matrix_bytes(weight.rows, weight.cols))
}

pub(super) struct Layout {
    /// Start of the tiles of each matrix, in bytes from the stack's start.
    pub starts: Vec<u64>,
    pub segments: Vec<Run>,
    pub bytes: u64,
    /// Bytes of all outputs' biases, f32, which are an allocation of their own; 0 where no matrix has one.
    pub bias_bytes: u64,
}

/// Whole tiles of one type that follow each other, which are one matrix to the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub ty: KernelType,
    pub first_row: usize,
    pub rows: usize,
    /// Start of its tiles, in bytes from the stack's start.
    pub start: u64,
}

impl Layout {
    pub(super) fn of(parts: &[LinearPart<'_>]) -> Self {
        let (mut starts, mut segments): (Vec<u64>, Vec<Run>) = (Vec::new(), Vec::new());
        let (mut start, mut first_row) = (0, 0);
        for LinearPart { weight, .. } in parts {
            let ty = device_type(weight.ggml_type);
            match segments.last_mut() {
                Some(last)
                    if last.ty == ty
                        && last.rows.is_multiple_of(TILE_ROWS)
                        && last.start + ty.matrix_bytes(last.rows, weight.cols) == start =>
                {
                    last.rows += weight.rows;
                }
                _ => segments.push(Run { ty, first_row, rows: weight.rows, start }),
            }
            starts.push(start);
            start += part_bytes(weight);
            first_row += weight.rows;
        }
        let has_bias = parts.iter().any(|part| part.bias.is_some());
        let bias_bytes = if has_bias { aligned(4 * first_row as u64) } else { 0 };
        Self { starts, segments, bytes: start, bias_bytes }
    }
}
