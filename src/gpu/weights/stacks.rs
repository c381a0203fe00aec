//! The layout of a stack of matrices on the device. It is computed before anything is uploaded, because the shapes of
//! products depend on it.

use crate::KernelType;
use crate::Result;
use crate::backend::LinearPart;
use crate::buffer::TILE_ROWS;
use crate::device::arena::aligned;
use crate::tensor::TensorView;

/// Returns the bytes of all numbers of a tensor as f32, with the gap that follows them.
pub(crate) fn values_bytes(tensor: &TensorView<'_>) -> u64 {
    aligned(4 * (tensor.rows * tensor.cols) as u64)
}

/// Returns the bytes of a tensor on the device.
pub(crate) fn part_bytes(weight: &TensorView<'_>) -> Result<u64> {
    Ok(aligned(KernelType::of(weight.ggml_type)?.matrix_bytes(weight.rows, weight.cols)))
}

pub(crate) struct Layout {
    /// Start of the tiles of each matrix, in bytes from the stack's start.
    pub starts: Vec<u64>,
    pub segments: Vec<Run>,
    pub bytes: u64,
    /// Bytes of all outputs' biases in f32, which get a separate allocation; 0 if no matrix has a bias.
    pub bias_bytes: u64,
}

/// Consecutive whole tiles of one type, which kernels treat as one matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub ty: KernelType,
    pub first_row: usize,
    pub rows: usize,
    /// Start of its tiles, in bytes from the stack's start.
    pub start: u64,
}

impl Layout {
    pub(crate) fn of(parts: &[LinearPart<'_>]) -> Result<Self> {
        let (mut starts, mut segments): (Vec<u64>, Vec<Run>) = (Vec::new(), Vec::new());
        let (mut start, mut first_row) = (0, 0);
        for LinearPart { weight, .. } in parts {
            let ty = KernelType::of(weight.ggml_type)?;
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
            start += part_bytes(weight)?;
            first_row += weight.rows;
        }
        let has_bias = parts.iter().any(|part| part.bias.is_some());
        let bias_bytes = if has_bias { aligned(4 * first_row as u64) } else { 0 };
        Ok(Self { starts, segments, bytes: start, bias_bytes })
    }
}
