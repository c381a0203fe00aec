//! Allocates the memory of an engine on the CPU.

use super::cpu_backend::{CpuBackend, HeadMatrices};
use super::experts::{ExpertWork, Experts, Routes, work_sizes};
use super::kv::{Int4Pages, Int4Side, KvElement, KvLayer, KvPages, KvPool, TILE};
use super::linear::{LinearScratch, PackedMatrix, WeightMemory};
use super::pool::ThreadPool;
use super::simd::Isa;
use super::state_layer::StateLayer;
use super::storage::{Element, Storage};
use crate::backend::experts::share;
use crate::backend::host_memory::HostMemory;
use crate::backend::{
    ExpertPart, ExpertSpec, ExpertTensors, KvLayerSpec, LinearPart, Loader, MemoryLedger, Progress, RopeSpec,
    StateLayerSpec, Upload,
};
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
    /// The most rows of a step and the most inputs of a matrix. They determine the size of `linear`'s scratch.
    max_rows: usize,
    max_inputs: usize,
    /// The kernel of each tensor type, for `describe`.
    kernels: Vec<(GgmlType, &'static str)>,
    memory: HostMemory,
    /// The memory that holds the matrices.
    weights: WeightMemory,
}

/// The purpose of an allocation, which is its entry in the ledger.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Weights,
    KvCache,
    Scratch,
}

impl CpuLoader {
    /// Returns a loader for an engine with `num_threads` threads, including the engine thread, and steps of at most
    /// `max_rows` tokens. It uses the best instruction set of this CPU.
    ///
    /// # Errors
    /// See [`ThreadPool::new`].
    pub fn new(num_threads: usize, max_rows: usize) -> Result<Self> {
        Ok(Self {
            pool: ThreadPool::new(num_threads)?,
            isa: Isa::detect(),
            ledger: MemoryLedger::default(),
            allocations: 0,
            max_rows,
            max_inputs: 1,
            kernels: Vec::new(),
            memory: HostMemory::default(),
            weights: WeightMemory::default(),
        })
    }

