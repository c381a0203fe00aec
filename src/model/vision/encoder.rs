//! An image encoder on a device: the forward pass from the patches of a picture to rows for the text model.
//!
//! The encoder has its own backend next to that of the text model, so it does not affect text steps. The host computes
//! the positions of patches and writes them into buffers. Patches are tokens, and each attention window is a sequence.
//! All layers use one KV layer in turn.

mod projector;

use std::ops::Range;

use super::layout::Layout;
use super::rows::ImageRows;
use super::spec::VisionSpec;
use super::tensors::{HostValues, LayerWeights, Norm, Product, Uploads, VisionTensors, VisionWeights};
use crate::backend::{
    self, Activate, AddNorm, Attention, Backend, Cap, Fusions, GatedActivation, KvLayerSpec, Linear, Loader,
    MatrixShape, MemoryLedger, NormLinear, NormRows, Ops, QkNorms, QkvLayout, RopeAndStore, RopeKind, RopeSpec,
    Rotation, ScaleRows, Scoring, StepLimits,
};
use crate::batch::{Batch, GroupKind, GroupTables};
use crate::config::KvCacheDtype;
use crate::pixels::{CHANNELS, Prepared};
use crate::{Error, Result};

/// Bytes that a vendor's matrix library may take, if they are free.
const MATRIX_LIBRARY_BYTES: u64 = 512 << 20;

/// The number of patches in a block of keys and values.
const BLOCK: usize = 16;

/// An encoder on any device.
pub trait ImageEncoder: Send {
    /// Returns the rows of a picture, given in parts.
    ///
    /// # Errors
    /// Errors of the device, and `Error::Internal` for a picture that was not prepared as the spec requires.
    fn encode(&mut self, picture: &[Prepared]) -> Result<ImageRows>;

    fn spec(&self) -> &VisionSpec;

    /// Returns the bytes held on the device, by purpose.
    fn memory(&self) -> MemoryLedger;
}

type Weights<B> = VisionWeights<<B as Backend>::Matrix, <B as Backend>::Vector>;
type Layer<B> = LayerWeights<<B as Backend>::Matrix, <B as Backend>::Vector>;

pub struct Encoder<B: Backend> {
    backend: B,
    model: Model<B>,
    buffers: Buffers<B>,
    host: HostValues,
    /// The position embeddings of the last part of a picture, with its grid. Most parts are as large as the one before.
    positions: ([usize; 2], Vec<f32>),
}

/// The weights and their spec.
struct Model<B: Backend> {
    spec: VisionSpec,
    weights: Weights<B>,
    rope: B::Rope,
}

/// Activations, with room for the largest picture.
struct Buffers<B: Backend> {
    patches: B::Buffer,
    angles: B::Buffer,
    residual: B::Buffer,
    normed: B::Buffer,
    qkv: B::Buffer,
    mixed: B::Buffer,
    products: B::Buffer,
    gated: B::Buffer,
    /// Rows of the projector, one for each square: normed, after the first matrix, and after the activation.
    joined: [B::Buffer; 3],
    /// Rows for the text model, then those for its first layers (DeepStack).
    out: Vec<B::Buffer>,
    kv: B::KvLayer,
}

/// Returns the sizes of the steps of an encoder.
pub fn limits(spec: &VisionSpec) -> StepLimits {
    let patches = spec.most_patches();
    let tokens = spec.tokens(patches);
    // Windows at the edges are smaller, so each takes a block at least.
    let seqs = if spec.windows.is_some() { patches / BLOCK + 2 } else { 1 };
    let table_blocks = tokens.div_ceil(BLOCK);
    StepLimits { tokens, seqs, logits_rows: 1, groups: 1, table_blocks, state_writes: 0 }
}

impl<B: Backend> Encoder<B> {
    /// Loads an encoder. `loader` was opened with `limits`. `dtype` is the type of the keys and values of patches.
    ///
    /// # Errors
    /// Errors of the loader.
    pub fn load<L: Loader<Backend = B>>(
        mut loader: L,
        tensors: &VisionTensors<'_>,
        dtype: KvCacheDtype,
    ) -> Result<Self> {
        let spec = tensors.spec().clone();
        let uploads = tensors.uploads()?;
        loader.check_block_size(BLOCK)?;
        let spare = loader.room_beside(&uploads)?.min(MATRIX_LIBRARY_BYTES);
        loader.reserve_weights(&uploads, spare)?;
        let weights = tensors.weights(&mut Uploads(&mut loader))?;
        let rope = loader.upload_rope(&rope(&spec))?;
        let buffers = Buffers::new(&spec, dtype, &mut loader)?;
        let (backend, host) = (loader.finish()?, tensors.host_values()?);
        let positions = ([0; 2], Vec::new());
        Ok(Self { backend, model: Model { spec, weights, rope }, buffers, host, positions })
    }
}

