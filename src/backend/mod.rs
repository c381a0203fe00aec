//! The operations that a decoder needs from a device, and the devices that have them.
//!
//! Two traits for two lifetimes: a `Loader` takes device memory (weights, KV pool, activations) once, before anything
//! is served; `finish` turns it into a `Backend`, which computes into what was allocated and has no way to take more.
//! A step is a value: `Backend::step` makes it for one batch, and the ops (`Ops`, `Fusions`) are its methods, so that
//! none can be called outside of a step or with another batch.

mod check_batch;
pub mod conformance;
pub mod cpu;
mod experts;
pub mod gpu;
mod host_memory;
mod op_args;
mod ops;
mod registry;
mod shapes;
mod specs;
mod states;
mod upload;

pub use experts::{ExpertGroups, ExpertPart, ExpertSpec, ExpertTensors, Gating};
pub use op_args::{
    Activate, AddNorm, AddRows, Attention, CopyBlocks, DeltaNet, DeltaNetWeights, Embed, GateColumns, GateRows,
    GatedActivation, GatherRows, HeadProducts, JoinRows, Linear, Mamba2, Mamba2Weights, MixExperts, Norm, NormExperts,
    NormGatedLinear, NormInPlace, NormLinear, NormRows, QkNorms, RopeAndStore, RopeAndStoreLatent, RopeAngles,
    RopeAttention, Rotation, ScaleLogits, Scoring, ShortConvolution, TableRow, Temperature,
};
pub use ops::{Fusions, Ops};
pub use registry::{OpenDevice, UseLoader, open, resolve_threads};
pub use shapes::{
    BufferShape, ExpertShape, HeadsShape, KvShape, MatrixShape, RopeShape, StateShape, VectorShape, WorkShape,
};
pub use specs::{
    Activation, KvLayerSpec, LatentShape, LinearPart, MemoryLedger, NormKind, QkvLayout, RopeKind, RopeSpec, StepLimits,
};
pub use states::{DeltaNetShape, HeadOrder, Mamba2Shape, ShortConvolutionShape, StateLayerSpec};
pub use upload::Upload;

use crate::Result;
use crate::batch::Batch;
use crate::interrupt::Interrupt;
use crate::quant::{self, GgmlType};
use crate::selection::{Selection, Wish};
use crate::tensor::TensorView;

/// Called with the bytes of the file taken since the last call, every few megabytes; an error stops the upload.
pub type Progress<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// Takes the memory of an engine and fills it; one per engine, gone once the engine runs.
pub trait Loader: Sized {
    type Backend: Backend;

