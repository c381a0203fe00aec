//! The forward pass: one skeleton for every architecture, over any backend.

use super::experts::FeedForward;
use super::spec::DecoderSpec;
use super::weights::{FeedForwardWeights, LayerWeights, Weights};
use crate::backend::{Backend, KvLayerSpec, Loader, Plan, Rotation};
use crate::batch::Batch;
use crate::interrupt::Interrupt;
use crate::selection::{Selection, Wish};
use crate::{Error, Result};

/// All layers of the supported architectures attend alike, so there is one KV group.
const KV_GROUP: usize = 0;

/// The largest step that the activations are allocated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecoderLimits {
    pub max_num_batched_tokens: usize,
    /// Rows of logits per step.
    pub max_logits_rows: usize,
}

/// A model on a device, with its KV pool and the activations of one step.
pub struct Decoder<B: Backend> {
    spec: DecoderSpec,
    limits: DecoderLimits,
    weights: Weights<B>,
    kv_layers: Vec<B::KvLayer>,
    buffers: Buffers<B>,
    /// Rows of logits of the step that was launched last.
    num_rows: usize,
}

/// Activations of one step.
struct Buffers<B: Backend> {
    /// cos and sin per token.
    angles: B::Buffer,
    qkv: B::Buffer,
    /// All tokens of the step.
    all: Stream<B>,
    /// The rows whose logits are wanted: all that matters after the last attention.
    last: Stream<B>,
    work: Work<B>,
    logits: B::Buffer,
}

/// What flows from layer to layer.
struct Stream<B: Backend> {
    residual: B::Buffer,
    /// Attention's result, before its output projection.
    attn: B::Buffer,
}

/// Intermediate results that no layer leaves behind for the next.
struct Work<B: Backend> {
    normed: B::Buffer,
    feed_forward: FeedForwardWork<B>,
}

enum FeedForwardWork<B: Backend> {
    Dense { gate_up: B::Buffer, gated: B::Buffer },
    Experts(B::ExpertWork),
}

impl<B: Backend> Decoder<B> {
    /// Takes the memory for activations and the KV pool.
    pub fn new<L: Loader<Backend = B>>(
        spec: DecoderSpec,
        weights: Weights<B>,
        loader: &mut L,
        limits: DecoderLimits,
        kv: KvLayerSpec,
    ) -> Result<Self> {
        let kv_layers = loader.alloc_kv_layers(&vec![kv; spec.num_layers])?;
        let feed_forward = match &spec.feed_forward {
            FeedForward::Dense(ffn) => {
                let [gate_up, gated] = dense_shapes(*ffn, limits).map(|[rows, cols]| loader.alloc_buffer(rows, cols));
                FeedForwardWork::Dense { gate_up: gate_up?, gated: gated? }
            }
            FeedForward::Experts(experts) => {
                FeedForwardWork::Experts(loader.alloc_expert_work(experts, limits.max_num_batched_tokens)?)
            }
        };
        let [angles, qkv, residual, attn, last_residual, last_attn, normed, logits] =
            buffer_shapes(&spec, limits).map(|[rows, cols]| loader.alloc_buffer(rows, cols));
        let buffers = Buffers {
            angles: angles?,
            qkv: qkv?,
            all: Stream { residual: residual?, attn: attn? },
            last: Stream { residual: last_residual?, attn: last_attn? },
            work: Work { normed: normed?, feed_forward },
            logits: logits?,
        };
        Ok(Self { spec, limits, weights, kv_layers, buffers, num_rows: 0 })
    }

    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Bytes of activations that `new` takes, for budgeting.
    pub fn scratch_bytes<L: Loader<Backend = B>>(spec: &DecoderSpec, limits: DecoderLimits) -> u64 {
        let bytes = |[rows, cols]: [usize; 2]| L::buffer_bytes(rows, cols);
        let feed_forward = match &spec.feed_forward {
            FeedForward::Dense(ffn) => dense_shapes(*ffn, limits).map(bytes).into_iter().fold(0, u64::saturating_add),
            FeedForward::Experts(experts) => L::expert_work_bytes(experts, limits.max_num_batched_tokens),
        };
        buffer_shapes(spec, limits).map(bytes).into_iter().fold(feed_forward, u64::saturating_add)
    }

