//! Matrices of experts in the host's memory, in the layout of the CPU's kernels.

use crate::KernelType;
use crate::quant::GgmlType;

/// The matrices of all experts of a layer.
#[derive(Debug)]
pub(crate) struct Packed {
    pub ty: KernelType,
    /// The type in the file, whose blocks the CPU's layout has.
    pub file: GgmlType,
    pub rows: usize,
    pub cols: usize,
    /// Bytes of a matrix in the CPU's layout.
    pub matrix_bytes: u64,
    /// The factor of each matrix.
    pub scales: Vec<f32>,
}

impl Packed {
    /// Returns the bytes of a row in the file.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.file.row_bytes(self.cols).unwrap_or(0) as u64
    }

    /// Returns the bytes of a matrix in the longer one of both layouts.
    pub(crate) fn longer_bytes(&self) -> u64 {
        self.matrix_bytes.max(self.rows as u64 * self.row_bytes()).max(1)
    }
}
