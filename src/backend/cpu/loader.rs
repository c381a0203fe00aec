//! Takes the memory of an engine on the CPU.

use super::experts::{ExpertWork, Experts, Routes, work_sizes};
use super::kv::{KvElement, KvLayer, KvPages, KvPool, TILE};
use super::linear::{LinearScratch, PackedMatrix};
use super::memory;
use super::ops::CpuBackend;
use super::pool::ThreadPool;
use super::simd::Isa;
use super::storage::{Element, Storage};
use crate::backend::{ExpertSpec, ExpertTensors, KvLayerSpec, LinearPart, Loader, MemoryLedger};
use crate::config::KvCacheDtype;
use crate::quant::{self, GgmlType};
use crate::tensor::TensorView;
use crate::{Error, Result};

/// Loads an engine onto the CPU; see [`Loader`].
#[derive(Debug)]
pub struct CpuLoader {
    pool: ThreadPool,
    isa: Isa,
    ledger: MemoryLedger,
    allocations: u64,
    /// Most rows of a step, and most inputs of a matrix: what `linear` will be asked for.
    max_rows: usize,
    max_inputs: usize,
    /// Which kernel serves which type, for `describe`.
    kernels: Vec<(GgmlType, &'static str)>,
}

/// What memory is for; names the entry of the ledger.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Weights,
    KvCache,
    Scratch,
}

impl CpuLoader {
    /// A loader whose engine computes with `num_threads` threads, the engine's own included, steps of at most
    /// `max_rows` tokens, on the best instruction set of this CPU.
    ///
    /// # Errors
    /// As [`ThreadPool::new`].
    pub fn new(num_threads: usize, max_rows: usize) -> Result<Self> {
        Ok(Self {
            pool: ThreadPool::new(num_threads)?,
            isa: Isa::detect(),
            ledger: MemoryLedger::default(),
            allocations: 0,
            max_rows,
            max_inputs: 1,
            kernels: Vec::new(),
        })
    }

    /// The same on another instruction set. To be said before the first matrix, which is packed for it.
    pub fn with_isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }

    /// The one way to memory: everything that lives as long as the engine is recorded here.
    fn record(&mut self, purpose: Purpose, bytes: u64) {
        let entry = match purpose {
            Purpose::Weights => &mut self.ledger.weights,
            Purpose::KvCache => &mut self.ledger.kv_cache,
            Purpose::Scratch => &mut self.ledger.scratch,
        };
        *entry += bytes;
        self.allocations += 1;
    }

    fn allocate<T: Element>(&mut self, purpose: Purpose, shape: &[usize]) -> Result<Storage<T>> {
        let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let storage = elements.and_then(Storage::zeroed).ok_or_else(|| {
            let bytes = shape.iter().fold(size_of::<T>() as u64, |product, &n| product.saturating_mul(n as u64));
            self.out_of_memory(purpose, bytes, memory::available().unwrap_or(0))
        })?;
        self.record(purpose, storage.bytes());
        Ok(storage)
    }

    fn allocate_pages<E: KvElement>(&mut self, spec: KvLayerSpec) -> Result<KvPages<E>> {
        let shape = [spec.num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim];
        let k = self.allocate(Purpose::KvCache, &shape)?;
        let v = self.allocate(Purpose::KvCache, &shape)?;
        Ok(KvPages { spec, k, v })
    }

    fn out_of_memory(&self, purpose: Purpose, requested: u64, available: u64) -> Error {
        let (what, advice) = match purpose {
            Purpose::Weights => ("a weight", "use a smaller model or a machine with more memory"),
            Purpose::KvCache => ("one layer of the KV cache", "lower kv_cache_memory, max_model_len or max_num_seqs"),
            Purpose::Scratch => ("a buffer of activations", "lower max_num_batched_tokens"),
        };
        Error::OutOfMemory { what: what.to_owned(), requested, available, advice }
    }
}

impl Loader for CpuLoader {
    type Backend = CpuBackend;