    /// Bytes that are left for activations and KV pool once all of `uploads` is uploaded and `finish` has allocated its
    /// own. Copies that only make steps faster are not deducted: they are made where memory allows. Asked before
    /// anything is uploaded, and counted by the code that allocates.
    ///
    /// # Errors
    /// `OutOfMemory` when the weights alone do not fit.
    fn room_beside(&self, uploads: &[Upload<'_>]) -> Result<u64>;

    /// Tells the device what will be uploaded, before the first of it, so that it may take the memory of all weights at
    /// once. Copies of them may take `spare` bytes beside; those that only make steps faster are left out where they
    /// need more.
    ///
    /// # Errors
    /// `OutOfMemory` when the weights do not fit, or copies that were asked for; `InvalidRequest` for products that the
    /// device does not compute.
    fn reserve_weights(&mut self, _uploads: &[Upload<'_>], _spare: u64) -> Result<()> {
        Ok(())
    }

    /// Uploads one or more matrices with the same input, stacked along their outputs (q, k, v; gate, up), in the file's
    /// quantisation. Parts may have different types.
    fn upload_matrix(
        &mut self,
        parts: &[LinearPart<'_>],
        progress: &mut Progress<'_>,
    ) -> Result<<Self::Backend as Backend>::Matrix>;

    /// Uploads the experts of a layer in the file's quantisation, but their router as f32.
    fn upload_experts(
        &mut self,
        tensors: &ExpertTensors<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<<Self::Backend as Backend>::Experts>;

    /// Uploads the matrices of `heads` heads, whose rows lie behind each other in the tensor, for `Ops::head_products`.
    fn upload_heads(
        &mut self,
        tensor: TensorView<'_>,
        heads: usize,
        progress: &mut Progress<'_>,
    ) -> Result<<Self::Backend as Backend>::HeadMatrices>;

    /// Uploads a vector (norm weights) as f32.
    fn upload_vector(&mut self, tensor: TensorView<'_>) -> Result<<Self::Backend as Backend>::Vector>;

    /// Uploads the taps of a convolution, which a file holds channel by channel, as the vector `[taps, channels]`.
    fn upload_taps(&mut self, tensor: TensorView<'_>) -> Result<<Self::Backend as Backend>::Vector> {
        let (channels, taps) = (tensor.rows, tensor.cols);
        let mut values = vec![0.0; channels * taps];
        quant::dequantize(tensor.ggml_type, tensor.data, &mut values)?;
        let by_tap = (0..taps).flat_map(|tap| values.iter().skip(tap).step_by(taps));
        let data: Vec<u8> = by_tap.flat_map(|value| value.to_le_bytes()).collect();
        let (rows, cols) = (taps, channels);
        self.upload_vector(TensorView { ggml_type: GgmlType::F32, rows, cols, data: &data, ..tensor })
    }

    /// Uploads the frequencies of a RoPE.
    fn upload_rope(&mut self, spec: &RopeSpec) -> Result<<Self::Backend as Backend>::Rope>;

    /// Room for `rows * cols` f32 activations.
    fn alloc_buffer(&mut self, rows: usize, cols: usize) -> Result<<Self::Backend as Backend>::Buffer>;

    /// Bytes that `alloc_buffer` takes.
    fn buffer_bytes(rows: usize, cols: usize) -> u64;

    /// Columns that `DeltaNet::convolved` needs, in a buffer of `rows` rows.
    fn convolved_cols(shape: DeltaNetShape, _rows: usize) -> usize {
        shape.channels()
    }

    /// Makes the intermediate buffers of `Ops::experts` for `rows` rows; every layer uses them in turn.
    fn alloc_expert_work(&mut self, spec: &ExpertSpec, rows: usize) -> Result<<Self::Backend as Backend>::ExpertWork>;

    /// Bytes that `alloc_expert_work` takes, for budgeting.
    fn expert_work_bytes(spec: &ExpertSpec, rows: usize) -> u64;

    /// Checks that KV blocks can have `block_size` tokens; asked before anything is uploaded.
    ///
    /// # Errors
    /// `InvalidRequest` saying what the device needs.
    fn check_block_size(&self, block_size: usize) -> Result<()>;

    /// The K and V pools of all layers at once: a device may take one allocation for them.
    fn alloc_kv_layers(&mut self, specs: &[KvLayerSpec]) -> Result<Vec<<Self::Backend as Backend>::KvLayer>>;

    /// The states of all layers that have them, at once.
    fn alloc_state_layers(&mut self, specs: &[StateLayerSpec]) -> Result<Vec<<Self::Backend as Backend>::StateLayer>>;

    /// Bytes that the KV pool may take at most, given the allocations so far (free memory less a margin). Memory that
    /// only the uploads needed is given back first.
    fn available_memory(&mut self) -> Result<u64>;

    fn finish(self) -> Result<Self::Backend>;
}

/// The ops of a step, in the order in which a model wants them.
pub type StepOps<'o, B> = dyn for<'s> FnMut(&mut <B as Backend>::Step<'s>) -> Result<()> + 'o;

/// Computes steps on a device, one after the other.
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

    /// Whether `step` returns before its ops are done.
    const ASYNCHRONOUS: bool;

    /// The signal that stops a step: once it is due, the ops leave out work. A device whose steps are short has none.
    fn interrupt(&self) -> Option<&Interrupt> {
        None
    }

    /// Computes a step. `ops` is called once, or not at all where the device repeats a recorded step that does the
    /// same; for batches of the same shape it must call the ops that `rehearse` was shown, but for last ones whose
    /// results nobody wants.
    ///
    /// # Errors
    /// Errors of the ops; `Error::Internal` for a batch that contradicts itself or is larger than was planned for;
    /// `Error::Interrupted` where the interrupt was due before the last op: the results are not to be used.
    fn step(&mut self, batch: &Batch, ops: &mut StepOps<'_, Self>) -> Result<()>;

    /// Computes a step as `step` does, of other ops than `rehearse` was shown. Such a step is never recorded.
    ///
    /// # Errors
    /// Errors of `step`.
    fn step_apart(&mut self, batch: &Batch, ops: &mut StepOps<'_, Self>) -> Result<()> {
        self.step(batch, ops)
    }

    /// Lets the device see steps before it serves, so that it may record them. They take the first slot of the KV
    /// cache, and of the states, which must hold nothing yet.
    ///
    /// # Errors
    /// An error means that nothing can be served after this.
    fn rehearse(&mut self, _ops: &mut StepOps<'_, Self>) -> Result<()> {
        Ok(())
    }

    /// Tells the device which part of each row of `logits` `collect` is to bring, so that it can begin. `logits`,
    /// `[wishes.len(), cols]`, is from the last step.
    fn select(&mut self, _logits: &Self::Buffer, _cols: usize, _wishes: &[Wish<'_>]) -> Result<()> {
        Ok(())
    }

    /// Returns what `select` asked for of each of the `rows` rows, once everything queued before has run. A backend may
    /// give more than that; this default gives whole rows.
    fn collect<'a>(&'a mut self, logits: &'a Self::Buffer, rows: usize, cols: usize) -> Result<Selection<'a>> {
        Ok(Selection::of_rows(self.to_host(logits, rows, cols)?, cols))
    }

    /// Computes a norm of rows that the last step left in `args.x`, into `args.out`, and brings it to the host. It is
    /// not part of the step, so that a recorded one serves whoever wants hidden states as well.
    fn normed_rows<'a>(&'a mut self, args: NormRows<'a, Self>) -> Result<&'a [f32]>;

    /// Brings `rows` rows of `cols` to the host (after everything queued before has run).
    fn to_host<'a>(&'a mut self, buffer: &'a Self::Buffer, rows: usize, cols: usize) -> Result<&'a [f32]>;

    /// Bytes held on the device, by purpose.
    fn memory(&self) -> MemoryLedger;

    /// Device allocations since start: constant while serving.
    fn device_allocations(&self) -> u64;

    /// Names the device, and the kernel that serves each tensor type and op; for start-up and `doctor`.
    fn describe(&self) -> String;
}
