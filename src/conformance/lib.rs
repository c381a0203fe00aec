//! The cases that every backend must pass, as data (shape, seed, tolerance; odd sizes first), compared with f64
//! references. They use only the traits. The tests of each backend run them, and so does `rocmforge doctor --test` on
//! the user's device.
//!
//! - `check_all` runs everything; each module has the cases of one kind of operation.
//! - `tally` counts cases and wrong results.
//! - `reference` computes what is expected, in double precision.
//! - `invariance` checks that a row's result does not depend on the other rows.
//! - `splits` repeats results that several thread blocks compute together.
//!
//! Start with `check_types` here, then `linear`. Of the workspace, this crate knows the traits of `rocmforge_backend`,
//! block formats and batches, and no device. The feature `testing` adds `pass`, with which tests run cases.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

pub mod arguments;
pub mod attention;
pub mod elementwise;
pub mod experts;
mod invariance;
pub mod linear;
pub mod parts;
pub mod reference;
mod rope;
pub mod selection;
pub mod states;
pub mod streams;
mod tally;

// The crates below, by the names that the files of this one use.
use rocmforge_backend as backend;
pub use rocmforge_backend::Random;
use rocmforge_config as config;
use rocmforge_core::{Error, Result, batch};
use rocmforge_gguf::{quant, tensor};

pub use attention::{latent, rope_attention};
pub use invariance::splits;
pub use linear::{fused, gated};
pub use tally::{Extent, Group, Tally};

use crate::backend::{
    Attention, Backend, Embed, Fusions, KvLayerSpec, LinearPart, Loader, Ops, QkvLayout, RopeAndStore, RopeAngles,
    RopeAttention, RopeKind, RopeSpec, Scoring,
};
use crate::batch::{Batch, GroupKind, GroupTables, NULL_BLOCK};
use crate::quant::GgmlType;
use crate::tensor::TensorView;
pub use rope::HostRotation;
use rope::UploadedRotation;

pub type BufferOf<L> = <<L as Loader>::Backend as Backend>::Buffer;

/// The accuracy of a backend that may compute in less than f32.
#[derive(Debug, Clone, Copy)]
pub struct Accuracy {
    /// Absolute error of attention over an f16 or int8 cache with values up to 1.
    attention_f16: f64,
}

impl Accuracy {
    pub const CPU: Self = Self { attention_f16: 2e-6 };
    /// Matrix units read q and the softmax weights as f16.
    pub const GPU: Self = Self { attention_f16: 2e-3 };
}

/// Runs all cases except those of `check_invariance`. `loader` creates a new loader for steps of up to the given rows.
///
/// # Errors
/// Errors of the backend. Wrong results are no errors; the tally counts them.
pub fn check_all<L: Loader>(
    loader: impl Fn(usize) -> Result<L> + Copy,
    accuracy: Accuracy,
    tally: &mut Tally<'_>,
) -> Result<()> {
    check_types(loader, accuracy, |_| true, tally)
}

/// Runs the cases of `check_all`, with products only of the tensor types that `types` accepts.
///
/// # Errors
/// See `check_all`.
pub fn check_types<L: Loader>(
    loader: impl Fn(usize) -> Result<L> + Copy,
    accuracy: Accuracy,
    types: impl Fn(GgmlType) -> bool,
    tally: &mut Tally<'_>,
) -> Result<()> {
    // The compiler makes a copy of every case for each type of closure.
    let loader: &dyn Fn(usize) -> Result<L> = &loader;
    let types: &dyn Fn(GgmlType) -> bool = &types;
    arguments::written::check(loader, tally)?;
    elementwise::check(loader, tally)?;
    fused::check(loader, tally)?;
    gated::check(loader, types, tally)?;
    linear::check(loader, types, tally)?;
    parts::check(loader, tally)?;
    experts::check(loader, tally)?;
    rope::check(loader, tally)?;
    attention::check(loader, accuracy, tally)?;
    rope_attention::check(loader, tally)?;
    attention::kv_groups::check(loader, accuracy, tally)?;
    latent::check(loader, accuracy, tally)?;
    states::check(loader, tally)?;
    streams::check(loader, tally)?;
    attention::shared_kv::check(loader, accuracy, tally)?;
    arguments::check(loader, tally)?;
    selection::check(loader, tally)
}

