//! The operations that a decoder needs from a device, as traits that each device implements.
//!
//! The two traits belong to two lifetimes. A `Loader` allocates device memory once, before the engine serves requests:
//! weights, KV pool, activations. `finish` turns it into a `Backend`, which computes in that memory and cannot allocate
//! more.
//!
//! A step is a value: `Backend::step` creates it for one batch. The ops (`Ops`, `Fusions`) are its methods, so they
//! cannot be called outside a step or with another batch.
//!
//! - `ops` has the operations, and `op_args` their arguments with the checks of their shapes.
//! - `specs`, `shapes`, `states` and `experts` describe what a loader allocates.
//! - `placement` decides which weights lie in the host's memory, which `host_memory` measures.
//!
//! Start with `Loader` and `Backend` here, then `ops`. Of the workspace, this crate knows tensors as they lie in a
//! file, settings, and the batches of `rocmforge_core`: no device and no model. The devices are `rocmforge_cpu` and
//! `rocmforge_gpu`, and `rocmforge_conformance` has the cases that each must pass.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

pub mod check_batch;
pub mod contents;
pub mod experts;
pub mod host_memory;
pub mod op_args;
mod ops;
mod placement;
mod random;
mod shapes;
mod specs;
mod states;
mod upload;

// The crates below, by the names that the files of this one use.
use rocmforge_config as config;
use rocmforge_core::{Error, Result, batch, error, interrupt, selection};
use rocmforge_gguf::{quant, tensor};

pub use contents::{Content, Copied, Part};
pub use experts::{ExpertGroups, ExpertPart, ExpertSpec, ExpertTensors, Gating};
pub use op_args::{
    Activate, AddNorm, AddRows, Attention, Cap, CopyBlocks, DeltaNet, DeltaNetWeights, Embed, GateColumns, GateHeads,
    GateRows, GatedActivation, GatherRows, HeadProducts, JoinRows, LevelRows, Linear, Mamba, Mamba2, Mamba2Weights,
    MambaConvolution, MixExperts, Norm, NormExperts, NormGatedLinear, NormInPlace, NormLinear, NormRows, QkNorms,
    RopeAndStore, RopeAndStoreLatent, RopeAngles, RopeAttention, Rotation, ScaleRows, Scoring, ShortConvolution,
    Slopes, Sparsify, Streams, TableRow, Temperature, bias_reach,
};
pub use ops::{Fusions, Ops};
pub use placement::{ByHand, Place, Placement, Role, Weight};
pub use random::Random;
pub use shapes::{
    BufferShape, ExpertShape, HeadsShape, KvShape, MatrixShape, RopeShape, StateShape, VectorShape, WorkShape,
};
pub use specs::{
    Activation, ExpertCacheUse, GateFunction, KvLayerSpec, LatentShape, LinearPart, MemoryLedger, NormKind, QkvLayout,
    RopeKind, RopeSpec, STREAMS, StepLimits, Xielu,
};
pub use states::{DeltaNetShape, HeadOrder, Mamba2Shape, MambaShape, ShortConvolutionShape, StateLayerSpec};
pub use upload::Upload;

use crate::batch::Batch;
use crate::config::KvCacheDtype;
use crate::interrupt::Interrupt;
use crate::quant::GgmlType;
use crate::selection::{SamplingRequest, Selection};
use crate::tensor::TensorView;

/// Called every few megabytes with the bytes of the file read since the last call. An error stops the upload.
pub type Progress<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// Bytes that a device must have for activations and KV pool beside weights.
#[derive(Debug, Clone, Copy)]
pub struct Reserve {
    /// The least with which a request can be served.
    pub least: u64,
    /// At least `least`: what keeps several requests running. It counts if some weights must lie elsewhere.
    pub wanted: u64,
}

/// Allocates and fills the memory of an engine. Each engine has one, which ends when the engine starts to serve.
pub trait Loader: Sized {
    type Backend: Backend;

    /// The types that the KV cache may have on this device, and those of latent rows.
    const KV_CACHE_DTYPES: &'static [KvCacheDtype];
    const LATENT_CACHE_DTYPES: &'static [KvCacheDtype];

