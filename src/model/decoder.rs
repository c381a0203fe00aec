//! The forward pass: the layers of a model, one after the other, over any backend.

use std::sync::Arc;

use super::buffers::{self, Buffers, DecoderLimits, Stream, Work};
use super::layers::{DenseWeights, FfnWeights, LayerWeights, MixerWeights, NormWeights, Weights};
use super::rank::RankHead;
use super::spec::{DenseSpec, Gate, ModelSpec};
use crate::backend::{
    Activate, Backend, ExpertShape, Fusions, GateRows, GatherRows, KvLayerSpec, Linear, Loader, MatrixShape,
    MixExperts, NormExperts, NormGatedLinear, NormLinear, NormRows, Ops, RopeAngles, StateLayerSpec, StepOps,
    WorkShape,
};
use crate::batch::Batch;
use crate::selection::{Needs, Selection, Wish};
use crate::{Error, Result};

mod attention;
mod branches;
mod draft;
mod embedding;
mod guesses;
mod inputs;
mod latent;
mod logits;
mod states;

use attention::Attend;
use branches::Branches;
use draft::Drafter;
use logits::{logits_of, no_logits};

/// A model on a device, with its KV pool and the activations of one step.
pub struct Decoder<B: Backend> {
    models: Models<B>,
    limits: DecoderLimits,
    rank_head: Option<Arc<RankHead>>,
    /// The step that was launched last, and the one of whose rows parts were selected last.
    launched: Launched,
    selected: Launched,
    /// Hidden states of these rows, as they came to the host.
    hidden: Vec<f32>,
}

/// Rows of a step, and what it computed of them.
#[derive(Debug, Clone, Copy, Default)]
struct Launched {
    num_rows: usize,
    needs: Needs,
}

/// The weights, pools and buffers that the ops of a step use.
struct Models<B: Backend> {
    main: Model<B>,
    /// The model that guesses tokens for it.
    draft: Option<Model<B>>,
    /// Activations, which each of the two leaves to the other.
    buffers: Buffers<B>,
}

struct Model<B: Backend> {
    spec: ModelSpec,
    weights: Weights<B>,
    /// KV layers, which layers of attention name by their index.
    kv_layers: Vec<B::KvLayer>,
    /// States of the layers that carry one, in their order.
    state_layers: Vec<B::StateLayer>,
    /// Index of its first RoPE's angles among those of the buffers.
    first_angles: usize,
}

impl<B: Backend> Decoder<B> {
    /// Takes the memory for activations, the KV pool and the states: the layers of `ModelSpec::kv_layers` and
    /// of `ModelSpec::state_layers`.
    pub fn new<L: Loader<Backend = B>>(
        spec: ModelSpec,
        mut weights: Weights<B>,
        loader: &mut L,
        limits: DecoderLimits,
        (kv_layers, state_layers): (&[KvLayerSpec], &[StateLayerSpec]),
        rank_head: Option<RankHead>,
    ) -> Result<Self> {
        let mut kv_layers = loader.alloc_kv_layers(kv_layers)?;
        let state_layers = match state_layers {
            [] => Vec::new(),
            specs => loader.alloc_state_layers(specs)?,
        };
        let buffers = Buffers::new(&spec, limits, loader)?;
        let draft = match (&spec.draft_model, weights.draft_model.take()) {
            (Some(draft), Some(weights)) => Some(Model {
                spec: (**draft).clone(),
                weights: *weights,
                kv_layers: kv_layers.split_off(kv_layers.len().saturating_sub(spec.num_draft_kv_layers())),
                state_layers: Vec::new(),
                first_angles: spec.ropes.len(),
            }),
            (None, None) => None,
            _ => return Err(Error::internal("a draft model without its weights, or weights without the model")),
        };
        Ok(Self {
            models: Models { main: Model { spec, weights, kv_layers, state_layers, first_angles: 0 }, draft, buffers },
            limits,
            rank_head: rank_head.map(Arc::new),
            launched: Launched::default(),
            selected: Launched::default(),
            hidden: Vec::new(),
        })
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.models.main.spec
    }

    /// The head of a model that ranks.
    pub fn rank_head(&self) -> Option<&Arc<RankHead>> {
        self.rank_head.as_ref()
    }