    /// Chooses another instruction set. Call it before the first upload, since matrices are packed for an instruction
    /// set.
    pub fn with_isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }

    /// Reads the machine's memory from the system's files under `root`.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_system_root(mut self, root: &std::path::Path) -> Self {
        self.memory = HostMemory::under(root);
        self
    }

    /// Records every allocation that lives as long as the engine.
    fn record(&mut self, purpose: Purpose, bytes: u64) {
        let entry = match purpose {
            Purpose::Weights => &mut self.ledger.weights,
            Purpose::KvCache => &mut self.ledger.kv_cache,
            Purpose::Scratch => &mut self.ledger.scratch,
        };
        *entry += bytes;
        self.allocations += 1;
    }

    /// Returns the available memory less the buffers and the KV pool. Their pages are mapped at the first write, so the
    /// system still counts them as available.
    fn unclaimed_memory(&self) -> Result<u64> {
        Ok(self.memory.available()?.saturating_sub(self.ledger.kv_cache + self.ledger.scratch))
    }

    /// Returns the bytes of the scratch that `finish` allocates for matrices of up to `max_inputs`.
    fn linear_scratch_bytes(&self, max_inputs: usize) -> u64 {
        LinearScratch::sizes(self.max_rows, max_inputs).iter().fold(0, |sum, &bytes| sum.saturating_add(bytes as u64))
    }

    fn allocate<T: Element>(&mut self, purpose: Purpose, shape: &[usize]) -> Result<Storage<T>> {
        let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let storage = elements.and_then(Storage::zeroed).ok_or_else(|| {
            let bytes = shape.iter().fold(size_of::<T>() as u64, |product, &n| product.saturating_mul(n as u64));
            self.out_of_memory(purpose, bytes, self.memory.available().unwrap_or(0))
        })?;
        self.record(purpose, storage.bytes());
        Ok(storage)
    }

    fn allocate_pages<E: KvElement>(&mut self, spec: KvLayerSpec) -> Result<KvPages<E>> {
        let shape = [spec.num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim];
        let k = self.allocate(Purpose::KvCache, if spec.latent.is_some() { &[0] } else { &shape })?;
        let v = self.allocate(Purpose::KvCache, &shape)?;
        let scales = [spec.num_blocks, spec.num_kv_heads, spec.block_size, 2];
        let scales = E::HAS_SCALES.then(|| self.allocate(Purpose::KvCache, &scales)).transpose()?;
        Ok(KvPages { spec, k, v, scales })
    }

    fn allocate_int4(&mut self, spec: KvLayerSpec) -> Result<Int4Side> {
        let blocks = [spec.num_blocks, spec.num_kv_heads, spec.block_size, spec.int4_blocks()];
        let of_block = |numbers: usize| [&blocks[..], &[numbers]].concat();
        let codes = self.allocate(Purpose::KvCache, &of_block(KvLayerSpec::INT4_BLOCK / 2))?;
        let scales = self.allocate(Purpose::KvCache, &of_block(2))?;
        Ok(Int4Side { codes, scales })
    }

    fn alloc_kv_layer(&mut self, spec: KvLayerSpec) -> Result<KvLayer> {
        let KvLayerSpec { num_blocks, block_size, .. } = spec;
        spec.validate()?;
        self.check_block_size(block_size)?;
        let bytes = spec.block_bytes().and_then(|bytes| bytes.checked_mul(num_blocks as u64)).unwrap_or(u64::MAX);
        // The system would overcommit, and kill the process when the pool fills up.
        if let Ok(available) = self.available_memory()
            && bytes > available
        {
            return Err(self.out_of_memory(Purpose::KvCache, bytes, available));
        }
        let pool = match spec.dtype {
            KvCacheDtype::F16 => KvPool::F16(self.allocate_pages(spec)?),
            KvCacheDtype::F32 => KvPool::F32(self.allocate_pages(spec)?),
            KvCacheDtype::Int8 => KvPool::Int8(self.allocate_pages(spec)?),
            KvCacheDtype::Int4 => {
                let (k, v) = (self.allocate_int4(spec)?, self.allocate_int4(spec)?);
                KvPool::Int4(Int4Pages { spec, k, v })
            }
        };
        Ok(KvLayer { spec, pool })
    }

    fn alloc_state_layer(&mut self, spec: StateLayerSpec) -> Result<StateLayer> {
        let bytes = spec.slot_bytes().saturating_mul(spec.num_slots as u64);
        if let Ok(available) = self.available_memory()
            && bytes > available
        {
            return Err(self.out_of_memory(Purpose::KvCache, bytes, available));
        }
        let StateLayerSpec { num_slots, window, channels, heads, key_size, value_size } = spec;
        Ok(StateLayer {
            spec,
            windows: self.allocate(Purpose::KvCache, &[num_slots, window, channels])?,
            matrices: self.allocate(Purpose::KvCache, &[num_slots, heads, key_size, value_size])?,
        })
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

/// Calls `f` for each stack of a layer of experts: the router as f32, then gate (if any) with up, and down, of each
/// expert.
fn for_expert_stacks(tensors: &ExpertTensors<'_>, f: &mut dyn FnMut(&[LinearPart<'_>]) -> Result<()>) -> Result<()> {
    tensors.validate()?;
    let data = tensors.router_bytes()?;
    let router = TensorView { ggml_type: GgmlType::F32, data: &data, ..tensors.router };
    f(&[LinearPart { weight: router, bias: tensors.router_bias }])?;
    for expert in 0..tensors.spec.num {
        let part = |part, i: usize| LinearPart {
            weight: tensors.matrix(part, expert),
            bias: tensors.biases.map(|biases| tensors.of_expert(biases[i], expert)),
        };
        match tensors.spec.gate {
            true => f(&[part(ExpertPart::Gate, 0), part(ExpertPart::Up, 1)])?,
            false => f(&[part(ExpertPart::Up, 1)])?,
        }
        f(&[part(ExpertPart::Down, 2)])?;
    }
    Ok(())
}

