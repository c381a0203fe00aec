//! `linear`: quantised matrices times activations; see the real module.

use super::pool::ThreadPool;
use crate::Result;
use crate::backend::LinearPart;

/// A stack of matrices packed for the CPU's SIMD width.
#[derive(Debug)]
pub struct PackedMatrix {}

/// Scratch of one engine for quantised activations, allocated once for the largest step.
#[derive(Debug)]
pub struct LinearScratch {}

impl LinearScratch {
    pub fn new(max_rows: usize, max_cols: usize) -> Result<Self> {
        let _ = (max_rows, max_cols);
        todo!("linear")
    }
    pub fn bytes(&self) -> u64 {
        todo!("linear")
    }
}

impl PackedMatrix {
    /// Repacks the parts (a permutation of the file's bytes, so `bytes() ≈` the file's).
    pub fn pack(parts: &[LinearPart<'_>], pool: &ThreadPool) -> Result<Self> {
        let _ = (parts, pool);
        todo!("linear")
    }
    /// Outputs over all parts.
    pub fn rows(&self) -> usize {
        todo!("linear")
    }
    /// Inputs.
    pub fn cols(&self) -> usize {
        todo!("linear")
    }
    pub fn bytes(&self) -> u64 {
        todo!("linear")
    }
    /// Decodes one row (embedding lookup) into `out` (`cols()` values).
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        let _ = (row, out);
        todo!("linear")
    }
    /// `out[r * rows() + o] = Σ_c W[o][c] · x[r * cols() + c] (+ bias[o])` for `r < num_rows`.
    pub fn multiply(
        &self,
        x: &[f32],
        num_rows: usize,
        out: &mut [f32],
        scratch: &mut LinearScratch,
        pool: &ThreadPool,
    ) {
        let _ = (x, num_rows, out, scratch, pool);
        todo!("linear")
    }
    /// `(tensor type, kernel name)` of each part, for `doctor`.
    pub fn kernels(&self) -> Vec<(crate::quant::GgmlType, &'static str)> {
        todo!("linear")
    }
}