    /// Decides where each upload will lie (`Placement`). `roles` are those of the uploads. Called before `room_beside`.
    /// Without this call, all weights lie on the device.
    ///
    /// # Errors
    /// `OutOfMemory` if there is no room for the weights elsewhere either.
    fn place(&mut self, _uploads: &[Upload<'_>], _roles: &[Role], _reserve: Reserve) -> Result<()> {
        Ok(())
    }

    /// Returns the bytes left for activations and KV pool after all `uploads` and after the allocations of `finish`.
    /// Copies that only make steps faster are not deducted, since they are only made if memory allows. Called before
    /// the first upload.
    ///
    /// # Errors
    /// `OutOfMemory` if the weights alone do not fit.
    fn room_beside(&self, uploads: &[Upload<'_>]) -> Result<u64>;

    /// Announces all uploads, in their order, before the first one, so the device may allocate the memory of all
    /// weights at once. Extra copies of weights may take `spare` bytes on top. Copies that only make steps faster are
    /// skipped if they need more.
    ///
    /// # Errors
    /// `OutOfMemory` if the weights, or copies that the user asked for, do not fit. `InvalidRequest` for products that
    /// the device does not compute.
    fn reserve_weights(&mut self, _uploads: &[Upload<'_>], _spare: u64) -> Result<()> {
        Ok(())
    }

    /// Uploads one or more matrices with the same input, stacked along their outputs (q, k, v or gate, up). They keep
    /// the file's quantization, and parts may have different types.
    fn upload_matrix(
        &mut self,
        parts: &[LinearPart<'_>],
        progress: &mut Progress<'_>,
    ) -> Result<<Self::Backend as Backend>::Matrix>;

    /// Uploads the experts of a layer in the file's quantization. Only the router is converted to f32.
    fn upload_experts(
        &mut self,
        tensors: &ExpertTensors<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<<Self::Backend as Backend>::Experts>;

    /// Uploads the matrices of `heads` heads for `Ops::head_products`. Their rows follow one another in the tensor.
    fn upload_heads(
        &mut self,
        tensor: TensorView<'_>,
        heads: usize,
        progress: &mut Progress<'_>,
    ) -> Result<<Self::Backend as Backend>::HeadMatrices>;

    /// Uploads a vector (norm weights) as f32.
    fn upload_vector(&mut self, tensor: TensorView<'_>) -> Result<<Self::Backend as Backend>::Vector>;

    /// Uploads a vector of `len` elements with this value, for a vector that the file does not hold.
    fn upload_constant(&mut self, value: f32, len: usize) -> Result<<Self::Backend as Backend>::Vector> {
        let data = value.to_le_bytes().repeat(len);
        let (name, ggml_type) = ("a constant", GgmlType::F32);
        self.upload_vector(TensorView { name, ggml_type, rows: 1, cols: len, data: &data, scales: &[] })
    }

    /// Uploads the taps of a convolution as the vector `[taps, channels]`. The file stores them channel by channel.
    fn upload_taps(&mut self, tensor: TensorView<'_>) -> Result<<Self::Backend as Backend>::Vector> {
        let (channels, taps) = (tensor.rows, tensor.cols);
        let mut values = vec![0.0; channels * taps];
        quant::dequantize(tensor.ggml_type, tensor.data, &mut values)?;
        let by_tap = (0..taps).flat_map(|tap| values.iter().skip(tap).step_by(taps));
        let data: Vec<u8> = by_tap.flat_map(|value| value.to_le_bytes()).collect();
        let (rows, cols) = (taps, channels);
        self.upload_vector(TensorView { ggml_type: GgmlType::F32, rows, cols, data: &data, ..tensor })
    }

    /// Uploads the frequencies of a rotary embedding.
    fn upload_rope(&mut self, spec: &RopeSpec) -> Result<<Self::Backend as Backend>::Rope>;

    /// Allocates a buffer for `rows * cols` f32 activations.
    fn alloc_buffer(&mut self, rows: usize, cols: usize) -> Result<<Self::Backend as Backend>::Buffer>;

    /// Returns the bytes that `alloc_buffer` takes.
    fn buffer_bytes(rows: usize, cols: usize) -> u64;

    /// Returns the columns that `DeltaNet::convolved` needs in a buffer of `rows` rows.
    fn convolved_cols(shape: DeltaNetShape, _rows: usize) -> usize {
        shape.channels()
    }

    /// Returns the columns that `Mamba2::convolved` needs in a buffer of `rows` rows.
    fn mamba2_cols(shape: Mamba2Shape, _rows: usize) -> usize {
        shape.channels()
    }

    /// Allocates the intermediate buffers of `Ops::experts` for `rows` rows. All layers share them.
    fn alloc_expert_work(&mut self, spec: &ExpertSpec, rows: usize) -> Result<<Self::Backend as Backend>::ExpertWork>;

    /// Returns the bytes that `alloc_expert_work` takes.
    fn expert_work_bytes(spec: &ExpertSpec, rows: usize) -> u64;

    /// Checks that KV blocks can have `block_size` tokens. Called before the first upload.
    ///
    /// # Errors
    /// `InvalidRequest` with the sizes that the device accepts.
    fn check_block_size(&self, block_size: usize) -> Result<()>;

    /// Allocates the K and V pools of all layers in one call, so a device may use a single allocation.
    fn alloc_kv_layers(&mut self, specs: &[KvLayerSpec]) -> Result<Vec<<Self::Backend as Backend>::KvLayer>>;

    /// Allocates the recurrent states of all layers that have them.
    fn alloc_state_layers(&mut self, specs: &[StateLayerSpec]) -> Result<Vec<<Self::Backend as Backend>::StateLayer>>;

    /// Returns the bytes that the KV pool may take after the allocations so far: the free memory less a margin. First
    /// releases the memory that only the uploads needed.
    fn available_memory(&mut self) -> Result<u64>;

    fn finish(self) -> Result<Self::Backend>;
}

/// The ops of a step, in the order of the model.
pub type StepOps<'o, B> = dyn for<'s> FnMut(&mut <B as Backend>::Step<'s>) -> Result<()> + 'o;

/// Computes steps on a device, one at a time.
pub trait Backend: Send + Sized + 'static {
    type Buffer: BufferShape + Send;
    type Matrix: MatrixShape + Send;
    type HeadMatrices: HeadsShape + Send;
    type Vector: VectorShape + Send;
    type Rope: RopeShape + Send;
    type KvLayer: KvShape + Send;
    type StateLayer: StateShape + Send;
    type Experts: ExpertShape + Send;
    type ExpertWork: WorkShape + Send;
    type Step<'s>: Fusions<Self>;

    /// True if `step` returns before its ops have finished.
    const ASYNCHRONOUS: bool;

    /// Returns the signal that stops a step. Once it is due, the ops skip work. Devices with short steps have none.
    fn interrupt(&self) -> Option<&Interrupt> {
        None
    }

    /// Computes a step. Calls `ops` once, or not at all if the device replays a captured step with the same ops. For
    /// batches of the same shape, `ops` must call the ops that `warm_up` saw. It may leave out trailing ops whose
    /// results are not needed.
    ///
    /// # Errors
    /// Errors of the ops. `Error::Internal` for a batch that contradicts itself or exceeds the planned limits.
    /// `Error::Interrupted` if the interrupt was due before the last op; the results are then invalid.
    fn step(&mut self, batch: &Batch, ops: &mut StepOps<'_, Self>) -> Result<()>;

    /// Computes a step with other ops than those that `warm_up` saw. Such a step is never captured.
    ///
    /// # Errors
    /// Errors of `step`.
    fn step_apart(&mut self, batch: &Batch, ops: &mut StepOps<'_, Self>) -> Result<()> {
        self.step(batch, ops)
    }

    /// Shows steps to the device before it serves, so that it may capture them. They use the first slot of the KV cache
    /// and of the states, which must both be empty.
    ///
    /// # Errors
    /// After an error the backend cannot serve.
    fn warm_up(&mut self, _ops: &mut StepOps<'_, Self>) -> Result<()> {
        Ok(())
    }

    /// Tells the device which part of each row of `logits` a later `collect` returns, so it can start early.
    /// `logits`, `[sampling_requests.len(), cols]`, comes from the last step.
    fn select(&mut self, _logits: &Self::Buffer, _cols: usize, _wishes: &[SamplingRequest<'_>]) -> Result<()> {
        Ok(())
    }

    /// Returns the parts of `rows` rows that `select` asked for, once everything queued before has run. A backend may
    /// return more; this default returns whole rows.
    fn collect<'a>(&'a mut self, logits: &'a Self::Buffer, rows: usize, cols: usize) -> Result<Selection<'a>> {
        Ok(Selection::of_rows(self.to_host(logits, rows, cols)?, cols))
    }

    /// Computes a norm of the rows that the last step left in `args.x`, writes it to `args.out` and copies it to the
    /// host. It is not part of the step, so a captured step also serves requests for hidden states.
    fn normed_rows<'a>(&'a mut self, args: NormRows<'a, Self>) -> Result<&'a [f32]>;

    /// Writes rows of `cols` values into a buffer from row `first` on, after everything queued before has run. They are
    /// inputs of a step that stand for no token.
    ///
    /// # Errors
    /// `Error::Internal` if the buffer has no such room, or the values are not whole rows.
    fn write_rows(&mut self, buffer: &mut Self::Buffer, first: usize, values: &[f32], cols: usize) -> Result<()>;

    /// Copies `rows` rows of `cols` to the host, after everything queued before has run.
    fn to_host<'a>(&'a mut self, buffer: &'a Self::Buffer, rows: usize, cols: usize) -> Result<&'a [f32]>;

    /// Allocates the host memory through which contents are copied. `staged` has the bytes of a content of each pool,
    /// and how many are copied to the host at once. Called before any copy.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn prepare_copies(&mut self, staged: &[(u64, usize)]) -> Result<()>;

    /// Begins to copy a content to the host, after the steps that were begun before. Waits for nothing. Returns false,
    /// and does nothing, if as much as possible is being copied already.
    ///
    /// # Errors
    /// `Error::Internal` if a part is outside its pool.
    fn copy_out(&mut self, number: u64, parts: &mut [Part<'_, Self>]) -> Result<bool>;

    /// Returns a content whose copy has ended, oldest first. `None` if there is none; with `wait`, if nothing is being
    /// copied.
    fn copied(&mut self, wait: bool) -> Result<Option<Copied>>;

    /// Begins to copy a content back, after all steps and copies to the host that were begun before. Waits for nothing.
    /// Until `copied_in` names it, no step may use the parts. Returns false, and does nothing, if as much as possible
    /// is being copied already.
    ///
    /// # Errors
    /// `Error::Internal` if a part is outside its pool, or the bytes are not those of the parts.
    fn copy_in(&mut self, number: u64, parts: &mut [Part<'_, Self>], content: &Content) -> Result<bool>;

    /// Returns the number of a content that has arrived. `None` if there is none; with `wait`, if nothing is being
    /// copied.
    fn copied_in(&mut self, wait: bool) -> Result<Option<u64>>;

    /// Takes a content that is not needed any more, whose memory later copies may use.
    fn recycle(&mut self, content: Content) -> Result<()>;

    /// Makes the next step begin after all copies to the host that were begun before.
    fn order_copies(&mut self) -> Result<()>;

    /// Returns the bytes held on the device, by purpose.
    fn memory(&self) -> MemoryLedger;

    /// Returns the number of device allocations since start, which is constant while serving.
    fn device_allocations(&self) -> u64;

    /// Returns the uses of the cache of experts: zeros without one.
    fn expert_cache(&self) -> ExpertCacheUse;

    /// Describes the device and the kernel for each tensor type and op, for start-up and `doctor`.
    fn describe(&self) -> String;
}