/// Returns the RoPE of the encoder. The host computes its angles.
fn rope(spec: &VisionSpec) -> RopeSpec {
    let pairs = if spec.rope.is_some() { spec.head_dim() / 2 } else { 0 };
    let kind = spec.rope.map_or(RopeKind::Neox, |rope| rope.kind);
    RopeSpec { kind, inv_freq: vec![0.0; pairs], magnitude: 1.0 }
}

impl<B: Backend> Buffers<B> {
    fn new<L: Loader<Backend = B>>(spec: &VisionSpec, dtype: KvCacheDtype, loader: &mut L) -> Result<Self> {
        let StepLimits { tokens, seqs, table_blocks, .. } = limits(spec);
        let squares = spec.most_patches() / spec.patches_per_row();
        let (hidden, ffn) = (spec.hidden_size, spec.ffn_size);
        let num_blocks = table_blocks + seqs;
        let kv = KvLayerSpec {
            kind: GroupKind::Bidirectional { reach: u32::MAX },
            skips_first: false,
            num_blocks,
            block_size: BLOCK,
            num_kv_heads: spec.num_heads,
            head_dim: spec.head_dim(),
            latent: None,
            dtype,
        };
        let kv =
            loader.alloc_kv_layers(&[kv])?.pop().ok_or_else(|| Error::internal("an encoder without a KV layer"))?;
        let mut buffer = |rows: usize, cols: usize| loader.alloc_buffer(rows, cols);
        let joined = spec.projector_cols().map(|cols| buffer(squares, cols));
        let [norm, products, gated] = joined;
        Ok(Self {
            patches: buffer(tokens, spec.patch_cols())?,
            angles: buffer(tokens, spec.head_dim())?,
            residual: buffer(tokens, hidden)?,
            normed: buffer(tokens, hidden)?,
            qkv: buffer(tokens, 3 * hidden)?,
            mixed: buffer(tokens, hidden)?,
            products: buffer(tokens, if spec.feed_forward.is_gated() { 2 * ffn } else { ffn })?,
            gated: buffer(tokens, ffn)?,
            joined: [norm?, products?, gated?],
            out: (0..=spec.deepstack.len()).map(|_| buffer(squares, spec.output_size)).collect::<Result<_>>()?,
            kv,
        })
    }
}

/// Returns the batch of a part of a picture: a sequence of tokens for each window.
fn batch(windows: &[usize]) -> Batch {
    let mut batch = Batch { cu_seqlens_q: vec![0], ..Batch::default() };
    let mut group = GroupTables { cu_blocks: vec![0], ..GroupTables::default() };
    for &patches in windows {
        let first = group.block_tables.len();
        let slots = (0..patches).map(|patch| (first * BLOCK + patch) as u32);
        group.slot_mapping.extend(slots);
        group.block_tables.extend((first..first + patches.div_ceil(BLOCK)).map(|block| block as u32));
        group.cu_blocks.push(group.block_tables.len() as u32);
        batch.positions.extend(0..patches as u32);
        batch.cu_seqlens_q.push(batch.positions.len() as u32);
        batch.context_lens.push(patches as u32);
    }
    batch.token_ids = vec![0; batch.positions.len()];
    batch.groups.push(group);
    batch
}

impl<B: Backend> ImageEncoder for Encoder<B> {
    fn encode(&mut self, picture: &[Prepared]) -> Result<ImageRows> {
        let mut parts = picture.iter().map(|part| self.encode_part(part));
        let first = parts.next().ok_or_else(|| Error::internal("a picture without parts"))??;
        parts.try_fold(first, |mut rows, part| {
            rows.append(part?);
            Ok(rows)
        })
    }

    fn spec(&self) -> &VisionSpec {
        &self.model.spec
    }

    fn memory(&self) -> MemoryLedger {
        self.backend.memory()
    }
}