    /// Bytes of activations that `new` takes, for budgeting.
    pub fn scratch_bytes<L: Loader<Backend = B>>(spec: &ModelSpec, limits: DecoderLimits) -> Result<u64> {
        buffers::bytes::<L>(spec, limits)
    }

    /// Starts a step, which computes what it needs of the rows of the batch's `logits_indices`.
    ///
    /// # Errors
    /// Errors of the backend; `Interrupted` where its interrupt is due before the step is done: the cache's slots of
    /// the step's tokens then hold anything, all others what they held.
    pub fn launch(&mut self, backend: &mut B, batch: &Batch, needs: Needs) -> Result<()> {
        self.launched = Launched::default();
        let (tokens, rows) = (batch.num_tokens(), batch.logits_indices.len());
        if tokens == 0 || tokens > self.limits.max_num_batched_tokens || rows > self.limits.max_logits_rows {
            return Err(Error::internal(format!(
                "a step of {tokens} tokens and {rows} logits rows; the limits are {:?}",
                self.limits
            )));
        }
        let models = &mut self.models;
        backend.step(batch, &mut |step: &mut B::Step<'_>| models.forward(step, needs.logits))?;
        self.launched = Launched { num_rows: rows, needs };
        Ok(())
    }

    /// Says what `collect` is to bring of each row of the step that was launched last.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn select(&mut self, backend: &mut B, wishes: &[Wish<'_>]) -> Result<()> {
        let Launched { num_rows: rows, needs } = self.launched;
        self.selected = self.launched;
        if rows != wishes.len() {
            return Err(Error::internal(format!("{rows} rows of logits, and {} of them are wanted", wishes.len())));
        }
        let Models { main, buffers, .. } = &self.models;
        match &buffers.logits {
            Some(logits) if rows > 0 && needs.logits => backend.select(logits, main.spec.vocab_size, wishes),
            _ => Ok(()),
        }
    }

    /// Lets the device see the steps that it asks for before the first one is launched.
    ///
    /// # Errors
    /// Errors of a step that would also fail later.
    pub fn rehearse(&mut self, backend: &mut B) -> Result<()> {
        let models = &mut self.models;
        // Steps of single tokens are what a device asks for, and whole prompts are seldom so short.
        if models.main.spec.is_bidirectional() {
            return Ok(());
        }
        let ops: &mut StepOps<'_, B> = &mut |step: &mut B::Step<'_>| models.forward(step, true);
        backend.rehearse(ops)
    }

    /// Waits for the step of whose rows parts were selected last.
    pub fn collect<'a>(&'a mut self, backend: &'a mut B) -> Result<Selection<'a>> {
        let Models { main: Model { spec, weights, .. }, buffers: Buffers { last, work, logits, .. }, .. } =
            &mut self.models;
        let Launched { num_rows: rows, needs } = self.selected;
        self.hidden.clear();
        if rows > 0 && needs.hidden {
            let (x, out) = (&last.residual, &mut work.normed);
            let hidden = match &weights.output_norm {
                Some(norm) => backend.normed_rows(NormRows { x, norm: norm.norm(), rows, out })?,
                None => backend.to_host(x, rows, spec.hidden_size)?,
            };
            self.hidden.extend_from_slice(hidden);
        }
        let selection = match logits {
            Some(logits) if rows > 0 && needs.logits => backend.collect(logits, rows, spec.vocab_size)?,
            _ => Selection::without_logits(rows, spec.vocab_size),
        };
        Ok(selection.with_hidden(&self.hidden, spec.hidden_size))
    }
}

impl<B: Backend> Models<B> {
    /// Computes the step's logits from its tokens, and the keys and values that a draft model will guess with which may
    /// lack none. That goes first, since what the model leaves in the buffers is read once the step is done.
    fn forward(&mut self, step: &mut B::Step<'_>, wants_logits: bool) -> Result<()> {
        let Self { main, draft, buffers } = self;
        if let Some(draft) = draft.as_mut().filter(|_| !main.spec.draft_lags()) {
            draft.forward(step, buffers, 0, false)?;
        }
        let rows = step.num_logits();
        main.forward(step, buffers, rows, wants_logits)
    }
}

