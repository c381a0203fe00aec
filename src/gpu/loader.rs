//! Allocates the memory of an engine on a GPU: weights, KV pool, activations and workspace. Each allocation is checked
//! against the free memory.

mod budget;
mod experts;
mod heads;
mod host_experts;
mod matrices;
mod matrix_library;
mod on_host;
mod placement;
mod samples;

use std::collections::VecDeque;

use budget::{common_format, rope_bytes, upload_bytes};
use host_experts::CpuPart;
use matrix_library::LIBRARY_BYTES;
use on_host::OnHost;
use samples::Samples;

use super::buffer::{
    Buffer, ExpertWork, Experts, HeadMatrices, KvLayer, Matrix, Rope, Segment, StateLayer, TILE_ROWS, Vector,
};
use super::capture::graphs;
use super::compute::{Compute, Workspace};
use super::device::arena::{ALIGN, Arena, aligned};
use super::gpu_backend::{GpuBackend, Parts};
use super::launch::args::Format;
use super::launch::catalog::{self, REPACK};
use super::launch::engine_functions::{self, Functions};
use super::launch::launcher::Launcher;
use super::launch::plans::VENDOR_WEIGHTS_BYTES;
use super::ops::{delta_net_pairs_bytes, mamba2_pairs_bytes};
use super::step::StepInputs;
use super::tuning::Tuning;
use super::vendor::blas::{self, VendorBlas};
use super::vendor::products::Library;
use super::weights::expert_cache::{CacheMemory, CacheSizes, ExpertCache};
use super::weights::stacks::values_bytes;
use super::weights::staging::{StagedWeights, Staging};
use super::weights::upload::{RawMatrix, Uploader};
use super::{Device, DeviceBuffer, DeviceSlice, KernelType, Kernels, Stream, select};
use crate::backend::{
    DeltaNetShape, ExpertSpec, ExpertTensors, KvLayerSpec, LinearPart, Loader, Mamba2Shape, MemoryLedger, Placement,
    Progress, Reserve, Role, RopeSpec, StateLayerSpec, StepLimits, Upload,
};
use crate::config::{ComputeDtype, GpuOptions, KvCacheDtype};
use crate::quant;
use crate::tensor::TensorView;
use crate::{Error, Result};

/// Bytes left free on the device beyond everything planned, for the driver and other programs.
const MARGIN: u64 = 256 << 20;
const WEIGHTS_ADVICE: &str = "use a smaller model, or a GPU with more memory";
/// The number of tokens of a KV block is a multiple of this.
const KV_BLOCK: usize = 16;

/// Loads an engine onto a GPU; see [`Loader`].
pub struct GpuLoader {
    /// First: an abandoned load must wait for its copies and kernels before their memory and code are freed.
    uploader: Option<Uploader>,
    device: Device,
    options: GpuOptions,
    tuning: Tuning,
    kernels: Kernels,
    limits: StepLimits,
    /// All allocations, kept for the backend.
    allocations: Vec<DeviceBuffer>,
    weights: Arena,
    /// The places of the weights; `None` if all lie on the device.
    placement: Option<Placement>,
    /// A line about weights in the host's memory.
    placed: Option<String>,
    /// Memory of the host for the announced matrices and experts, in their order. It is empty for one on the device.
    on_host: VecDeque<OnHost>,
    /// Bytes of each staging buffer that is not allocated yet; 0 without such buffers.
    staging_buffer: u64,
    staged: StagedWeights,
    /// The CPU, which may compute experts on the host.
    cpu: CpuPart,
    /// The cache of experts that is not allocated yet.
    cache_sizes: CacheSizes,
    cache_memory: Option<CacheMemory>,
    /// Room on the device that the placement leaves for the matrix library.
    library_reserve: u64,
    ledger: MemoryLedger,
    /// The types of the uploaded weights.
    types: Vec<KernelType>,
    samples: Samples,
    /// Segments whose dequantised copy is kept, with their columns.
    kept: Vec<(Segment, usize)>,
    /// Inputs of the widest matrix: conversions between formats need room for them.
    max_cols: usize,
    /// The specification of each KV layer.
    cache: Vec<KvLayerSpec>,
    has_experts: bool,
    has_latent: bool,
    has_states: bool,
    /// The vendor's matrix library, once it has passed the test with the model's shapes.
    blas: Option<VendorBlas>,
    /// The reason why the vendor's matrix library is installed but not used.
    library_problem: Option<String>,
    /// Room for dequantised weights that are kept for it; empty if they would take too much memory.
    dense: Arena,
}

