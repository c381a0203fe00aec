//! The forward pass: the layers of a model, one after the other, over any backend.

use super::buffers::{self, Buffers, DecoderLimits, Stream, Work};
use super::layers::{AttentionWeights, FfnWeights, LayerWeights, MixerWeights, Weights};
use super::spec::{AttentionSpec, ModelSpec};
use crate::backend::{
    Backend, CopyBlocks, Embed, Fusions, GatherRows, KvLayerSpec, Linear, Loader, Norm, NormExperts, NormGatedLinear,
    NormLinear, Ops, QkNorms, RopeAndStore, RopeAngles, RopeAttention, Rotation, StepOps,
};
use crate::batch::Batch;
use crate::selection::{Selection, Wish};
use crate::{Error, Result};

/// A model on a device, with its KV pool and the activations of one step.
pub struct Decoder<B: Backend> {
    model: Model<B>,
    limits: DecoderLimits,
    /// Rows of logits of the step that was launched last.
    num_rows: usize,
}

/// What the ops of a step work with.
struct Model<B: Backend> {
    spec: ModelSpec,
    weights: Weights<B>,
    /// Of each layer.
    kv_layers: Vec<B::KvLayer>,
    buffers: Buffers<B>,
}

impl<B: Backend> Decoder<B> {
    /// Takes the memory for activations and the KV pool.
    pub fn new<L: Loader<Backend = B>>(
        spec: ModelSpec,
        weights: Weights<B>,
        loader: &mut L,
        limits: DecoderLimits,
        kv_layers: &[KvLayerSpec],
    ) -> Result<Self> {
        let kv_layers = loader.alloc_kv_layers(kv_layers)?;
        let buffers = Buffers::new(&spec, limits, loader)?;
        Ok(Self { model: Model { spec, weights, kv_layers, buffers }, limits, num_rows: 0 })
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.model.spec
    }

    /// Bytes of activations that `new` takes, for budgeting.
    pub fn scratch_bytes<L: Loader<Backend = B>>(spec: &ModelSpec, limits: DecoderLimits) -> Result<u64> {
        buffers::bytes::<L>(spec, limits)
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
        let model = &mut self.model;
        backend.step(batch, &mut |step: &mut B::Step<'_>| model.forward(step))?;
        if rows > 0 {
            backend.select(&self.model.buffers.logits, self.model.spec.vocab_size, wishes)?;
        }
        self.num_rows = rows;
        Ok(())
    }

    /// Lets the device see the steps that it asks for before the first one is launched.
    ///
    /// # Errors
    /// Those of a step that would also fail later.
    pub fn rehearse(&mut self, backend: &mut B) -> Result<()> {
        let model = &mut self.model;
        let ops: &mut StepOps<'_, B> = &mut |step: &mut B::Step<'_>| model.forward(step);
        backend.rehearse(ops)
    }

    /// Waits for the step that was launched last.
    pub fn collect<'a>(&'a mut self, backend: &'a mut B) -> Result<Selection<'a>> {
        let (rows, cols) = (self.num_rows, self.model.spec.vocab_size);
        match rows {
            0 => Ok(Selection::of_rows(&[], cols)),
            _ => backend.collect(&self.model.buffers.logits, rows, cols),
        }
    }
}

impl<B: Backend> Model<B> {
    /// From the step's tokens to its logits.
    fn forward(&mut self, step: &mut B::Step<'_>) -> Result<()> {
        let Self { spec, weights, kv_layers, buffers } = self;
        let Buffers { angles, all, last, work, logits } = buffers;
        let (tokens, rows, eps) = (step.num_tokens(), step.num_logits(), spec.norm_eps);
        for (rope, out) in weights.ropes.iter().zip(angles.iter_mut()) {
            step.rope_angles(RopeAngles { rope, out })?;
        }
        let shared = Shared { ropes: &weights.ropes, angles, eps };
        step.embed(Embed { table: &weights.token_embd, scale: 1.0, out: &mut all.residual })?;
        let num_layers = weights.layers.len();
        for (i, (layer, kv)) in weights.layers.iter().zip(kv_layers).enumerate() {
            step.check_interrupt()?;
            let MixerWeights::Attention(attention) = &layer.mixer;
            let norm = Norm { weight: &layer.mixer_norm, eps };
            if i + 1 < num_layers {
                mix(step, &shared, attention, norm, kv, all, work)?;
                feed(step, attention, layer, tokens, eps, all, work)?;
            } else if rows > 0 {
                // After the last attention nothing matters but the rows whose logits are wanted.
                mix(step, &shared, attention, norm, kv, all, work)?;
                step.gather_rows(GatherRows {
                    x: &all.mixed,
                    cols: attention.spec.qkv.q_cols(),
                    out: &mut last.mixed,
                })?;
                step.gather_rows(GatherRows { x: &all.residual, cols: spec.hidden_size, out: &mut last.residual })?;
                feed(step, attention, layer, rows, eps, last, work)?;
            } else {
                return store(step, &shared, attention, norm, kv, all, work);
            }
        }
        let matrix = weights.output.as_ref().unwrap_or(&weights.token_embd);
        let norm = Norm { weight: &weights.output_norm, eps };
        step.norm_linear(NormLinear { x: &last.residual, norm, matrix, rows, normed: &mut work.normed, out: logits })
    }
}

/// What the layers of a step have in common.
struct Shared<'a, B: Backend> {
    ropes: &'a [B::Rope],
    angles: &'a [B::Buffer],
    eps: f32,
}

