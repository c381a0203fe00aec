//! The CPU backend while it serves: the memory and threads of its steps.

use super::attention::Unit;
use super::experts::{ExpertWork, Experts};
use super::kv::KvLayer;
use super::linear::{LinearScratch, PackedMatrix};
use super::pool::ThreadPool;
use super::simd::Isa;
use super::state_layer::StateLayer;
use super::storage::Storage;
use crate::backend::{
    BufferShape, ExpertShape, ExpertSpec, HeadsShape, KvLayerSpec, KvShape, MatrixShape, MemoryLedger, RopeShape,
    RopeSpec, StateLayerSpec, StateShape, VectorShape, WorkShape,
};
use crate::quant::GgmlType;

/// Computes on the CPU. [`super::CpuLoader`] creates it.
#[derive(Debug)]
pub struct CpuBackend {
    pub(super) pool: ThreadPool,
    pub(super) isa: Isa,
    pub(super) linear_scratch: LinearScratch,
    /// Kept between calls of attention to avoid allocations.
    pub(super) units: Vec<Unit>,
    pub(super) ledger: MemoryLedger,
    pub(super) allocations: u64,
    pub(super) kernels: Vec<(GgmlType, &'static str)>,
}

impl CpuBackend {
    pub(super) fn new(
        pool: ThreadPool,
        isa: Isa,
        linear_scratch: LinearScratch,
        ledger: MemoryLedger,
        allocations: u64,
        kernels: Vec<(GgmlType, &'static str)>,
    ) -> Self {
        Self { pool, isa, linear_scratch, units: Vec::new(), ledger, allocations, kernels }
    }

    #[cfg(test)]
    pub(super) fn work_list_bytes(&self) -> usize {
        self.units.capacity() * size_of::<Unit>()
    }
}

impl BufferShape for Storage<f32> {
    fn holds(&self, rows: usize, cols: usize) -> bool {
        rows.checked_mul(cols).is_some_and(|n| n <= self.len())
    }

    fn room(&self) -> String {
        format!("{} elements", self.len())
    }
}

impl VectorShape for Storage<f32> {
    fn elements(&self) -> usize {
        self.len()
    }
}

impl MatrixShape for PackedMatrix {
    fn rows(&self) -> usize {
        self.rows()
    }

    fn cols(&self) -> usize {
        self.cols()
    }
}

/// The matrices of heads as one stack. Each head's part has its own inputs.
#[derive(Debug)]
pub struct HeadMatrices {
    pub(super) heads: usize,
    pub(super) stack: PackedMatrix,
}

impl HeadsShape for HeadMatrices {
    fn heads(&self) -> usize {
        self.heads
    }

    fn rows(&self) -> usize {
        self.stack.rows() / self.heads
    }

    fn cols(&self) -> usize {
        self.stack.cols()
    }
}

impl RopeShape for RopeSpec {
    fn num_pairs(&self) -> usize {
        self.inv_freq.len()
    }
}

impl KvShape for KvLayer {
    fn spec(&self) -> &KvLayerSpec {
        &self.spec
    }
}

impl StateShape for StateLayer {
    fn spec(&self) -> &StateLayerSpec {
        &self.spec
    }
}

impl ExpertShape for Experts {
    fn spec(&self) -> &ExpertSpec {
        &self.spec
    }
}

impl WorkShape for ExpertWork {
    fn room(&self) -> (&ExpertSpec, usize) {
        (&self.spec, self.rows)
    }
}