/// Yields the stacks of matrices among the uploads.
fn stacks<'a, 'b>(uploads: &'a [Upload<'b>]) -> impl Iterator<Item = &'a [LinearPart<'b>]> {
    uploads.iter().filter_map(|upload| match upload {
        Upload::Matrix(parts) => Some(&parts[..]),
        Upload::Heads(..)
        | Upload::Experts(_)
        | Upload::Vector(_)
        | Upload::Constant(_)
        | Upload::Taps(_)
        | Upload::Rope(_) => None,
    })
}

impl GpuLoader {
    /// Creates a loader on an opened device, for steps of at most `limits`.
    ///
    /// # Errors
    /// `Error::Device`.
    pub fn new(device: Device, options: &GpuOptions, limits: StepLimits) -> Result<Self> {
        Ok(Self {
            kernels: Kernels::new(&device, options)?,
            blas: None,
            library_problem: None,
            dense: Arena::default(),
            tuning: device.tuning(options),
            device,
            options: options.clone(),
            limits,
            uploader: None,
            allocations: Vec::new(),
            weights: Arena::default(),
            placement: None,
            placed: None,
            on_host: VecDeque::new(),
            staging_buffer: 0,
            staged: StagedWeights::default(),
            cpu: CpuPart::default(),
            cache_sizes: CacheSizes::default(),
            cache_memory: None,
            library_reserve: 0,
            ledger: MemoryLedger::default(),
            types: Vec::new(),
            samples: Samples::default(),
            kept: Vec::new(),
            max_cols: 1,
            cache: Vec::new(),
            has_experts: false,
            has_latent: false,
            has_states: false,
        })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Allocates memory whose size depends on the model or the arguments. The size is checked against the free memory
    /// less the margin, and the memory is kept for the backend. A step's integers and results have separate buffers,
    /// counted with the workspace. Staging buffers and the self-test are small, and the margin covers them.
    fn allocate(&mut self, bytes: u64, what: &str, advice: &'static str) -> Result<DeviceBuffer> {
        let available = self.available()?;
        if bytes > available {
            return Err(Error::OutOfMemory {
                what: format!("{what} on {}", self.device.label()),
                requested: bytes,
                available,
                advice,
            });
        }
        let memory = DeviceBuffer::new(&self.device, bytes.max(1))?.part(0, bytes)?;
        self.allocations.push(memory.clone());
        Ok(memory)
    }

    /// Takes room for weights from the arena. Weights that were not announced get a separate allocation.
    fn weights(&mut self, bytes: u64) -> Result<DeviceBuffer> {
        self.ledger.weights += bytes;
        match self.weights.take(bytes) {
            Some(memory) => Ok(memory),
            None => self.allocate(bytes, "weights", WEIGHTS_ADVICE),
        }
    }

    fn uploader(&mut self, largest: usize, largest_tile_row: usize) -> Result<&mut Uploader> {
        match &mut self.uploader {
            Some(uploader) if uploader.fits(largest_tile_row) => {}
            slot => *slot = Some(Uploader::new(&self.device, largest, largest_tile_row)?),
        }
        self.uploader.as_mut().ok_or_else(|| Error::internal("an uploader that was just made is not there"))
    }

    /// Waits for uploads in flight, and frees the uploader's memory.
    fn finish_uploads(&mut self) -> Result<()> {
        self.uploader.take().map_or(Ok(()), |mut uploader| uploader.finish())
    }

    /// Queues the upload of one matrix into `tiles`, which has room for it. Returns its type on the device.
    fn upload_tiles(
        &mut self,
        weight: &TensorView<'_>,
        tiles: DeviceSlice<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<KernelType> {
        let ty = KernelType::of(weight.ggml_type)?;
        let row_bytes = weight.data.len() / weight.rows.max(1);
        let repack = self.kernels.function(&REPACK.id(ty))?;
        let uploader = self.uploader(weight.data.len(), TILE_ROWS * row_bytes)?;
        let matrix = RawMatrix { data: weight.data, row_bytes, cols: weight.cols, scale: weight.scale() };
        uploader.matrix(matrix, &repack, tiles, ty.tile_bytes(), &mut |rows| progress((rows * row_bytes) as u64))?;
        Ok(ty)
    }

    /// Like `upload_tiles`, and notes the type, which decides the common format.
    fn upload_part(
        &mut self,
        weight: &TensorView<'_>,
        tiles: &DeviceBuffer,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let ty = self.upload_tiles(weight, tiles.slice(), progress)?;
        if !self.types.contains(&ty) {
            self.types.push(ty);
        }
        Ok(())
    }

    /// Queues f32 values into `out`.
    fn upload_floats(&mut self, values: &[f32], out: &DeviceBuffer) -> Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.uploader(bytes.len(), 0)?.bytes(&bytes, out.slice())
    }

    /// Uploads all numbers of a tensor as f32.
    fn upload_values(&mut self, tensor: &TensorView<'_>) -> Result<DeviceBuffer> {
        let mut values = vec![0.0; tensor.rows * tensor.cols];
        quant::dequantize(tensor.ggml_type, tensor.data, &mut values)?;
        let memory = self.weights(values_bytes(tensor))?;
        self.upload_floats(&values, &memory)?;
        Ok(memory)
    }
}

/// Returns the columns of a buffer whose rows are followed by the token pairs of whole tiles. Sizes come from a file.
fn with_pairs(channels: usize, pairs_bytes: Option<usize>, rows: usize) -> usize {
    let pairs = pairs_bytes.map_or(usize::MAX, |bytes| bytes.div_ceil(4));
    channels.saturating_add(pairs.div_ceil(rows.max(1)))
}

impl Loader for GpuLoader {
    type Backend = GpuBackend;

