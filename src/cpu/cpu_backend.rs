//! The CPU backend while it serves: the memory and threads of its steps.

use std::collections::VecDeque;

use super::attention::Unit;
use super::experts::{ExpertWork, Experts};
use super::kv::KvLayer;
use super::linear::{LinearScratch, PackedMatrix};
use super::pool::ThreadPool;
use super::simd::Isa;
use super::state_layer::StateLayer;
use super::storage::Storage;
use crate::Result;
use crate::backend::contents::{joined, outside, split_off, wrong_size};
use crate::backend::{
    BufferShape, Copied, ExpertShape, ExpertSpec, HeadsShape, KvLayerSpec, KvShape, MatrixShape, MemoryLedger, Part,
    StateLayerSpec, StateShape, VectorShape, WorkShape,
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
    /// Contents that were copied and not yet taken.
    copied: VecDeque<Copied>,
    /// The numbers of contents that were copied back.
    copied_in: VecDeque<u64>,
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
        Self {
            pool,
            isa,
            linear_scratch,
            units: Vec::new(),
            ledger,
            allocations,
            kernels,
            copied: VecDeque::new(),
            copied_in: VecDeque::new(),
        }
    }

    /// Copies a content to the host at once.
    pub(super) fn copy_out_now(&mut self, number: u64, parts: &[Part<'_, Self>]) -> Result<()> {
        let mut found: Vec<Option<&[u8]>> = Vec::new();
        for part in parts {
            match part {
                Part::Block(layer, block) => found.extend(layer.parts(*block)),
                Part::Slot(layer, slot) => found.extend(layer.parts(*slot)),
            }
        }
        let found: Vec<&[u8]> = found.into_iter().collect::<Option<_>>().ok_or_else(outside)?;
        self.copied.push_back((number, joined(&found)));
        Ok(())
    }

    pub(super) fn take_copied(&mut self) -> Option<Copied> {
        self.copied.pop_front()
    }

    pub(super) fn take_copied_in(&mut self) -> Option<u64> {
        self.copied_in.pop_front()
    }

    /// Copies a content back at once.
    pub(super) fn copy_in_now(&mut self, number: u64, parts: &mut [Part<'_, Self>], content: &[u8]) -> Result<()> {
        let mut rest = content;
        for part in parts {
            let mut fill = |part: Option<&mut [u8]>| -> Result<()> {
                let part = part.ok_or_else(outside)?;
                let from = split_off(&mut rest, part.len())?;
                part.copy_from_slice(from);
                Ok(())
            };
            match part {
                Part::Block(layer, block) => layer.parts_mut(*block).into_iter().try_for_each(&mut fill)?,
                Part::Slot(layer, slot) => layer.parts_mut(*slot).into_iter().try_for_each(&mut fill)?,
            }
        }
        if !rest.is_empty() {
            return Err(wrong_size(content.len()));
        }
        self.copied_in.push_back(number);
        Ok(())
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn work_list_bytes(&self) -> usize {
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