impl<'a, B: Backend> Shared<'a, B> {
    fn rotation(&self, attention: &'a AttentionWeights<B>) -> Rotation<'a, B> {
        let norms = attention.qk_norm.as_ref().map(|[q, k]| QkNorms { q, k, eps: self.eps });
        Rotation { norms, rope: &self.ropes[attention.spec.rope], angles: &self.angles[attention.spec.rope] }
    }
}

/// `qkv = W · norm(x)` for all tokens of the step.
fn project<B: Backend>(
    step: &mut B::Step<'_>,
    attention: &AttentionWeights<B>,
    norm: Norm<'_, B>,
    kv: &mut B::KvLayer,
    x: &B::Buffer,
    work: &mut Work<B>,
) -> Result<()> {
    let rows = step.num_tokens();
    step.copy_blocks(CopyBlocks { group: attention.spec.kv_group, kv })?;
    let Work { normed, qkv, .. } = work;
    step.norm_linear(NormLinear { x, norm, matrix: &attention.qkv, rows, normed, out: qkv })
}

/// `mixed = attention(norm(residual))`, before its output projection.
fn mix<B: Backend>(
    step: &mut B::Step<'_>,
    shared: &Shared<'_, B>,
    attention: &AttentionWeights<B>,
    norm: Norm<'_, B>,
    kv: &mut B::KvLayer,
    stream: &mut Stream<B>,
    work: &mut Work<B>,
) -> Result<()> {
    project(step, attention, norm, kv, &stream.residual, work)?;
    let AttentionSpec { qkv: layout, kv_group: group, scoring, .. } = attention.spec;
    let (rotation, out) = (shared.rotation(attention), &mut stream.mixed);
    step.rope_attention(RopeAttention { qkv: &mut work.qkv, layout, rotation, scoring, group, kv, out })
}

/// Keys and values alone, for a step of which no logits are wanted.
fn store<B: Backend>(
    step: &mut B::Step<'_>,
    shared: &Shared<'_, B>,
    attention: &AttentionWeights<B>,
    norm: Norm<'_, B>,
    kv: &mut B::KvLayer,
    stream: &mut Stream<B>,
    work: &mut Work<B>,
) -> Result<()> {
    project(step, attention, norm, kv, &stream.residual, work)?;
    let AttentionSpec { qkv: layout, kv_group: group, .. } = attention.spec;
    let rotation = shared.rotation(attention);
    step.rope_and_store_kv(RopeAndStore { qkv: &mut work.qkv, layout, rotation, group, kv })
}

/// `residual += W · mixed; residual += ffn(norm(residual))`.
fn feed<B: Backend>(
    step: &mut B::Step<'_>,
    attention: &AttentionWeights<B>,
    layer: &LayerWeights<B>,
    rows: usize,
    eps: f32,
    stream: &mut Stream<B>,
    work: &mut Work<B>,
) -> Result<()> {
    let Stream { residual, mixed } = stream;
    let Work { normed, dense, experts, .. } = work;
    let norm = Norm { weight: &layer.ffn_norm, eps };
    step.linear(Linear { x: mixed, matrix: &attention.output, rows, out: residual, add: true })?;
    match &layer.ffn {
        FfnWeights::Dense { activation, gate_up, down } => {
            let Some([products, gated]) = dense else {
                return Err(Error::internal("a dense feed-forward without its buffers"));
            };
            let (x, activation) = (&*residual, *activation);
            let args = NormGatedLinear { x, norm, gate_up, activation, rows, normed, products, out: gated };
            step.norm_gated_linear(args)?;
            step.linear(Linear { x: gated, matrix: down, rows, out: residual, add: true })
        }
        FfnWeights::Experts(weights) => {
            let Some(work) = experts else {
                return Err(Error::internal("experts without their buffers"));
            };
            step.norm_experts(NormExperts { norm, experts: weights, rows, normed, work, residual })
        }
    }
}
