//! The forward pass: computes the layers of a model in order, on any backend.

use std::sync::Arc;

use super::buffers::{self, Buffers, DecoderLimits, Stream, Work};
use super::head::Head;
use super::layers::{DenseWeights, FfnWeights, LayerWeights, MixerWeights, NormWeights, Weights};
use super::spec::{DenseSpec, Gate, ModelSpec, RowGate};
use crate::backend::{
    Activate, Backend, ExpertShape, Fusions, GateRows, GatedActivation, GatherRows, KvLayerSpec, Linear, Loader,
    MatrixShape, MixExperts, NormExperts, NormGatedLinear, NormLinear, NormRows, Ops, RopeAngles, Sparsify,
    StateLayerSpec, StepOps, WorkShape,
};
use crate::{Error, Result};

mod attention;
mod branches;
mod contents;
mod draft;
mod drafting;
mod embedding;
mod images;
mod inputs;
mod latent;
mod logits;
mod mamba;
mod rows;
mod states;
mod streams;

use attention::Attend;
use branches::Branches;
use draft::Drafter;
use images::Part;
use logits::{logits_of, no_logits};
use rows::{Ends, Launched, Selected};

/// A model on a device, with its KV pool and the activations of one step.
pub struct Decoder<B: Backend> {
    models: Models<B>,
    limits: DecoderLimits,
    head: Option<Arc<Head>>,
    /// The step that was launched last, and the selected rows.
    launched: Launched,
    selected: Selected,
    /// Hidden states of the selected rows, copied to the host.
    hidden: Vec<f32>,
}

/// The weights, pools and buffers that the ops of a step use.
struct Models<B: Backend> {
    main: Model<B>,
    /// The model that proposes draft tokens for `main`.
    draft: Option<Model<B>>,
    /// Activations, which both models reuse in turn.
    buffers: Buffers<B>,
}

struct Model<B: Backend> {
    spec: ModelSpec,
    weights: Weights<B>,
    /// KV layers. Attention layers refer to them by index.
    kv_layers: Vec<B::KvLayer>,
    /// States of the recurrent layers, in layer order.
    state_layers: Vec<B::StateLayer>,
    /// Index of the angles of the model's first RoPE in `Buffers::angles`.
    first_angles: usize,
}

impl<B: Backend> Decoder<B> {
    /// Allocates the activations, the KV pool and the states, from the results of `ModelSpec::kv_layers` and
    /// `ModelSpec::state_layers`.
    pub fn new<L: Loader<Backend = B>>(
        spec: ModelSpec,
        mut weights: Weights<B>,
        loader: &mut L,
        limits: DecoderLimits,
        (kv_layers, state_layers): (&[KvLayerSpec], &[StateLayerSpec]),
        head: Option<Head>,
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
            head: head.map(Arc::new),
            launched: Launched::default(),
            selected: Selected::default(),
            hidden: Vec::new(),
        })
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.models.main.spec
    }

    /// Returns the head that is applied to pooled hidden states.
    pub fn head(&self) -> Option<&Arc<Head>> {
        self.head.as_ref()
    }

    /// Returns the bytes of activations that `new` allocates, for budgeting memory.
    pub fn scratch_bytes<L: Loader<Backend = B>>(spec: &ModelSpec, limits: DecoderLimits) -> Result<u64> {
        buffers::bytes::<L>(spec, limits)
    }

    /// Runs the steps that the backend asks for before the first launch, so that it can capture them.
    ///
    /// # Errors
    /// Errors of a step that would also fail later.
    pub fn warm_up(&mut self, backend: &mut B) -> Result<()> {
        let models = &mut self.models;
        // Backends ask for decode steps of single tokens. Bidirectional models compute whole prompts, which are rarely
        // that short.
        if models.main.spec.is_bidirectional() {
            return Ok(());
        }
        let ops: &mut StepOps<'_, B> = &mut |step: &mut B::Step<'_>| {
            let rows = step.num_logits();
            models.forward(step, Ends::Rows { rows, wants_logits: true })
        };
        backend.warm_up(ops)
    }
}