/// Checks that results have the same bits with any other rows in the batch.
///
/// # Errors
/// See `check_all`.
pub fn check_invariance<L: Loader>(loader: impl Fn(usize) -> Result<L> + Copy, tally: &mut Tally<'_>) -> Result<()> {
    let loader: &dyn Fn(usize) -> Result<L> = &loader;
    invariance::check(loader, tally)
}

/// Runs cases in a test.
///
/// # Panics
/// With the texts of all wrong results.
#[cfg(any(test, feature = "testing"))]
pub fn pass(extent: Extent, check: impl FnOnce(&mut Tally<'_>) -> Result<()>) {
    let mut last = String::new();
    let mut watch = |what: &str| {
        what.clone_into(&mut last);
        true
    };
    let mut tally = Tally::new(extent, &mut watch);
    let outcome = check(&mut tally);
    let groups = tally.into_groups();
    outcome.unwrap_or_else(|error| panic!("{last}: {error}"));
    assert!(groups.iter().map(|group| group.cases).sum::<u64>() > 0, "no case ran");
    let wrong: Vec<_> = groups.iter().flat_map(|group| &group.texts).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Uploads f32 values as a vector.
pub fn vector<L: Loader>(loader: &mut L, values: &[f32]) -> Result<<L::Backend as Backend>::Vector> {
    let data = bytes_of(values);
    let view =
        TensorView { name: "vector", ggml_type: GgmlType::F32, rows: 1, cols: values.len(), data: &data, scales: &[] };
    loader.upload_vector(view)
}

/// Uploads f32 values as a matrix.
pub fn matrix<L: Loader>(loader: &mut L, values: &[f32], cols: usize) -> Result<<L::Backend as Backend>::Matrix> {
    stack(loader, &[values], cols)
}

/// Uploads several f32 matrices as one stack.
pub fn stack<L: Loader>(loader: &mut L, parts: &[&[f32]], cols: usize) -> Result<<L::Backend as Backend>::Matrix> {
    let data: Vec<_> = parts.iter().map(|values| bytes_of(values)).collect();
    let parts = data.iter().map(|data| {
        let rows = data.len() / size_of::<f32>() / cols;
        LinearPart {
            weight: TensorView { name: "matrix", ggml_type: GgmlType::F32, rows, cols, data, scales: &[] },
            bias: None,
        }
    });
    loader.upload_matrix(&parts.collect::<Vec<_>>(), &mut |_| Ok(()))
}

/// Allocates two buffers of the same size.
fn two_buffers<L: Loader>(loader: &mut L, rows: usize, cols: usize) -> Result<[BufferOf<L>; 2]> {
    Ok([loader.alloc_buffer(rows, cols)?, loader.alloc_buffer(rows, cols)?])
}

/// Fills `buffer` with the first `rows` rows of `table` by an embedding, the only input that the traits have.
pub fn fill<B: Backend>(backend: &mut B, table: &B::Matrix, rows: usize, buffer: &mut B::Buffer) -> Result<()> {
    within(backend, rows, |step| step.embed(Embed { table, scale: 1.0, out: &mut *buffer }))
}

/// Runs ops in a step of `rows` tokens. The ops only use their number.
pub fn within<B: Backend>(
    backend: &mut B,
    rows: usize,
    mut ops: impl for<'s> FnMut(&mut B::Step<'s>) -> Result<()>,
) -> Result<()> {
    backend.step(&rows_batch((0..rows as u32).collect()), &mut ops)
}

/// Allocates a KV layer of this spec.
pub fn kv_layer<L: Loader>(loader: &mut L, spec: KvLayerSpec) -> Result<<L::Backend as Backend>::KvLayer> {
    let layer = loader.alloc_kv_layers(&[spec])?.pop();
    layer.ok_or_else(|| crate::Error::internal("no KV layer where one was asked for"))
}

/// Returns a batch with one sequence of these tokens and no cache.
pub fn rows_batch(token_ids: Vec<u32>) -> Batch {
    let n = token_ids.len() as u32;
    let (positions, cu_seqlens_q, context_lens) = ((0..n).collect(), vec![0, n], vec![n]);
    Batch { token_ids, positions, cu_seqlens_q, context_lens, ..Batch::default() }
}

/// Returns a RoPE that rotates nothing, for cases of attention alone.
pub fn no_rope() -> RopeSpec {
    RopeSpec { kind: RopeKind::Neox, inv_freq: Vec::new(), magnitude: 1.0 }
}

/// One sequence of a batch: its block table, its cached tokens and its tokens of this step.
#[derive(Debug, Clone)]
pub struct Piece {
    /// The row of the rig's table with q, k and v of the sequence's first token.
    pub first_row: usize,
    pub blocks: Vec<u32>,
    pub cached: usize,
    pub new: usize,
}

/// Returns the batch of `pieces` with blocks of `block_size`. Blocks that have left a window are null.
pub fn batch_of(pieces: &[Piece], block_size: usize, kind: GroupKind) -> Batch {
    let mut batch = Batch { cu_seqlens_q: vec![0], ..Batch::default() };
    let mut group = GroupTables { cu_blocks: vec![0], ..GroupTables::default() };
    for piece in pieces {
        let end = piece.cached + piece.new;
        for position in piece.cached..end {
            batch.token_ids.push((piece.first_row + position) as u32);
            batch.positions.push(position as u32);
            group
                .slot_mapping
                .push(piece.blocks[position / block_size] * block_size as u32 + (position % block_size) as u32);
        }
        batch.cu_seqlens_q.push(batch.token_ids.len() as u32);
        batch.context_lens.push(end as u32);
        let first_key = match kind {
            GroupKind::Full | GroupKind::Bidirectional { .. } => 0,
            GroupKind::Sliding { window } => (piece.cached + 1).saturating_sub(window as usize),
            GroupKind::Chunked { size } => piece.cached / size as usize * size as usize,
        };
        for (i, &block) in piece.blocks[..end.div_ceil(block_size)].iter().enumerate() {
            group.block_tables.push(if (i + 1) * block_size <= first_key { NULL_BLOCK } else { block });
        }
        group.cu_blocks.push(group.block_tables.len() as u32);
    }
    batch.groups.push(group);
    batch
}

/// A backend with one KV layer and the buffers of attention. Inputs are rows of a table.
pub struct AttentionRig<L: Loader> {
    pub backend: L::Backend,
    pub layout: QkvLayout,
    pub spec: KvLayerSpec,
    /// All qkv rows of a case, followed by one block of rows of NaN.
    pub table: <L::Backend as Backend>::Matrix,
    pub table_rows: usize,
    pub qkv: BufferOf<L>,
    pub angles: BufferOf<L>,
    pub out: BufferOf<L>,
    pub kv: <L::Backend as Backend>::KvLayer,
    rotation: UploadedRotation<L::Backend>,
    sinks: Option<<L::Backend as Backend>::Vector>,
    biases: Option<<L::Backend as Backend>::Vector>,
}

impl<L: Loader> AttentionRig<L> {
    /// Returns a rig for qkv `rows` of `layout.cols()`, without rotation.
    #[cfg(any(test, feature = "testing"))]
    pub fn new(loader: L, layout: QkvLayout, spec: KvLayerSpec, rows: &[f32]) -> Result<Self> {
        Self::with_rotation(loader, layout, spec, rows, &no_rope().into(), None, None)
    }

    pub fn with_rotation(
        mut loader: L,
        layout: QkvLayout,
        spec: KvLayerSpec,
        rows: &[f32],
        rotation: &HostRotation,
        sinks: Option<&[f32]>,
        biases: Option<&[f32]>,
    ) -> Result<Self> {
        let table_rows = rows.len() / layout.cols();
        let mut rows = rows.to_vec();
        rows.resize(rows.len() + spec.block_size * layout.cols(), f32::NAN);
        let table = matrix(&mut loader, &rows, layout.cols())?;
        let most = table_rows.max(spec.block_size);
        let qkv = loader.alloc_buffer(most, layout.cols())?;
        let angles = loader.alloc_buffer(most, 2 * rotation.rope.inv_freq.len().max(1))?;
        let out = loader.alloc_buffer(most, layout.out_cols())?;
        let kv = kv_layer(&mut loader, spec)?;
        let rotation = rotation.upload(&mut loader)?;
        let sinks = sinks.map(|sinks| vector(&mut loader, sinks)).transpose()?;
        let biases = biases.map(|biases| vector(&mut loader, biases)).transpose()?;
        let backend = loader.finish()?;
        let mut rig = Self { backend, layout, spec, table, table_rows, qkv, angles, out, kv, rotation, sinks, biases };
        rig.poison()?;
        Ok(rig)
    }

    /// Fills the whole pool with NaN, which exposes a read of anything not stored.
    fn poison(&mut self) -> Result<()> {
        for block in 0..self.spec.num_blocks as u32 {
            let piece = Piece { first_row: self.table_rows, blocks: vec![block], cached: 0, new: self.spec.block_size };
            self.store(&batch_of(&[piece], self.spec.block_size, GroupKind::Full))?;
        }
        Ok(())
    }

    /// Stores the K and V of the batch's tokens.
    pub fn store(&mut self, batch: &Batch) -> Result<()> {
        let Self { backend, layout, table, qkv, angles, kv, rotation, .. } = self;
        backend.step(batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
            step.rope_angles(RopeAngles { rope: &rotation.rope, out: angles })?;
            step.embed(Embed { table, scale: 1.0, out: qkv })?;
            let rotation = rotation.of(angles, *layout);
            step.rope_and_store_kv(RopeAndStore { qkv, layout: *layout, rotation, group: 0, kv })
        })
    }

    /// Stores the cached tokens of the sequences, then runs the step: store and attention.
    pub fn run(&mut self, scoring: Scoring, pieces: &[Piece]) -> Result<Vec<f32>> {
        for piece in pieces {
            let before = Piece { cached: 0, new: piece.cached, ..piece.clone() };
            self.store(&batch_of(&[before], self.spec.block_size, GroupKind::Full))?;
        }
        self.step(scoring, pieces)
    }

    /// Runs one step without storing the earlier tokens.
    pub fn step(&mut self, scoring: Scoring, pieces: &[Piece]) -> Result<Vec<f32>> {
        let batch = &batch_of(pieces, self.spec.block_size, self.spec.kind);
        let Self { backend, layout, table, qkv, angles, out, kv, rotation, sinks, biases, .. } = self;
        let (layout, sinks, biases) = (*layout, sinks.as_ref(), biases.as_ref());
        backend.step(batch, &mut |step: &mut <L::Backend as Backend>::Step<'_>| {
            step.rope_angles(RopeAngles { rope: &rotation.rope, out: angles })?;
            step.embed(Embed { table, scale: 1.0, out: qkv })?;
            let rotation = rotation.of(angles, layout);
            step.rope_and_store_kv(RopeAndStore { qkv, layout, rotation, group: 0, kv })?;
            step.attention(Attention { qkv, layout, scoring, sinks, biases, group: 0, kv, out })
        })?;
        Ok(self.backend.to_host(&self.out, batch.num_tokens(), layout.out_cols())?.to_vec())
    }

    /// Runs one step with store and attention in one op.
    pub fn rope_step(&mut self, scoring: Scoring, pieces: &[Piece]) -> Result<Vec<f32>> {
        let batch = &batch_of(pieces, self.spec.block_size, self.spec.kind);
        self.rope_attention(scoring, Some(batch))?;
        Ok(self.backend.to_host(&self.out, batch.num_tokens(), self.layout.out_cols())?.to_vec())
    }

    /// Queues the step of `rope_step`, or warms up the device without a batch. Returns the number of calls of the
    /// step's ops.
    pub fn rope_attention(&mut self, scoring: Scoring, batch: Option<&Batch>) -> Result<usize> {
        let Self { backend, layout, table, qkv, angles, out, kv, rotation, sinks, biases, .. } = self;
        let (layout, mut calls) = (*layout, 0);
        let mut ops = |step: &mut <L::Backend as Backend>::Step<'_>| {
            calls += 1;
            step.rope_angles(RopeAngles { rope: &rotation.rope, out: angles })?;
            step.embed(Embed { table, scale: 1.0, out: qkv })?;
            let rotation = rotation.of(angles, layout);
            step.rope_attention(RopeAttention {
                qkv,
                layout,
                rotation,
                scoring,
                sinks: sinks.as_ref(),
                biases: biases.as_ref(),
                group: 0,
                kv,
                out,
            })
        };
        match batch {
            Some(batch) => backend.step(batch, &mut ops)?,
            None => backend.warm_up(&mut ops)?,
        }
        Ok(calls)
    }

    #[cfg(any(test, feature = "testing"))]
    pub fn held(&self) -> (crate::backend::MemoryLedger, u64) {
        (self.backend.memory(), self.backend.device_allocations())
    }
}