impl<B: Backend> Model<B> {
    /// Computes the logits of `rows` rows of the step, all that it names or none, from its tokens; without logits it
    /// ends with the residuals that they are made of, and without rows with the last keys and values. A model without
    /// an output projection has no logits to compute.
    fn forward(
        &mut self,
        step: &mut B::Step<'_>,
        buffers: &mut Buffers<B>,
        rows: usize,
        wants_logits: bool,
    ) -> Result<()> {
        let Self { spec, weights, kv_layers, state_layers, first_angles } = self;
        let Buffers { angles, all, last, work, logits, drafts } = buffers;
        let tokens = step.num_tokens();
        let ropes = Ropes::of_step(step, &weights.ropes, &mut angles[*first_angles..])?;
        embedding::embed(step, spec, weights, &mut all.residual)?;
        if let Some(makers) = &weights.inputs {
            inputs::make(step, makers, all, work)?;
        }
        // A layer that attends to the keys and values of another stores nothing.
        let last_stored = spec.layers.iter().rposition(|layer| layer.mixer.stores());
        let last_mixer = weights.layers.iter().rposition(|layer| layer.mixer.output().is_some());
        let last_mixer = last_mixer.ok_or_else(|| Error::internal("a model without a mixer"))?;
        let mut state_layers = state_layers.iter_mut();
        // Guesses are made of the hidden states of all tokens.
        let drafter =
            weights.drafter.as_ref().map(|drafter| Drafter::new(drafter, weights, spec, &ropes)).transpose()?;
        let needs_all = drafter.is_some();
        for (i, layer) in weights.layers.iter().enumerate() {
            step.check_interrupt()?;
            let norm = layer.mixer_norms.before.as_ref();
            let ends_here = rows == 0 && last_stored == Some(i) && !needs_all;
            match &layer.mixer {
                MixerWeights::Attention(attention) => {
                    let kv = kv_layers.get_mut(attention.spec.kv_layer);
                    let kv = kv.ok_or_else(|| Error::internal(format!("layer {i} without a KV layer")))?;
                    let attend = Attend { attention, norm, ropes: &ropes };
                    if ends_here {
                        return attend.store(step, kv, all, work);
                    }
                    attend.mix(step, kv, all, work)?;
                }
                MixerWeights::Latent(weights) => {
                    let kv = kv_layers.get_mut(weights.spec.kv_layer);
                    let kv = kv.ok_or_else(|| Error::internal(format!("layer {i} without a KV layer")))?;
                    let attend = latent::Attend { weights, norm, ropes: &ropes };
                    attend.store(step, kv, all, work)?;
                    if ends_here {
                        return Ok(());
                    }
                    attend.find(step, kv, all, work)?;
                }
                MixerWeights::None => {}
                mixer => {
                    let state = state_layers.next();
                    let state = state.ok_or_else(|| Error::internal(format!("layer {i} without its states")))?;
                    states::mix(step, mixer, norm, state, all, work)?;
                    if ends_here {
                        return Ok(());
                    }
                }
            }
            if i < last_mixer || needs_all {
                finish_layer(step, layer, tokens, all, work)?;
                continue;
            }
            // After the last mixer nothing matters but the rows whose logits are wanted.
            if let Some(matrix) = layer.mixer.output() {
                step.gather_rows(GatherRows { x: &all.mixed, cols: matrix.cols(), out: &mut last.mixed })?;
                step.gather_rows(GatherRows { x: &all.residual, cols: spec.hidden_size, out: &mut last.residual })?;
                if let (Some(_), Some(x), Some(out)) = (spec.layer_inputs, &all.inputs, &mut last.inputs) {
                    step.gather_rows(GatherRows { x, cols: spec.input_cols(), out })?;
                }
            }
            finish_layer(step, layer, rows, last, work)?;
        }
        if let Some(drafter) = drafter {
            if rows > 0 {
                step.gather_rows(GatherRows { x: &all.residual, cols: spec.hidden_size, out: &mut last.residual })?;
            }
            let kv = drafter.kv_layer(kv_layers)?;
            let state = state_layers.next().ok_or_else(|| Error::internal("a drafter without its states"))?;
            drafter.store(step, kv, state, all, work, drafts.as_mut())?;
        }
        if !wants_logits || rows == 0 {
            return Ok(());
        }
        let logits = logits.as_mut().ok_or_else(no_logits)?;
        let (x, norm) = (&last.residual, weights.output_norm.as_ref());
        logits_of(step, Input { x, norm, rows }, weights, spec, &mut work.normed, logits)
    }
}