impl<B: Backend> Encoder<B> {
    /// Computes the rows of a part of a picture.
    fn encode_part(&mut self, Prepared { width, height, values }: &Prepared) -> Result<ImageRows> {
        let Self { backend, model, buffers, host, positions } = self;
        let spec = &model.spec;
        if values.len() != CHANNELS * width * height {
            return Err(Error::internal(format!("{} values of a part of {width} x {height}", values.len())));
        }
        let layout = Layout::new(spec, [*height, *width])?;
        let patches = layout.patches();
        if patches > spec.most_patches() {
            return Err(Error::internal(format!("{patches} patches of an encoder for {}", spec.most_patches())));
        }
        backend.write_rows(&mut buffers.patches, 0, &layout.numbers(spec, values), spec.patch_cols())?;
        if let Some(kind) = spec.positions {
            if positions.0 != layout.grid() {
                let mut of_grid = layout.positions(&host.table, kind, spec.hidden_size);
                of_grid.extend(host.class.iter().flatten());
                *positions = (layout.grid(), of_grid);
            }
            backend.write_rows(&mut buffers.residual, 0, &positions.1, spec.hidden_size)?;
        }
        if let Some(rope) = spec.rope {
            backend.write_rows(&mut buffers.angles, 0, &layout.angles(spec, rope), spec.head_dim())?;
        }
        let tokens = spec.tokens(patches);
        let (whole, in_windows) = (batch(&[tokens]), batch(layout.windows()));
        backend.step_apart(&whole, &mut |step: &mut B::Step<'_>| model.embed(step, buffers, tokens))?;
        // All layers of a step attend within the same windows.
        let is_windowed = |layer: usize| spec.windows.as_ref().is_some_and(|windows| windows.layers[layer]);
        let layers: Vec<usize> = (0..spec.num_layers).collect();
        for run in layers.chunk_by(|&a, &b| is_windowed(a) == is_windowed(b)) {
            let batch = if is_windowed(run[0]) { &in_windows } else { &whole };
            backend.step_apart(batch, &mut |step: &mut B::Step<'_>| {
                run.iter().try_for_each(|&layer| model.layer(step, layer, buffers))
            })?;
        }
        model.project(backend, &batch(&[patches]), buffers, host.standard.as_ref())?;
        let squares = patches / spec.patches_per_row();
        let mut sets = buffers.out.iter().map(|out| {
            let rows = backend.to_host(out, squares, spec.output_size)?;
            Ok::<_, Error>(layout.in_order(rows, spec.output_size))
        });
        let rows = sets.next().ok_or_else(|| Error::internal("an encoder without rows"))??;
        let rows = match &host.row_end {
            Some(end) => layout.with_row_ends(spec, &rows, end),
            None => rows,
        };
        let deepstack = sets.collect::<Result<_>>()?;
        Ok(ImageRows { rows, deepstack })
    }
}

impl<V> Norm<V> {
    fn of<B: Backend<Vector = V>>(&self) -> backend::Norm<'_, B> {
        backend::Norm { kind: self.spec.kind, weight: &self.weight, bias: self.bias.as_ref(), eps: self.spec.eps }
    }
}

impl<B: Backend> Model<B> {
    /// `residual = positions + norm(patches)`.
    fn embed(&self, step: &mut B::Step<'_>, buffers: &mut Buffers<B>, rows: usize) -> Result<()> {
        let Buffers { patches: x, residual, normed, .. } = buffers;
        let norm = self.weights.first_norm.as_ref();
        let out = if norm.is_some() { &mut *normed } else { &mut *residual };
        let has_positions = self.spec.positions.is_some();
        let mut add = has_positions && norm.is_none();
        for matrix in &self.weights.patches {
            step.linear(Linear { x, matrix, rows, out: &mut *out, add })?;
            add = true;
        }
        match norm {
            Some(norm) if has_positions => {
                step.add_norm(AddNorm { x: normed, norm: norm.of(), rows, out: residual, factor: 1.0 })
            }
            Some(norm) => step.norm_rows(NormRows { x: normed, norm: norm.of(), rows, out: residual }),
            None => Ok(()),
        }
    }

    fn layer(&self, step: &mut B::Step<'_>, index: usize, buffers: &mut Buffers<B>) -> Result<()> {
        step.check_interrupt()?;
        let rows = step.num_tokens();
        let LayerWeights { mixer_norm, qkv, head_norms, output, mixer_post_norm, .. } = &self.weights.layers[index];
        let (heads, head_dim) = (self.spec.num_heads, self.spec.head_dim());
        let layout = QkvLayout {
            num_heads: heads,
            num_kv_heads: heads,
            head_dim,
            value_dim: head_dim,
            gated: false,
            has_kv: true,
        };
        let scoring = Scoring::scaled(self.spec.scale);
        let Buffers { residual, normed, qkv: products, mixed, angles, kv, .. } = buffers;
        norm_multiply::<B>(step, (&*residual, mixer_norm), qkv, rows, (&mut *normed, &mut *products))?;
        let norms = head_norms.as_ref().map(|[q, k]| {
            let eps = self.spec.norm.eps;
            QkNorms { q, k: Some(k), v: true, eps, after_rope: false }
        });
        let rotation = Rotation { norms, rope: &self.rope, angles, temperature: None };
        step.rope_and_store_kv(RopeAndStore { qkv: &mut *products, layout, rotation, group: 0, kv: &mut *kv })?;
        let sinks = None;
        step.attention(Attention {
            qkv: products,
            layout,
            scoring,
            sinks,
            biases: None,
            group: 0,
            kv,
            out: &mut *mixed,
        })?;
        add_product::<B>(step, mixed, (output, mixer_post_norm.as_ref()), rows, (normed, residual))?;
        self.feed_forward(step, &self.weights.layers[index], rows, buffers)?;
        match self.spec.deepstack.iter().position(|&layer| layer == index) {
            None => Ok(()),
            Some(which) => {
                let Buffers { residual, joined, out, .. } = buffers;
                self.merge(step, residual, &self.weights.deepstack[which], rows, joined, &mut out[1 + which])
            }
        }
    }