    /// Starts a step, of which `collect` brings what the `wishes` name of each row of logits: one per entry of the
    /// batch's `logits_indices`.
    ///
    /// # Errors
    /// Those of the backend; `Interrupted` where its interrupt is due before the step is done: the cache's slots of the
    /// step's tokens then hold anything, all others what they held.
    pub fn launch(&mut self, backend: &mut B, batch: &Batch, wishes: &[Wish<'_>]) -> Result<()> {
        self.num_rows = 0;
        let (tokens, rows) = (batch.num_tokens(), batch.logits_indices.len());
        if rows != wishes.len() {
            return Err(Error::internal(format!("{rows} rows of logits, and {} of them are wanted", wishes.len())));
        }
        if tokens == 0 || tokens > self.limits.max_num_batched_tokens || rows > self.limits.max_logits_rows {
            return Err(Error::internal(format!(
                "a step of {tokens} tokens and {rows} logits rows; the limits are {:?}",
                self.limits
            )));
        }
        self.compute(backend, batch)?;
        if rows > 0 {
            backend.begin_select(&self.buffers.logits, self.spec.vocab_size, wishes)?;
        }
        self.num_rows = rows;
        Ok(())
    }

    /// Lets the device see the steps that it asks for before the first one is launched.
    ///
    /// # Errors
    /// Those of a step that would also fail later.
    pub fn rehearse(&mut self, backend: &mut B) -> Result<()> {
        while let Some(batch) = backend.next_rehearsal()? {
            let outcome = self.compute(backend, &batch);
            backend.rehearsed(outcome)?;
        }
        Ok(())
    }

    /// A step up to its logits.
    fn compute(&mut self, backend: &mut B, batch: &Batch) -> Result<()> {
        let (tokens, rows) = (batch.num_tokens(), batch.logits_indices.len());
        backend.begin_step(batch)?;
        if let Plan::Run { rows: padded } = backend.begin_ops(batch)? {
            // A step is padded only where every token has its row of logits.
            self.run_ops(backend, batch, padded, if padded == tokens { rows } else { padded })?;
            check_interrupt(backend)?;
        }
        backend.end_ops()
    }

    /// Waits for the step that was launched last.
    pub fn collect<'a>(&'a mut self, backend: &'a mut B) -> Result<Selection<'a>> {
        let (rows, cols) = (self.num_rows, self.spec.vocab_size);
        if rows == 0 { Ok(Selection::of_rows(&[], cols)) } else { backend.select(&self.buffers.logits, rows, cols) }
    }

    /// The ops of a step of `tokens` rows, of which `rows` go on to become logits.
    fn run_ops(&mut self, backend: &mut B, batch: &Batch, tokens: usize, rows: usize) -> Result<()> {
        let Self { spec, weights, kv_layers, buffers, .. } = self;
        let Buffers { angles, qkv, all, last, work, logits } = buffers;
        let eps = spec.norm_eps;
        backend.rope_angles(&spec.rope, batch, angles)?;
        backend.embed(&weights.token_embd, batch, 1.0, &mut all.residual)?;
        let num_layers = weights.layers.len();
        for (i, (layer, kv)) in weights.layers.iter().zip(kv_layers.iter_mut()).enumerate() {
            // Ops that are left out take next to no time, so a look per layer is often enough.
            check_interrupt(backend)?;
            backend.copy_blocks(batch, KV_GROUP, kv)?;
            backend.norm_linear(&all.residual, &layer.attn_norm, eps, &layer.qkv, tokens, &mut work.normed, qkv)?;
            let norms = layer.qk_norm.as_ref().map_or([None; 2], |norms| norms.each_ref().map(Some));
            let rotation = Rotation { norms, eps, rope: &spec.rope, angles };
            let is_last = i + 1 == num_layers;
            if is_last && rows == 0 {
                return backend.rope_and_store_kv(qkv, spec.qkv, rotation, batch, KV_GROUP, kv);
            }
            let out = &mut all.attn;
            backend.rope_attention(qkv, spec.qkv, rotation, spec.attention, batch, KV_GROUP, kv, out)?;
            if is_last {
                backend.gather_rows(&all.attn, batch, spec.qkv.q_cols(), &mut last.attn)?;
                backend.gather_rows(&all.residual, batch, spec.hidden_size, &mut last.residual)?;
                feed_forward(backend, spec, layer, rows, last, work)?;
            } else {
                feed_forward(backend, spec, layer, tokens, all, work)?;
            }
        }
        let output = weights.output.as_ref().unwrap_or(&weights.token_embd);
        backend.norm_linear(&last.residual, &weights.output_norm, eps, output, rows, &mut work.normed, logits)
    }
}

/// Rows and columns of the buffers of a step, in the order of `Buffers`: angles, qkv, residual and attn of all tokens
/// and of the last rows, normed, logits.
fn buffer_shapes(spec: &DecoderSpec, limits: DecoderLimits) -> [[usize; 2]; 8] {
    let (tokens, rows) = (limits.max_num_batched_tokens, limits.max_logits_rows);
    let (hidden, q) = (spec.hidden_size, spec.qkv.q_cols());
    [
        [tokens, 2 * spec.rope.inv_freq.len()],
        [tokens, spec.qkv.cols()],
        [tokens, hidden],
        [tokens, q],
        [rows, hidden],
        [rows, q],
        [tokens, hidden],
        [rows, spec.vocab_size],
    ]
}

/// Those of gate and up, and of their product.
fn dense_shapes(ffn: usize, limits: DecoderLimits) -> [[usize; 2]; 2] {
    [2 * ffn, ffn].map(|cols| [limits.max_num_batched_tokens, cols])
}

fn check_interrupt<B: Backend>(backend: &B) -> Result<()> {
    backend.interrupt().map_or(Ok(()), Interrupt::check)
}

/// From attention's result to the layer's: `residual += attn_output(attn); residual += ffn(norm(residual))`.
fn feed_forward<B: Backend>(
    backend: &mut B,
    spec: &DecoderSpec,
    layer: &LayerWeights<B>,
    rows: usize,
    stream: &mut Stream<B>,
    work: &mut Work<B>,
) -> Result<()> {
    let Work { normed, feed_forward } = work;
    let Stream { residual, attn } = stream;
    let (eps, activation, norm) = (spec.norm_eps, spec.arch.activation, &layer.ffn_norm);
    backend.linear_add(&layer.attn_output, attn, rows, residual)?;
    match (&layer.feed_forward, feed_forward, &spec.feed_forward) {
        (
            FeedForwardWeights::Dense { gate_up, down },
            FeedForwardWork::Dense { gate_up: products, gated },
            &FeedForward::Dense(cols),
        ) => {
            backend.norm_gated_linear(residual, norm, eps, gate_up, activation, rows, cols, normed, products, gated)?;
            backend.linear_add(down, gated, rows, residual)
        }
        (FeedForwardWeights::Experts(experts), FeedForwardWork::Experts(work), FeedForward::Experts(_)) => {
            backend.experts(experts, norm, eps, rows, normed, work, residual)
        }
        _ => Err(Error::internal("a layer whose feed-forward is not of the model's kind")),
    }
}
