//! The operations that a decoder needs from a device, and the devices that have them.
//!
//! Two traits for two lifetimes: a `Loader` takes device memory (weights, KV pool, activations) once, before anything
//! is served; `finish` turns it into a `Backend`, which computes into what was allocated and has no way to take more.

pub mod args;
pub mod conformance;
pub mod cpu;
mod experts;
pub mod gpu;
mod host_memory;
mod upload;

pub use args::{
    Activation, AttentionArgs, KvLayerSpec, LinearPart, MemoryLedger, QkvLayout, RopeKind, RopeSpec, Rotation,
};
pub use experts::{ExpertSpec, ExpertTensors};
pub use upload::Upload;

use crate::Result;
use crate::batch::Batch;
use crate::interrupt::Interrupt;
use crate::selection::{Selection, Wish};
use crate::tensor::TensorView;

/// How a step's ops come to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// The ops follow, over this many rows: the batch's tokens, or more where a device records the step for every
    /// batch up to a size. Rows of logits are then as many as rows of tokens.
    Run { rows: usize },
    /// The device repeats a recorded step: no op follows.
    Replay,
}

/// Told how many bytes of the file were taken since the last call, every few megabytes; an error stops the upload.
pub type Progress<'a> = dyn FnMut(u64) -> Result<()> + 'a;

/// Takes the memory of an engine and fills it; one per engine, gone once the engine runs.
pub trait Loader: Sized {
    type Backend: Backend;