    fn upload_matrix(&mut self, parts: &[LinearPart<'_>]) -> Result<PackedMatrix> {
        let matrix = PackedMatrix::pack(self.isa, parts, &self.pool)?;
        self.record(Purpose::Weights, matrix.bytes());
        self.max_inputs = self.max_inputs.max(matrix.cols());
        self.kernels.extend(matrix.kernels());
        self.kernels.sort_unstable();
        self.kernels.dedup();
        Ok(matrix)
    }

    fn upload_experts(&mut self, tensors: &ExpertTensors<'_>) -> Result<Experts> {
        tensors.validate()?;
        let data = tensors.router_bytes()?;
        let router = TensorView { ggml_type: GgmlType::F32, data: &data, ..tensors.router };
        let mut upload = |parts: &[TensorView<'_>]| {
            let part = |&weight| LinearPart { weight, bias: None };
            self.upload_matrix(&parts.iter().map(part).collect::<Vec<_>>())
        };
        let router = upload(&[router])?;
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..tensors.spec.num {
            gate_up.push(upload(&[tensors.gate, tensors.up].map(|tensor| tensors.of_expert(tensor, expert)))?);
            down.push(upload(&[tensors.of_expert(tensors.down, expert)])?);
        }
        Ok(Experts { spec: tensors.spec, router, gate_up, down })
    }

    fn upload_vector(&mut self, tensor: TensorView<'_>) -> Result<Storage<f32>> {
        let mut vector = self.allocate(Purpose::Weights, &[tensor.rows, tensor.cols])?;
        quant::dequantize(tensor.ggml_type, tensor.data, &mut vector)?;
        Ok(vector)
    }

    fn alloc_buffer(&mut self, rows: usize, cols: usize) -> Result<Storage<f32>> {
        self.allocate(Purpose::Scratch, &[rows, cols])
    }

    fn alloc_expert_work(&mut self, spec: &ExpertSpec, rows: usize) -> Result<ExpertWork> {
        spec.validate()?;
        let [logits, values, gate_up, gated] = work_sizes(spec, rows);
        Ok(ExpertWork {
            spec: *spec,
            rows,
            logits: self.allocate(Purpose::Scratch, &logits)?,
            values: self.allocate(Purpose::Scratch, &values)?,
            gate_up: self.allocate(Purpose::Scratch, &gate_up)?,
            gated: self.allocate(Purpose::Scratch, &gated)?,
            routes: Routes::new(spec, rows),
        })
    }

    fn expert_work_bytes(spec: &ExpertSpec, rows: usize) -> u64 {
        let values = |[rows, cols]: [usize; 2]| (rows as u64).saturating_mul(cols as u64);
        work_sizes(spec, rows).map(values).into_iter().fold(0, u64::saturating_add).saturating_mul(4)
    }

    fn check_block_size(&self, block_size: usize) -> Result<()> {
        match block_size == 0 || !block_size.is_multiple_of(TILE) {
            true => Err(Error::invalid("block_size", block_size, format!("a multiple of {TILE} on the CPU"))),
            false => Ok(()),
        }
    }

    fn alloc_kv_layer(&mut self, spec: KvLayerSpec) -> Result<KvLayer> {
        let KvLayerSpec { num_blocks, block_size, .. } = spec;
        self.check_block_size(block_size)?;
        let bytes = spec.block_bytes().and_then(|bytes| bytes.checked_mul(num_blocks as u64)).unwrap_or(u64::MAX);
        // The system would promise more than it has, and kill the process when the pool fills up.
        if let Ok(available) = self.available_memory()
            && bytes > available
        {
            return Err(self.out_of_memory(Purpose::KvCache, bytes, available));
        }
        let pool = match spec.dtype {
            KvCacheDtype::F16 => KvPool::F16(self.allocate_pages(spec)?),
            KvCacheDtype::F32 => KvPool::F32(self.allocate_pages(spec)?),
        };
        Ok(KvLayer { spec, pool })
    }

    fn available_memory(&self) -> Result<u64> {
        // Buffers and KV pool are mapped when they are first written: the system still counts them as available.
        Ok(memory::available()?.saturating_sub(self.ledger.kv_cache + self.ledger.scratch))
    }

    fn finish(mut self) -> Result<CpuBackend> {
        let scratch = LinearScratch::new(self.max_rows, self.max_inputs)?;
        self.record(Purpose::Scratch, scratch.bytes());
        Ok(CpuBackend::new(self.pool, self.isa, scratch, self.ledger, self.allocations, self.kernels))
    }
}