/// RoPEs of a model, with their angles for the step's tokens.
struct Ropes<'a, B: Backend> {
    ropes: &'a [B::Rope],
    angles: &'a [B::Buffer],
}

impl<'a, B: Backend> Ropes<'a, B> {
    fn of_step(step: &mut B::Step<'_>, ropes: &'a [B::Rope], angles: &'a mut [B::Buffer]) -> Result<Self> {
        for (rope, out) in ropes.iter().zip(angles.iter_mut()) {
            step.rope_angles(RopeAngles { rope, out })?;
        }
        Ok(Self { ropes, angles })
    }
}

/// Rows of hidden states, with the norm that they go through before they are used.
struct Input<'a, B: Backend> {
    x: &'a B::Buffer,
    norm: Option<&'a NormWeights<B>>,
    rows: usize,
}

/// `out = matrix · norm(x)`.
fn linear_of<B: Backend>(
    step: &mut B::Step<'_>,
    Input { x, norm, rows }: Input<'_, B>,
    matrix: &B::Matrix,
    normed: &mut B::Buffer,
    out: &mut B::Buffer,
) -> Result<()> {
    step.norm_linear(NormLinear { x, norm: norm.map(NormWeights::norm), matrix, rows, normed, out })
}

/// Finishes a layer after its mixer: `residual += norm(W · mixed); residual += norm(ffn(norm(residual)))`, each with
/// the norm of the sum where there is one; or, where both are of the same residual, the second before the first.
fn finish_layer<B: Backend>(
    step: &mut B::Step<'_>,
    layer: &LayerWeights<B>,
    rows: usize,
    stream: &mut Stream<B>,
    work: &mut Work<B>,
) -> Result<()> {
    let Stream { residual, mixed, inputs } = stream;
    let after = layer.mixer_norms.after.as_ref();
    let mixed = layer.mixer.output().map(|matrix| Output { x: mixed, matrix, norm: after, rows });
    let add_mixed = |step: &mut B::Step<'_>, residual: &mut B::Buffer, product: &mut B::Buffer| {
        mixed.map_or(Ok(()), |mixed| mixed.add_to(step, residual, product))
    };
    // A feed-forward beside attention takes the residual as it was before it.
    if layer.parallel {
        let norms = [&layer.mixer_norms.before, &layer.ffn_norms.after];
        feed_forward(step, &layer.ffn, norms, rows, residual, work)?;
        return add_mixed(step, residual, &mut work.normed);
    }
    let norm_sum = |step: &mut B::Step<'_>, norm: &Option<NormWeights<B>>, residual: &mut B::Buffer| {
        norm.as_ref().map_or(Ok(()), |norm| norm.apply(step, residual, rows))
    };
    add_mixed(step, residual, &mut work.normed)?;
    norm_sum(step, &layer.mixer_norms.of_sum, residual)?;
    let norms = [&layer.ffn_norms.before, &layer.ffn_norms.after];
    feed_forward(step, &layer.ffn, norms, rows, residual, work)?;
    norm_sum(step, &layer.ffn_norms.of_sum, residual)?;
    match (&layer.input, inputs) {
        (Some(weights), Some(inputs)) => inputs::add(step, weights, inputs, rows, residual, work),
        _ => Ok(()),
    }
}