    fn feed_forward(
        &self,
        step: &mut B::Step<'_>,
        LayerWeights { ffn_norm, gate_up, down, ffn_post_norm, .. }: &Layer<B>,
        rows: usize,
        Buffers { residual, normed, products, gated, .. }: &mut Buffers<B>,
    ) -> Result<()> {
        let (activation, cols) = (self.spec.feed_forward.activation(), self.spec.ffn_size);
        norm_multiply::<B>(step, (&*residual, ffn_norm), gate_up, rows, (&mut *normed, &mut *products))?;
        match self.spec.feed_forward.is_gated() {
            true => {
                step.gated_activation(GatedActivation { gate_up: products, activation, rows, cols, out: &mut *gated })?
            }
            false => step.activation(Activate { x: products, activation, rows, cols, out: &mut *gated })?,
        }
        add_product::<B>(step, gated, (down, ffn_post_norm.as_ref()), rows, (normed, residual))
    }
}

/// `out = product · norm(x)`.
fn norm_multiply<B: Backend>(
    step: &mut B::Step<'_>,
    (x, norm): (&B::Buffer, &Norm<B::Vector>),
    product: &Product<B::Matrix>,
    rows: usize,
    (normed, out): (&mut B::Buffer, &mut B::Buffer),
) -> Result<()> {
    if product.inputs.is_empty() {
        let norm = Some(norm.of());
        return product.matrices.iter().try_for_each(|matrix| {
            step.norm_linear(NormLinear { x, norm, matrix, rows, normed: &mut *normed, out: &mut *out })
        });
    }
    for (index, (matrix, &input)) in product.matrices.iter().zip(&product.inputs).enumerate() {
        step.norm_rows(NormRows { x, norm: norm.of(), rows, out: &mut *normed })?;
        clamp::<B>(step, normed, rows, matrix.cols(), 0..matrix.cols(), input)?;
        step.linear(Linear { x: normed, matrix, rows, out: &mut *out, add: index > 0 })?;
    }
    clamp_outputs::<B>(step, product, out, rows)
}

/// `residual += norm(product · x)`.
fn add_product<B: Backend>(
    step: &mut B::Step<'_>,
    x: &mut B::Buffer,
    (product, norm): (&Product<B::Matrix>, Option<&Norm<B::Vector>>),
    rows: usize,
    (products, residual): (&mut B::Buffer, &mut B::Buffer),
) -> Result<()> {
    let [matrix] = &product.matrices[..] else {
        return Err(Error::internal("several matrices for one part of a layer"));
    };
    if let [input] = product.inputs[..] {
        clamp::<B>(step, x, rows, matrix.cols(), 0..matrix.cols(), input)?;
    }
    let Some(norm) = norm else {
        return step.linear(Linear { x, matrix, rows, out: residual, add: true });
    };
    step.linear(Linear { x, matrix, rows, out: &mut *products, add: false })?;
    clamp_outputs::<B>(step, product, products, rows)?;
    step.add_norm(AddNorm { x: products, norm: norm.of(), rows, out: residual, factor: 1.0 })
}

/// Keeps columns of `x` within a range.
fn clamp<B: Backend>(
    step: &mut B::Step<'_>,
    x: &mut B::Buffer,
    rows: usize,
    cols: usize,
    columns: Range<usize>,
    range: [f32; 2],
) -> Result<()> {
    step.scale_rows(ScaleRows { x, rows, cols, columns, scale: 1.0, cap: Some(Cap::Hard(range)) })
}

fn clamp_outputs<B: Backend>(
    step: &mut B::Step<'_>,
    product: &Product<B::Matrix>,
    out: &mut B::Buffer,
    rows: usize,
) -> Result<()> {
    let cols = product.outputs.last().map_or(0, |(columns, _)| columns.end);
    let mut outputs = product.outputs.iter();
    outputs.try_for_each(|(columns, range)| clamp::<B>(step, out, rows, cols, columns.clone(), *range))
}