    /// Bytes that are left for activations and KV pool once all of that is uploaded and `finish` has taken its own,
    /// less what only makes steps faster: asked before anything is uploaded. Counted by what allocates.
    ///
    /// # Errors
    /// `OutOfMemory` when the weights alone do not fit.
    fn room_beside(&self, uploads: &[Upload<'_>]) -> Result<u64>;

    /// What will be uploaded, told before the first of it: a device may take the memory of all weights at once.
    /// What only makes steps faster may take `spare` bytes beside them; where it needs more, it is left out.
    ///
    /// # Errors
    /// `OutOfMemory` when the weights do not fit.
    fn reserve_weights(&mut self, _uploads: &[Upload<'_>], _spare: u64) -> Result<()> {
        Ok(())
    }

    /// One or more matrices with the same input, stacked along their outputs (q, k, v; gate, up), kept in the file's
    /// quantisation. Rows may be of different types per part.
    fn upload_matrix(
        &mut self,
        parts: &[LinearPart<'_>],
        progress: &mut Progress<'_>,
    ) -> Result<<Self::Backend as Backend>::Matrix>;

    /// The experts of a layer, kept in the file's quantisation; their router as f32.
    fn upload_experts(
        &mut self,
        tensors: &ExpertTensors<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<<Self::Backend as Backend>::Experts>;

    /// A vector (norm weights), as f32.
    fn upload_vector(&mut self, tensor: TensorView<'_>) -> Result<<Self::Backend as Backend>::Vector>;

    /// Room for `rows * cols` f32 activations.
    fn alloc_buffer(&mut self, rows: usize, cols: usize) -> Result<<Self::Backend as Backend>::Buffer>;

    /// Bytes that `alloc_buffer` takes.
    fn buffer_bytes(rows: usize, cols: usize) -> u64;

    /// What `Backend::experts` needs for `rows` rows; every layer uses it in turn.
    fn alloc_expert_work(&mut self, spec: &ExpertSpec, rows: usize) -> Result<<Self::Backend as Backend>::ExpertWork>;

    /// Bytes that `alloc_expert_work` takes, for budgeting.
    fn expert_work_bytes(spec: &ExpertSpec, rows: usize) -> u64;

    /// Whether KV blocks can have `block_size` tokens: asked before anything is uploaded.
    ///
    /// # Errors
    /// `InvalidRequest` saying what the device needs.
    fn check_block_size(&self, block_size: usize) -> Result<()>;

    /// One layer's K and V pool.
    fn alloc_kv_layer(&mut self, spec: KvLayerSpec) -> Result<<Self::Backend as Backend>::KvLayer>;

    /// All layers' pools: a device may take one allocation for them.
    fn alloc_kv_layers(&mut self, specs: &[KvLayerSpec]) -> Result<Vec<<Self::Backend as Backend>::KvLayer>> {
        specs.iter().map(|&spec| self.alloc_kv_layer(spec)).collect()
    }

    /// Bytes that the KV pool may take at most, given what is allocated so far (free memory less a margin). What only
    /// the uploads needed is given back first.
    fn available_memory(&mut self) -> Result<u64>;

    fn finish(self) -> Result<Self::Backend>;
}

/// The operations of a decoder step. Buffers are row-major f32 `[rows, cols]`; every op handles `rows` rows and
/// writes only what it names. A result row depends on its own inputs alone, bit for bit: never on how many rows
/// were computed with it (batch invariance).
pub trait Backend: Send + Sized + 'static {
    type Buffer: Send;
    type Matrix: Send;
    type Vector: Send;
    type KvLayer: Send;
    type Experts: Send;
    type ExpertWork: Send;

    /// Whether ops return before they are done.
    const ASYNCHRONOUS: bool;

    /// Hands the batch's integers to the device; called once per step, before any op.
    fn begin_step(&mut self, batch: &Batch) -> Result<()>;

    /// What stops the ops of a step: once it is due, they leave out work, and whoever calls them looks at it before
    /// using a result. A device whose steps are short has none.
    fn interrupt(&self) -> Option<&Interrupt> {
        None
    }

    /// Asks, after `begin_step`, whether the whole step's ops are wanted. A caller that asks ends them with `end_ops`.
    fn begin_ops(&mut self, batch: &Batch) -> Result<Plan> {
        Ok(Plan::Run { rows: batch.num_tokens() })
    }

    /// All ops of the step were called (none, for `Plan::Replay`); its results may be read after this.
    fn end_ops(&mut self) -> Result<()> {
        Ok(())
    }

    /// The next step that the device wants to see before it serves, so that it may record it; `None` once there is none
    /// left. Its ops are called as those of any step, and `rehearsed` is told how that went. It takes the first slot of
    /// the KV cache, which must hold nothing yet.
    fn next_rehearsal(&mut self) -> Result<Option<Batch>> {
        Ok(None)
    }

    /// The step that `next_rehearsal` gave was called, or could not be.
    ///
    /// # Errors
    /// Where nothing can be served after this.
    fn rehearsed(&mut self, outcome: Result<()>) -> Result<()> {
        outcome
    }

    /// `out[i] = scale * table[token_ids[i]]`.
    fn embed(&mut self, table: &Self::Matrix, batch: &Batch, scale: f32, out: &mut Self::Buffer) -> Result<()>;

    /// `out = x / rms(x) * weight`.
    fn rms_norm(
        &mut self,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        rows: usize,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `out[r] = matrix · x[r] (+ bias)`; `out` has one column per row of the stacked matrix.
    fn linear(&mut self, matrix: &Self::Matrix, x: &Self::Buffer, rows: usize, out: &mut Self::Buffer) -> Result<()>;

    /// `residual[r] += matrix · x[r] (+ bias)`.
    fn linear_add(
        &mut self,
        matrix: &Self::Matrix,
        x: &Self::Buffer,
        rows: usize,
        residual: &mut Self::Buffer,
    ) -> Result<()>;

    /// `out = linear(matrix, rms_norm(x))`; what becomes of `normed` is the backend's affair.
    #[allow(clippy::too_many_arguments)]
    fn norm_linear(
        &mut self,
        x: &Self::Buffer,
        norm: &Self::Vector,
        eps: f32,
        matrix: &Self::Matrix,
        rows: usize,
        normed: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<()> {
        self.rms_norm(x, norm, eps, rows, normed)?;
        self.linear(matrix, normed, rows, out)
    }

    /// `out = gated_activation(linear(gate_up, rms_norm(x)))`, `cols` wide; `normed` and `products` are the backend's.
    #[allow(clippy::too_many_arguments)]
    fn norm_gated_linear(
        &mut self,
        x: &Self::Buffer,
        norm: &Self::Vector,
        eps: f32,
        gate_up: &Self::Matrix,
        activation: Activation,
        rows: usize,
        cols: usize,
        normed: &mut Self::Buffer,
        products: &mut Self::Buffer,
        out: &mut Self::Buffer,
    ) -> Result<()> {
        self.norm_linear(x, norm, eps, gate_up, rows, normed, products)?;
        self.gated_activation(products, activation, rows, cols, out)
    }

    /// `residual[r] += sum_e weight_e * down_e · (act(gate_e · n) * (up_e · n))`, n being the RMS norm of
    /// `residual[r]`, over the experts that the router chooses for the row: those of its largest logits, among equals
    /// the lower index. Their weights are the softmax of all logits, normalised as the spec says. `normed` and `work`
    /// are the backend's.
    #[allow(clippy::too_many_arguments)]
    fn experts(
        &mut self,
        experts: &Self::Experts,
        norm: &Self::Vector,
        eps: f32,
        rows: usize,
        normed: &mut Self::Buffer,
        work: &mut Self::ExpertWork,
        residual: &mut Self::Buffer,
    ) -> Result<()>;

    /// cos and sin of every rotated pair for the batch's positions: `out[i] = [cos; num_pairs] ++ [sin; num_pairs]`,
    /// each times `spec.magnitude`.
    fn rope_angles(&mut self, spec: &RopeSpec, batch: &Batch, out: &mut Self::Buffer) -> Result<()>;

    /// q/k norm per head (where given), then RoPE on q and k, in place in the stacked `qkv`; stores k and v into the
    /// cache at the group's `slot_mapping`.
    fn rope_and_store_kv(
        &mut self,
        qkv: &mut Self::Buffer,
        layout: QkvLayout,
        rotation: Rotation<'_, Self::Vector, Self::Buffer>,
        batch: &Batch,
        group: usize,
        kv: &mut Self::KvLayer,
    ) -> Result<()>;

    /// Causal attention of the batch's q rows over the paged cache; any mix of query lengths. `out` is
    /// `[n, num_heads * head_dim]`. A row with nothing to attend to gives zeros.
    #[allow(clippy::too_many_arguments)]
    fn attention(
        &mut self,
        qkv: &Self::Buffer,
        layout: QkvLayout,
        args: AttentionArgs,
        batch: &Batch,
        group: usize,
        kv: &Self::KvLayer,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `rope_and_store_kv`, then `attention` over what is there with it; what becomes of `qkv` is the backend's affair.
    #[allow(clippy::too_many_arguments)]
    fn rope_attention(
        &mut self,
        qkv: &mut Self::Buffer,
        layout: QkvLayout,
        rotation: Rotation<'_, Self::Vector, Self::Buffer>,
        args: AttentionArgs,
        batch: &Batch,
        group: usize,
        kv: &mut Self::KvLayer,
        out: &mut Self::Buffer,
    ) -> Result<()> {
        self.rope_and_store_kv(qkv, layout, rotation, batch, group, kv)?;
        self.attention(qkv, layout, args, batch, group, kv, out)
    }

    /// `out[r][i] = act(gate_up[r][i]) * gate_up[r][cols + i]` with `cols` output columns.
    fn gated_activation(
        &mut self,
        gate_up: &Self::Buffer,
        activation: Activation,
        rows: usize,
        cols: usize,
        out: &mut Self::Buffer,
    ) -> Result<()>;

    /// `out[i] = x[batch.logits_indices[i]]`, rows of `cols`.
    fn gather_rows(&mut self, x: &Self::Buffer, batch: &Batch, cols: usize, out: &mut Self::Buffer) -> Result<()>;

    /// Executes the batch's copy-on-write copies that belong to `group` on one layer.
    fn copy_blocks(&mut self, batch: &Batch, group: usize, kv: &mut Self::KvLayer) -> Result<()>;

    /// Brings `rows` rows of `cols` to the host (after everything queued before has run).
    fn to_host<'a>(&'a mut self, buffer: &'a Self::Buffer, rows: usize, cols: usize) -> Result<&'a [f32]>;

    /// Says what `select` is to bring of each row of `logits`, `[wishes.len(), cols]`, so that the device can go about
    /// it.
    fn begin_select(&mut self, _logits: &Self::Buffer, _cols: usize, _wishes: &[Wish<'_>]) -> Result<()> {
        Ok(())
    }

    /// What was wanted of each of the `rows` rows (after everything queued before has run). A backend may give more
    /// than that; this one gives whole rows.
    fn select<'a>(&'a mut self, logits: &'a Self::Buffer, rows: usize, cols: usize) -> Result<Selection<'a>> {
        Ok(Selection::of_rows(self.to_host(logits, rows, cols)?, cols))
    }

    /// Bytes held on the device, by purpose.
    fn memory(&self) -> MemoryLedger;

    /// Device allocations since start: constant while serving.
    fn device_allocations(&self) -> u64;

    /// Which device, and which kernel serves which tensor type and op; for start-up and `doctor`.
    fn describe(&self) -> String;
}