    const KV_CACHE_DTYPES: &'static [KvCacheDtype] = &catalog::CACHE_TYPES;
    const LATENT_CACHE_DTYPES: &'static [KvCacheDtype] = &catalog::LATENT_CACHE_TYPES;

    fn place(&mut self, uploads: &[Upload<'_>], roles: &[Role], reserve: Reserve) -> Result<()> {
        self.place_weights(uploads, roles, reserve)
    }

    fn room_beside(&self, uploads: &[Upload<'_>]) -> Result<u64> {
        self.room_for_buffers(uploads)
    }

    fn reserve_weights(&mut self, uploads: &[Upload<'_>], spare: u64) -> Result<()> {
        let dense = self.open_library(uploads, spare)?;
        let bytes = uploads.iter().map(upload_bytes).sum::<Result<u64>>()? - self.host_bytes();
        self.weights = Arena::new(self.allocate(bytes, "the model's weights", WEIGHTS_ADVICE)?);
        self.reserve_staging()?;
        self.reserve_cache()?;
        self.reserve_on_host(uploads)?;
        if dense > 0 {
            self.dense = Arena::new(self.allocate(dense, "weights for the matrix library", WEIGHTS_ADVICE)?);
            self.ledger.scratch += dense;
        }
        // Compile kernels now, several at once, if they have to be compiled on this machine.
        let of_experts = experts::types(uploads)?;
        let of_stacks = stacks(uploads).flatten().map(|part| KernelType::of(part.weight.ggml_type));
        let mut types = of_stacks.collect::<Result<Vec<_>>>()?;
        types.extend(&of_experts);
        let parts = engine_functions::Parts {
            experts: !of_experts.is_empty(),
            latent: uploads.iter().any(|upload| matches!(upload, Upload::Heads(..))),
            states: uploads.iter().any(|upload| matches!(upload, Upload::Taps(_))),
            fp8: self.options.compute_dtype == ComputeDtype::Fp8,
        };
        self.kernels.prepare(&engine_functions::units(&types, parts, self.kernels.platform()))?;
        let largest = stacks(uploads).flatten().map(|part| part.weight.data.len());
        self.uploader(largest.max().unwrap_or(0), 0)?;
        Ok(())
    }

    fn upload_matrix(&mut self, parts: &[LinearPart<'_>], progress: &mut Progress<'_>) -> Result<Matrix> {
        let matrix = self.matrix_weights(parts, progress)?;
        self.samples.of_matrix(parts, &matrix)?;
        Ok(matrix)
    }

    fn upload_heads(
        &mut self,
        tensor: TensorView<'_>,
        heads: usize,
        progress: &mut Progress<'_>,
    ) -> Result<HeadMatrices> {
        self.head_matrices(tensor, heads, progress)
    }

    fn upload_experts(&mut self, tensors: &ExpertTensors<'_>, progress: &mut Progress<'_>) -> Result<Experts> {
        let experts = self.expert_weights(tensors, progress)?;
        self.samples.of_experts(tensors, &experts)?;
        Ok(experts)
    }

    fn alloc_expert_work(&mut self, spec: &ExpertSpec, rows: usize) -> Result<ExpertWork> {
        self.expert_work(spec, rows)
    }

    fn expert_work_bytes(spec: &ExpertSpec, rows: usize) -> u64 {
        experts::work_bytes(spec, rows)
    }

    fn upload_vector(&mut self, tensor: TensorView<'_>) -> Result<Vector> {
        Ok(Vector::new(self.upload_values(&tensor)?, tensor.rows * tensor.cols))
    }

    fn upload_rope(&mut self, spec: &RopeSpec) -> Result<Rope> {
        let RopeSpec { kind, inv_freq, magnitude } = spec;
        let memory = self.weights(rope_bytes(spec))?;
        self.upload_floats(inv_freq, &memory)?;
        Ok(Rope { kind: *kind, num_pairs: inv_freq.len(), inv_freq: memory, magnitude: *magnitude })
    }

    fn alloc_buffer(&mut self, rows: usize, cols: usize) -> Result<Buffer> {
        let bytes = Self::buffer_bytes(rows, cols);
        let memory = self.allocate(bytes, "activations", "lower max_num_batched_tokens or max_num_seqs")?;
        self.ledger.scratch += bytes;
        Ok(Buffer::new(memory))
    }

    fn buffer_bytes(rows: usize, cols: usize) -> u64 {
        // Sizes come from a file, so they are checked before `most_bytes` multiplies them.
        let fits = rows.checked_mul(cols.next_multiple_of(256)).is_some_and(|n| n <= usize::MAX / 64);
        // No driver allocates 0 bytes, so the angles of a RoPE without pairs take one.
        if fits { Format::most_bytes(rows, cols).max(1) } else { u64::MAX }
    }

    fn convolved_cols(shape: DeltaNetShape, rows: usize) -> usize {
        with_pairs(shape.channels(), delta_net_pairs_bytes(shape, rows), rows)
    }

    fn mamba2_cols(shape: Mamba2Shape, rows: usize) -> usize {
        with_pairs(shape.channels(), mamba2_pairs_bytes(shape, rows), rows)
    }

    fn check_block_size(&self, block_size: usize) -> Result<()> {
        match block_size == 0 || !block_size.is_multiple_of(KV_BLOCK) {
            true => Err(Error::invalid("block_size", block_size, format!("a multiple of {KV_BLOCK} on the GPU"))),
            false => Ok(()),
        }
    }

    fn alloc_kv_layers(&mut self, specs: &[KvLayerSpec]) -> Result<Vec<KvLayer>> {
        let layer_bytes = |spec: &KvLayerSpec| {
            spec.block_bytes()
                .and_then(|bytes| bytes.checked_mul(spec.num_blocks as u64))
                .map(|bytes| bytes.next_multiple_of(2 * ALIGN))
        };
        catalog::check_kv_layers(specs)?;
        let mut total = Some(0u64);
        for spec in specs {
            spec.validate()?;
            self.check_block_size(spec.block_size)?;
            total = total.and_then(|sum| sum.checked_add(layer_bytes(spec)?));
        }
        let total = total.unwrap_or(u64::MAX);
        self.cache.extend(specs);
        let memory = self.allocate(total, "the KV cache", "lower kv_cache_memory, max_model_len or max_num_seqs")?;
        self.ledger.kv_cache += total;
        let mut start = 0;
        let layers = specs.iter().map(|&spec| {
            let (bytes, first) = (layer_bytes(&spec).unwrap_or(0), start);
            start += bytes;
            // Latent rows serve as both K and V.
            let (k, v) = match spec.latent {
                None => (memory.part(first, bytes / 2)?, memory.part(first + bytes / 2, bytes / 2)?),
                Some(_) => (memory.part(first, bytes)?, memory.part(first, bytes)?),
            };
            Ok(KvLayer { spec, k, v })
        });
        layers.collect()
    }

    fn alloc_state_layers(&mut self, specs: &[StateLayerSpec]) -> Result<Vec<StateLayer>> {
        // A layer's windows, followed by its matrices.
        let bytes = |spec: &StateLayerSpec| {
            let of_slot = [spec.window_len(), spec.matrices_len()].map(|len| 4 * len as u64);
            of_slot.map(|bytes| bytes.checked_mul(spec.num_slots as u64).map(aligned).unwrap_or(u64::MAX / 2))
        };
        let total = specs.iter().flat_map(bytes).fold(0, u64::saturating_add);
        let advice = "lower kv_cache_memory, max_model_len or max_num_seqs";
        let memory = self.allocate(total, "the states of the model's layers", advice)?;
        self.ledger.kv_cache += total;
        self.has_states |= !specs.is_empty();
        let mut start = 0;
        let layers = specs.iter().map(|&spec| {
            let [windows, matrices] = bytes(&spec);
            let layer = StateLayer {
                spec,
                windows: memory.part(start, windows)?,
                matrices: memory.part(start + windows, matrices)?,
            };
            start += windows + matrices;
            Ok(layer)
        });
        layers.collect()
    }

    fn available_memory(&mut self) -> Result<u64> {
        self.finish_uploads()?;
        Ok(self.available()?.saturating_sub(self.workspace_bytes(self.max_cols)))
    }

    fn finish(mut self) -> Result<GpuBackend> {
        self.finish_uploads()?;
        let (unpacker, host) = (self.unpacker()?, self.host_part()?);
        let mut types = self.types.clone();
        types.extend(self.has_experts.then_some(KernelType::F32)); // For the routers.
        types.sort_unstable_by_key(|&ty| ty as u32);
        types.dedup();
        let Self { has_experts: experts, has_latent: latent, has_states: states, .. } = self;
        let wanted =
            engine_functions::Parts { experts, latent, states, fp8: self.options.compute_dtype == ComputeDtype::Fp8 };
        let functions = Functions::load(&self.kernels, &types, &self.cache, wanted)?;
        let stream = Stream::new(&self.device)?;
        let mut of_steps = self.tuning;
        // Prompts with bidirectional attention are computed whole, so their tiles do not depend on the batch. Token by
        // token, they would not see later tokens.
        of_steps.attention.by_token &= !self.cache.iter().any(|spec| spec.kind.is_bidirectional());
        let inputs = StepInputs::new(&self.device, self.limits, of_steps)?;

        let [partial, counters, conversion] = self.workspace_sizes(self.max_cols);
        let advice = "lower max_num_batched_tokens or max_num_seqs";
        let memory = self.allocate(partial + counters + conversion, "the workspace", advice)?;
        let workspace = Workspace::new(
            memory.part(0, partial)?,
            memory.part(partial, counters)?,
            Buffer::new(memory.part(partial + counters, conversion)?),
        );
        // SAFETY: the memory was just allocated; kernels that use it come after, on the same stream.
        unsafe { stream.fill(workspace.counters(), 0)? };
        self.ledger.scratch += partial + counters + conversion + inputs.device_bytes();
        self.ledger.scratch += select::device_bytes(&self.limits);

        let library_bytes = if self.blas.is_some() { LIBRARY_BYTES } else { 0 };
        let library = match self.blas.take().zip(self.tuning.library) {
            Some((blas, rows)) => {
                let memory = self.allocate(library_bytes, "the matrix library's workspace", advice)?;
                let (weights, workspace) =
                    (memory.part(0, VENDOR_WEIGHTS_BYTES)?, memory.part(VENDOR_WEIGHTS_BYTES, blas::WORKSPACE_BYTES)?);
                let all_16_bit = self.types.iter().all(|ty| matches!(ty, KernelType::F16 | KernelType::Bf16));
                let least_rows = rows.least(all_16_bit, self.dense.bytes() > 0);
                Some(Library::new(blas, weights, workspace, least_rows))
            }
            None => None,
        };
        self.ledger.scratch += library_bytes;

        let staging = Staging::new(&self.device, std::mem::take(&mut self.staged), unpacker.clone())?;
        let cache = |memory| ExpertCache::new(&self.kernels, &stream, memory, unpacker);
        let cache = self.cache_memory.take().map(cache).transpose()?;
        let common = common_format(&self.types);
        let graphs = graphs::usable(&self.kernels, &stream, &self.options)?;
        let launcher = Launcher::new(stream, functions, self.tuning);
        let mut backend = GpuBackend::new(Parts {
            device: self.device,
            options: self.options,
            compute: Compute::new(launcher, workspace, library, common, (staging, cache, host)),
            inputs,
            library_problem: self.library_problem,
            placed: self.placed,
            graphs,
            cache: self.cache,
            allocations: self.allocations,
            ledger: self.ledger,
            kernels: self.kernels,
            types: self.types,
        })?;
        backend.self_test(self.samples.all())?;
        backend.keep_dequantized(&self.kept)?;
        backend.measure_host()?;
        Ok(backend)
    }
}