impl<B: Backend> Models<B> {
    /// Computes a step. If the draft model cannot catch up later (`draft_lags`), the step also stores its keys and
    /// values. It goes first, because the main model's results in the buffers are read after the step.
    fn forward(&mut self, step: &mut B::Step<'_>, ends: Ends) -> Result<()> {
        let Self { main, draft, buffers } = self;
        if let Some(draft) = draft.as_mut().filter(|_| !main.spec.draft_lags()) {
            draft.forward(step, buffers, Ends::STORED)?;
        }
        main.forward(step, buffers, ends)
    }
}

impl<B: Backend> Model<B> {
    /// Computes a step from its tokens. A model without an output projection computes no logits.
    fn forward(&mut self, step: &mut B::Step<'_>, buffers: &mut Buffers<B>, ends: Ends) -> Result<()> {
        self.forward_part(step, buffers, ends, &Part::WHOLE)
    }

    /// Computes a part of a step, or all of it. The next part reads what this one leaves in the buffers.
    fn forward_part(
        &mut self,
        step: &mut B::Step<'_>,
        buffers: &mut Buffers<B>,
        ends: Ends,
        part: &Part,
    ) -> Result<()> {
        let Self { spec, weights, kv_layers, state_layers, first_angles } = self;
        let Buffers { angles, all, last, work, logits, drafts } = buffers;
        let tokens = step.num_tokens();
        let (named, wants_logits) = match ends {
            Ends::Rows { rows, wants_logits } => (rows, wants_logits),
            Ends::Hidden => (0, false),
        };
        let angles = &mut angles[*first_angles..];
        let ropes = match part.has_angles {
            true => Ropes { ropes: &weights.ropes, angles },
            false => Ropes::of_step(step, &weights.ropes, angles)?,
        };
        if part.embeds {
            embedding::embed(step, spec, weights, &mut all.residual)?;
            weights.inputs.as_ref().map_or(Ok(()), |inputs| inputs::look_up(step, inputs, all))?;
        }
        // Rows of images have replaced embeddings by then.
        if part.layers.contains(&0) {
            weights.inputs.as_ref().map_or(Ok(()), |inputs| inputs::add_projected(step, inputs, all, work))?;
            weights.streams.as_ref().map_or(Ok(()), |streams| streams::create(step, streams, all, work))?;
        }
        // A layer that shares the keys and values of another layer stores nothing.
        let last_stored = spec.layers.iter().rposition(|layer| layer.mixer.stores());
        let last_mixer = weights.layers.iter().rposition(|layer| layer.mixer.output().is_some());
        let last_mixer = last_mixer.ok_or_else(|| Error::internal("a model without a mixer"))?;
        let mut state_layers = state_layers.iter_mut();
        // The MTP block needs the hidden states of all tokens.
        let drafter =
            weights.drafter.as_ref().map(|drafter| Drafter::new(drafter, weights, spec, &ropes)).transpose()?;
        let needs_all = drafter.is_some() || ends == Ends::Hidden;
        for (i, layer) in weights.layers.iter().enumerate() {
            if !part.layers.contains(&i) {
                // Its states belong to an earlier or a later part.
                if layer.has_state() {
                    state_layers.next();
                }
                continue;
            }
            step.check_interrupt()?;
            layer.streams.as_ref().map_or(Ok(()), |streams| streams::predict(step, streams, tokens, all, work))?;
            let norm = layer.mixer_norms.before.as_ref();
            let ends_here = named == 0 && last_stored == Some(i) && !needs_all;
            match &layer.mixer {
                MixerWeights::Attention(attention) => {
                    let kv = kv_layers.get_mut(attention.spec.kv_layer);
                    let kv = kv.ok_or_else(|| Error::internal(format!("layer {i} without a KV layer")))?;
                    let attend = Attend { attention, norm, ropes: &ropes };
                    if ends_here {
                        attend.store(step, kv, all, work)?;
                    } else {
                        attend.mix(step, kv, all, work)?;
                    }
                    if let Some(mamba2) = &layer.beside {
                        let state = state_layers.next().ok_or_else(|| without_states(i))?;
                        states::mix_beside(step, mamba2, norm, state, all, work)?;
                    }
                    if ends_here {
                        return Ok(());
                    }
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
                    let state = state_layers.next().ok_or_else(|| without_states(i))?;
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
            // After the last mixer, only the rows with requested results matter.
            if let Some(matrix) = layer.mixer.output() {
                step.gather_rows(GatherRows { x: &all.mixed, cols: matrix.cols(), out: &mut last.mixed })?;
                step.gather_rows(GatherRows { x: &all.residual, cols: spec.hidden_size, out: &mut last.residual })?;
                if let (Some(mamba2), Some(x), Some(out)) = (&layer.beside, &all.beside, &mut last.beside) {
                    step.gather_rows(GatherRows { x, cols: mamba2.output.cols(), out })?;
                }
                if let (Some(_), Some(x), Some(out)) = (spec.layer_inputs, &all.inputs, &mut last.inputs) {
                    step.gather_rows(GatherRows { x, cols: spec.input_cols(), out })?;
                }
                if let (Some(_), Some(from), Some(to)) = (spec.streams, &all.streams, &mut last.streams) {
                    let others = from.others.iter().zip(&mut to.others);
                    for (x, out) in others.chain([(&from.predicted, &mut to.predicted)]) {
                        step.gather_rows(GatherRows { x, cols: spec.hidden_size, out })?;
                    }
                }
            }
            finish_layer(step, layer, named, last, work)?;
        }
        if part.layers.end < weights.layers.len() {
            return Ok(());
        }
        if let Some(streams) = &weights.streams {
            let (rows, stream) = if needs_all { (tokens, &mut *all) } else { (named, &mut *last) };
            streams::unite(step, streams, rows, stream, work)?;
        }
        if let Some(drafter) = drafter {
            if named > 0 {
                step.gather_rows(GatherRows { x: &all.residual, cols: spec.hidden_size, out: &mut last.residual })?;
            }
            let kv = drafter.kv_layer(kv_layers)?;
            let state = state_layers.next().ok_or_else(|| Error::internal("a drafter without its states"))?;
            drafter.store(step, kv, state, all, work, drafts.as_mut())?;
        }
        if !wants_logits || named == 0 {
            return Ok(());
        }
        let logits = logits.as_mut().ok_or_else(no_logits)?;
        let (x, norm) = (&last.residual, weights.output_norm.as_ref());
        logits_of(step, Input { x, norm, rows: named }, weights, spec, &mut work.normed, logits)
    }
}

fn without_states(layer: usize) -> Error {
    Error::internal(format!("layer {layer} without its states"))
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

/// Rows of hidden states, with the norm to apply before use.
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

/// Finishes a layer after its mixer: `residual += norm(W · mixed); residual += norm(ffn(norm(residual)))`. Each
/// addition is followed by the norm of the sum, if the layer has one. In a parallel layer, both read the same residual,
/// and the feed-forward goes first. Hidden streams are corrected, and the layer's input is added, at the end.
fn finish_layer<B: Backend>(
    step: &mut B::Step<'_>,
    layer: &LayerWeights<B>,
    rows: usize,
    stream: &mut Stream<B>,
    work: &mut Work<B>,
) -> Result<()> {
    let Stream { residual, mixed, beside, inputs, streams } = stream;
    let after = layer.mixer_norms.after.as_ref();
    let mixed = layer.mixer.output().map(|matrix| Output { x: mixed, matrix, norm: after, rows });
    let beside = layer.beside.as_ref().zip(beside.as_ref());
    let add_mixed = |step: &mut B::Step<'_>, residual: &mut B::Buffer, product: &mut B::Buffer| {
        mixed.map_or(Ok(()), |mixed| mixed.add_to(step, residual, product))?;
        beside.map_or(Ok(()), |(mamba2, x)| {
            step.linear(Linear { x, matrix: &mamba2.output, rows, out: residual, add: true })
        })
    };
    // A parallel feed-forward reads the residual without the result of attention.
    if layer.parallel {
        let own = &layer.ffn_norms.before;
        let norms = [if own.is_some() { own } else { &layer.mixer_norms.before }, &layer.ffn_norms.after];
        feed_forward(step, &layer.ffn, norms, rows, residual, work)?;
        return add_mixed(step, residual, &mut work.normed);
    }
    let norm_sum = |step: &mut B::Step<'_>, norm: &Option<NormWeights<B>>, residual: &mut B::Buffer| {
        norm.as_ref().map_or(Ok(()), |norm| norm.apply(step, residual, rows))
    };
    let mut streams = layer.streams.as_ref().zip(streams.as_mut());
    if let Some((weights, streams)) = &streams {
        let before = layer.mixer_norms.before.as_ref();
        streams::add_laurel(step, weights, before, rows, (&streams.predicted, &mut *residual), work)?;
    }
    add_mixed(step, residual, &mut work.normed)?;
    norm_sum(step, &layer.mixer_norms.of_sum, residual)?;
    let norms = [&layer.ffn_norms.before, &layer.ffn_norms.after];
    feed_forward(step, &layer.ffn, norms, rows, residual, work)?;
    norm_sum(step, &layer.ffn_norms.of_sum, residual)?;
    if let Some((weights, streams)) = &mut streams {
        streams::correct(step, weights, rows, residual, streams, work)?;
    }
    let others = streams.map(|(_, streams)| &mut streams.others);
    match (&layer.input, inputs) {
        (Some(weights), Some(inputs)) => inputs::add(step, weights, inputs, rows, (residual, others), work),
        _ => Ok(()),
    }
}

/// `residual += after(ffn(before(residual)))`. Either norm may be absent.
fn feed_forward<B: Backend>(
    step: &mut B::Step<'_>,
    FfnWeights { experts, dense, branches }: &FfnWeights<B>,
    [before, after]: [&Option<NormWeights<B>>; 2],
    rows: usize,
    residual: &mut B::Buffer,
    work: &mut Work<B>,
) -> Result<()> {
    let (before, after) = (before.as_ref(), after.as_ref());
    // The dense part reads the residual before the experts add to it.
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
        // The norm covers the sum of experts and shared expert, so the sum is computed in a separate buffer.
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

/// Computes the wide half of a feed-forward: `gated = act(gate · norm(x)) * (up · norm(x))`, or `act(up · norm(x))`
/// without a gate.
fn gate<B: Backend>(
    step: &mut B::Step<'_>,
    dense: &DenseWeights<B>,
    input: Input<'_, B>,
    work: &mut Work<B>,
) -> Result<()> {
    let &DenseWeights { spec: DenseSpec { size: cols, activation, gate, sparsity, .. }, ref gate_up, .. } = dense;
    let Work { normed, dense: Some([products, out]), .. } = work else {
        return Err(Error::internal("a feed-forward without its buffers"));
    };
    let rows = input.rows;
    match (gate, sparsity) {
        (Gate::Own | Gate::InUp, Some(deviations)) => {
            linear_of(step, input, gate_up, normed, products)?;
            step.sparsify(Sparsify { x: products, rows, cols, deviations })?;
            step.gated_activation(GatedActivation { gate_up: products, activation, rows, cols, out })
        }
        (Gate::Own | Gate::InUp, None) => {
            let (x, norm) = (input.x, input.norm.map(NormWeights::norm));
            step.norm_gated_linear(NormGatedLinear { x, norm, gate_up, activation, rows, normed, products, out })
        }
        (Gate::None, _) => {
            linear_of(step, input, gate_up, normed, products)?;
            step.activation(Activate { x: products, activation, rows, cols, out })
        }
    }
}

/// `gated *= sigmoid(row_gate · norm(x))` for a feed-forward with such a factor per row. A factor per row commutes with
/// the last matrix.
fn gate_rows<B: Backend>(
    step: &mut B::Step<'_>,
    dense: &DenseWeights<B>,
    Input { x, norm, rows }: Input<'_, B>,
    work: &mut Work<B>,
) -> Result<()> {
    let (Some(weight), Some([_, out])) = (&dense.row_gate, &mut work.dense) else { return Ok(()) };
    // A factor of a half does not depend on the rows, so the norm is skipped.
    let norm = norm.filter(|_| dense.spec.row_gate == RowGate::Own).map(NormWeights::norm);
    step.gate_rows(GateRows { x, norm, weight, rows, cols: dense.spec.size, out })
}

/// The result of a mixer or a feed-forward, before its last matrix and the norm after that.
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