/// `residual += after(ffn(before(residual)))`, each of the two norms where there is one.
fn feed_forward<B: Backend>(
    step: &mut B::Step<'_>,
    FfnWeights { experts, dense, branches }: &FfnWeights<B>,
    [before, after]: [&Option<NormWeights<B>>; 2],
    rows: usize,
    residual: &mut B::Buffer,
    work: &mut Work<B>,
) -> Result<()> {
    let (before, after) = (before.as_ref(), after.as_ref());
    // Before the experts add to the residual.
    if let Some(dense) = dense {
        gate(step, dense, Input { x: residual, norm: before, rows }, work)?;
        gate_rows(step, dense, Input { x: residual, norm: before, rows }, work)?;
    }
    if let (Some(norms), Some(dense), Some(experts)) = (branches, dense, experts) {
        let branches = Branches { norms, dense, experts, after };
        return branches.add_to(step, rows, residual, work);
    }
    let Work { normed, dense: gated, experts: kinds, mixture, .. } = work;
    let down = match (dense, gated) {
        (Some(dense), Some([_, gated])) => Some((&dense.down, &*gated)),
        _ => None,
    };
    let Some(experts) = experts else {
        return down
            .map_or(Ok(()), |(matrix, x)| Output { x, matrix, norm: after, rows }.add_to(step, residual, normed));
    };
    let work = kinds.iter_mut().find(|work| work.room().0 == experts.spec());
    let work = work.ok_or_else(|| Error::internal("experts without their buffers"))?;
    let add_down = |step: &mut B::Step<'_>, out: &mut B::Buffer| {
        down.map_or(Ok(()), |(matrix, x)| step.linear(Linear { x, matrix, rows, out, add: true }))
    };
    match (before, after, mixture) {
        (Some(norm), None, _) => {
            step.norm_experts(NormExperts { norm: norm.norm(), experts, rows, normed, work, residual })?;
            add_down(step, residual)
        }
        // The norm is of experts and shared expert together: their sum is made beside the residual.
        (_, Some(after), Some(sum)) => {
            let x = match before {
                Some(norm) => {
                    step.norm_rows(NormRows { x: residual, norm: norm.norm(), rows, out: normed })?;
                    &*normed
                }
                None => &*residual,
            };
            step.experts(MixExperts { x, routed: None, experts, rows, work, out: sum, add: false })?;
            add_down(step, sum)?;
            after.add_to(step, sum, rows, residual)
        }
        _ => Err(Error::internal("experts without a norm before or behind them, or without their buffers")),
    }
}

/// The wide half of a feed-forward: `gated = act(gate · norm(x)) * (up · norm(x))`, or without a gate
/// `act(up · norm(x))`.
fn gate<B: Backend>(
    step: &mut B::Step<'_>,
    dense: &DenseWeights<B>,
    input: Input<'_, B>,
    work: &mut Work<B>,
) -> Result<()> {
    let DenseWeights { spec: DenseSpec { size: cols, activation, gate, .. }, gate_up, .. } = dense;
    let (cols, activation) = (*cols, *activation);
    let Work { normed, dense: Some([products, out]), .. } = work else {
        return Err(Error::internal("a feed-forward without its buffers"));
    };
    let rows = input.rows;
    match gate {
        Gate::Own | Gate::InUp => {
            let (x, norm) = (input.x, input.norm.map(NormWeights::norm));
            step.norm_gated_linear(NormGatedLinear { x, norm, gate_up, activation, rows, normed, products, out })
        }
        Gate::None => {
            linear_of(step, input, gate_up, normed, products)?;
            step.activation(Activate { x: products, activation, rows, cols, out })
        }
    }
}

/// `gated *= sigmoid(row_gate · norm(x))`, row by row, for a feed-forward with such a gate: a factor on a row is the
/// same ahead of the last matrix.
fn gate_rows<B: Backend>(
    step: &mut B::Step<'_>,
    dense: &DenseWeights<B>,
    Input { x, norm, rows }: Input<'_, B>,
    work: &mut Work<B>,
) -> Result<()> {
    let (Some(weight), Some([_, out])) = (&dense.row_gate, &mut work.dense) else { return Ok(()) };
    let norm = norm.map(NormWeights::norm);
    step.gate_rows(GateRows { x, norm, weight, rows, cols: dense.spec.size, out })
}

/// The result of a mixer or a feed-forward, with its last matrix still to be applied, and the norm behind that.
struct Output<'a, B: Backend> {
    x: &'a B::Buffer,
    matrix: &'a B::Matrix,
    norm: Option<&'a NormWeights<B>>,
    rows: usize,
}

impl<B: Backend> Output<'_, B> {
    /// `residual += norm(matrix · x)`.
    fn add_to(self, step: &mut B::Step<'_>, residual: &mut B::Buffer, product: &mut B::Buffer) -> Result<()> {
        let Self { x, matrix, norm, rows } = self;
        let Some(norm) = norm else {
            return step.linear(Linear { x, matrix, rows, out: residual, add: true });
        };
        step.linear(Linear { x, matrix, rows, out: product, add: false })?;
        norm.add_to(step, product, rows, residual)
    }
}