/// Returns the matrices of heads, which follow one another in `tensor`, as the parts of a stack.
fn head_parts(tensor: TensorView<'_>, heads: usize) -> Vec<LinearPart<'_>> {
    (0..heads).map(|head| LinearPart { weight: share(tensor, heads, head), bias: None }).collect()
}

/// Returns the bytes of a RoPE's frequencies.
fn rope_bytes(spec: &RopeSpec) -> u64 {
    size_of_val(spec.inv_freq.as_slice()) as u64
}

impl Loader for CpuLoader {
    type Backend = CpuBackend;

    const KV_CACHE_DTYPES: &'static [KvCacheDtype] =
        &[KvCacheDtype::F16, KvCacheDtype::F32, KvCacheDtype::Int8, KvCacheDtype::Int4];
    const LATENT_CACHE_DTYPES: &'static [KvCacheDtype] = &[KvCacheDtype::F16, KvCacheDtype::F32, KvCacheDtype::Int8];

    fn room_beside(&self, uploads: &[Upload<'_>]) -> Result<u64> {
        let (mut bytes, mut max_inputs) = (0u64, self.max_inputs);
        let mut add = |parts: &[LinearPart<'_>], heads: usize| -> Result<()> {
            bytes = bytes.saturating_add(PackedMatrix::packed_bytes(self.isa, parts)?);
            let inputs = parts.iter().map(|part| heads.saturating_mul(part.weight.cols));
            max_inputs = inputs.fold(max_inputs, usize::max);
            Ok(())
        };
        let mut vectors = 0u64;
        for upload in uploads {
            match upload {
                Upload::Matrix(parts) => add(parts, 1)?,
                Upload::Heads(tensor, heads) => add(&head_parts(*tensor, *heads), *heads)?,
                Upload::Experts(tensors) => {
                    for_expert_stacks(tensors, &mut |parts| add(parts, 1))?;
                    let of_experts = [tensors.choice_bias, tensors.output_scales].into_iter().flatten();
                    vectors += of_experts.map(|each| Self::buffer_bytes(each.rows, each.cols)).sum::<u64>();
                }
                Upload::Vector(tensor) | Upload::Taps(tensor) => {
                    vectors += Self::buffer_bytes(tensor.rows, tensor.cols)
                }
                Upload::Constant(len) => vectors += Self::buffer_bytes(1, *len),
                Upload::Rope(spec) => vectors += rope_bytes(spec),
            }
        }
        let (weights, available) = (bytes.saturating_add(vectors), self.unclaimed_memory()?);
        if weights > available {
            let what = "the model, its weights alone,".to_owned();
            let advice = "use a smaller model, or a machine with more memory";
            return Err(Error::OutOfMemory { what, requested: weights, available, advice });
        }
        Ok((available - weights).saturating_sub(self.linear_scratch_bytes(max_inputs)))
    }

    fn upload_heads(
        &mut self,
        tensor: TensorView<'_>,
        heads: usize,
        progress: &mut Progress<'_>,
    ) -> Result<HeadMatrices> {
        let stack = self.upload_matrix(&head_parts(tensor, heads), progress)?;
        self.max_inputs = self.max_inputs.max(heads * stack.cols());
        Ok(HeadMatrices { heads, stack })
    }

    fn upload_matrix(&mut self, parts: &[LinearPart<'_>], progress: &mut Progress<'_>) -> Result<PackedMatrix> {
        let matrix = PackedMatrix::pack(self.isa, parts, &mut self.weights, &self.pool, progress)?;
        self.record(Purpose::Weights, matrix.bytes());
        self.max_inputs = self.max_inputs.max(matrix.cols());
        self.kernels.extend(matrix.kernels());
        self.kernels.sort_unstable();
        self.kernels.dedup();
        Ok(matrix)
    }

    fn upload_experts(&mut self, tensors: &ExpertTensors<'_>, progress: &mut Progress<'_>) -> Result<Experts> {
        let mut matrices = Vec::with_capacity(1 + 2 * tensors.spec.num);
        for_expert_stacks(tensors, &mut |parts| {
            matrices.push(self.upload_matrix(parts, progress)?);
            Ok(())
        })?;
        let mut matrices = matrices.into_iter();
        let router = matrices.next().ok_or_else(|| Error::internal("experts without a router"))?;
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        while let (Some(first), Some(second)) = (matrices.next(), matrices.next()) {
            gate_up.push(first);
            down.push(second);
        }
        let mut vector = |tensor: Option<TensorView<'_>>| tensor.map(|tensor| self.upload_vector(tensor)).transpose();
        let (choice_bias, output_scales) = (vector(tensors.choice_bias)?, vector(tensors.output_scales)?);
        Ok(Experts { spec: tensors.spec, router, choice_bias, output_scales, gate_up, down })
    }

    fn upload_vector(&mut self, tensor: TensorView<'_>) -> Result<Storage<f32>> {
        let mut vector = self.allocate(Purpose::Weights, &[tensor.rows, tensor.cols])?;
        quant::dequantize(tensor.ggml_type, tensor.data, &mut vector)?;
        Ok(vector)
    }

    fn upload_rope(&mut self, spec: &RopeSpec) -> Result<RopeSpec> {
        self.record(Purpose::Weights, rope_bytes(spec));
        Ok(spec.clone())
    }

    fn alloc_buffer(&mut self, rows: usize, cols: usize) -> Result<Storage<f32>> {
        self.allocate(Purpose::Scratch, &[rows, cols])
    }

    fn buffer_bytes(rows: usize, cols: usize) -> u64 {
        (size_of::<f32>() as u64).saturating_mul(rows as u64).saturating_mul(cols as u64)
    }

    fn alloc_expert_work(&mut self, spec: &ExpertSpec, rows: usize) -> Result<ExpertWork> {
        spec.validate()?;
        let [logits, values, gate_up, gated] = work_sizes(spec, rows);
        self.record(Purpose::Scratch, Routes::bytes(spec, rows));
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
        let bytes = |[rows, cols]: [usize; 2]| Self::buffer_bytes(rows, cols);
        work_sizes(spec, rows).map(bytes).into_iter().fold(Routes::bytes(spec, rows), u64::saturating_add)
    }

    fn check_block_size(&self, block_size: usize) -> Result<()> {
        match block_size == 0 || !block_size.is_multiple_of(TILE) {
            true => Err(Error::invalid("block_size", block_size, format!("a multiple of {TILE} on the CPU"))),
            false => Ok(()),
        }
    }

    fn alloc_kv_layers(&mut self, specs: &[KvLayerSpec]) -> Result<Vec<KvLayer>> {
        specs.iter().map(|&spec| self.alloc_kv_layer(spec)).collect()
    }

    fn alloc_state_layers(&mut self, specs: &[StateLayerSpec]) -> Result<Vec<StateLayer>> {
        specs.iter().map(|&spec| self.alloc_state_layer(spec)).collect()
    }

    fn available_memory(&mut self) -> Result<u64> {
        Ok(self.unclaimed_memory()?.saturating_sub(self.linear_scratch_bytes(self.max_inputs)))
    }

    fn finish(mut self) -> Result<CpuBackend> {
        let scratch = LinearScratch::new(self.max_rows, self.max_inputs)?;
        self.record(Purpose::Scratch, scratch.bytes());
        Ok(CpuBackend::new(self.pool, self.isa, scratch, self.ledger, self.allocations, self.kernels))
    }
}
