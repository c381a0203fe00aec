//! The tensors of a model, defined once. `Weights::visit` passes each tensor to a visitor, which turns it into a member
//! of `Weights`. One visitor finds and sums up the tensors of the file, another uploads them.

mod attention;
mod delta_net;
mod latent;
mod mamba;
mod mamba2;
mod short_convolution;

pub(super) use attention::{AttentionWeights, QkNormWeights};
pub(super) use delta_net::DeltaNetWeights;
pub(super) use latent::{LatentQuery, LatentWeights};
pub(super) use mamba::MambaWeights;
pub(super) use mamba2::Mamba2Weights;
pub(super) use short_convolution::ShortConvolutionWeights;

use super::spec::{
    DenseSpec, DistanceBiases, Ffn, Gate, LayerSpec, Mixer, ModelSpec, NormSpec, Norms, Presence, RowGate,
};
use crate::backend::{self, AddNorm, Backend, ExpertSpec, NormInPlace, Ops, RopeSpec};
use crate::{Error, Result};

mod branches;
mod drafter;
mod embedding;
mod inputs;
mod streams;

pub(super) use branches::BranchNorms;
pub(super) use drafter::DrafterWeights;
pub(super) use embedding::EmbeddingWeights;
pub(super) use inputs::{InputWeights, InputsWeights};
pub(super) use streams::{StreamWeights, StreamsWeights};

/// Types of the weights of each kind: a device's types, or empty types to only look for tensors.
pub trait Tensors {
    type Matrix;
    type HeadMatrices;
    type Vector;
    type Experts;
    type Rope;
}

/// A device's weights.
impl<B: Backend> Tensors for B {
    type Matrix = B::Matrix;
    type HeadMatrices = B::HeadMatrices;
    type Vector = B::Vector;
    type Experts = B::Experts;
    type Rope = B::Rope;
}

/// One matrix of a stack: `name.weight`, and its optional bias `name.bias`.
#[derive(Clone)]
pub(super) struct Part {
    pub name: String,
    /// Outputs and inputs of the tensor.
    pub rows: usize,
    pub cols: usize,
    pub bias: Presence,
    /// The outputs to use, if not all of them.
    pub runs: Option<Runs>,
}

/// Ranges of a tensor's outputs, at most `count`: `len` outputs from `first` on, in every `period` outputs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Runs {
    pub period: usize,
    pub first: usize,
    pub len: usize,
    pub count: usize,
}

/// The matrices of heads in the tensor `name`, whose rows have `cols` columns. Each matrix has `len` rows from `first`
/// on, in every `period` rows of the tensor. They may be transposed.
pub(super) struct HeadRows {
    pub name: String,
    pub heads: usize,
    pub period: usize,
    pub first: usize,
    pub len: usize,
    pub cols: usize,
    pub is_transposed: bool,
}

impl HeadRows {
    /// Returns all rows of a tensor with `len` rows and `cols` columns per head.
    fn whole(name: String, heads: usize, [len, cols]: [usize; 2]) -> Self {
        Self { name, heads, period: len, first: 0, len, cols, is_transposed: false }
    }

    /// True if these are all rows of the tensor, not transposed.
    pub(super) fn is_whole(&self) -> bool {
        self.len == self.period && !self.is_transposed
    }

    /// Returns the rows and columns of a head's matrix.
    pub(super) fn shape(&self) -> [usize; 2] {
        if self.is_transposed { [self.cols, self.len] } else { [self.len, self.cols] }
    }
}

/// Visits every tensor of a model, in a fixed order.
pub(super) trait Visitor {
    type Made: Tensors;

    /// Visits matrices with the same inputs, stacked along their outputs.
    fn matrix(&mut self, parts: &[Part]) -> Result<<Self::Made as Tensors>::Matrix>;

    /// Visits the matrices of heads.
    fn heads(&mut self, rows: &HeadRows) -> Result<<Self::Made as Tensors>::HeadMatrices>;

    /// Visits the tensor of this name with `len` elements.
    fn vector(&mut self, name: &str, len: usize) -> Result<<Self::Made as Tensors>::Vector> {
        self.vector_of(name, [len, 1])
    }

    /// Visits the tensor of this name and shape as a vector.
    fn vector_of(&mut self, name: &str, shape: [usize; 2]) -> Result<<Self::Made as Tensors>::Vector>;

    /// Visits the tensor of this name with `len` elements, which are multiplied by a factor.
    fn scaled(&mut self, name: &str, len: usize, scale: f32) -> Result<<Self::Made as Tensors>::Vector>;

    /// Creates a vector of `len` equal elements, without a tensor in the file.
    fn constant(&mut self, value: f32, len: usize) -> Result<<Self::Made as Tensors>::Vector>;

    /// Visits the taps of a convolution: the tensor of this name, with `taps` elements for each of `channels`.
    fn taps(&mut self, name: &str, taps: usize, channels: usize) -> Result<<Self::Made as Tensors>::Vector>;

    /// Visits the table of biases by distance of layer `layer` (`Attention::biases`).
    fn biases(&mut self, layer: usize, biases: DistanceBiases, heads: usize)
    -> Result<<Self::Made as Tensors>::Vector>;

    /// Visits the experts of layer `layer`, with their router.
    fn experts(&mut self, layer: usize, spec: &ExpertSpec) -> Result<<Self::Made as Tensors>::Experts>;

    fn rope(&mut self, spec: &RopeSpec) -> Result<<Self::Made as Tensors>::Rope>;
}

/// The weights of a model.
pub struct Weights<T: Tensors> {
    pub(super) token_embd: T::Matrix,
    /// Tables and norm that turn token embeddings into the first layer's input.
    pub(super) embedding: EmbeddingWeights<T>,
    /// `None` if the embedding table is also the output projection, or if there is none.
    pub(super) output: Option<T::Matrix>,
    pub(super) output_norm: Option<NormWeights<T>>,
    pub(super) ropes: Vec<T::Rope>,
    /// The weights that compute the per-layer inputs.
    pub(super) inputs: Option<InputsWeights<T>>,
    /// The weights that create and unite the hidden streams.
    pub(super) streams: Option<StreamsWeights<T>>,
    pub(super) layers: Vec<LayerWeights<T>>,
    /// The MTP block, if the spec has one.
    pub(super) drafter: Option<DrafterWeights<T>>,
    /// The weights of the draft model, which has its own file.
    pub(super) draft_model: Option<Box<Weights<T>>>,
}

/// The weights of a layer, with the parts of the spec that describe them.
pub(super) struct LayerWeights<T: Tensors> {
    pub(super) mixer_norms: NormsWeights<T>,
    pub(super) mixer: MixerWeights<T>,
    /// The second mixer, beside attention.
    pub(super) beside: Option<Mamba2Weights<T>>,
    pub(super) ffn_norms: NormsWeights<T>,
    pub(super) ffn: FfnWeights<T>,
    pub(super) parallel: bool,
    /// The weights that add the per-layer input at the end of the layer.
    pub(super) input: Option<InputWeights<T>>,
    /// The weights that predict and correct the hidden streams.
    pub(super) streams: Option<StreamWeights<T>>,
}

/// Weights of a norm over rows.
pub(super) struct NormWeights<T: Tensors> {
    pub(super) spec: NormSpec,
    pub(super) weight: T::Vector,
    pub(super) bias: Option<T::Vector>,
    /// Factor on the sum of normed rows and the rows that they are added to.
    pub(super) sum_factor: f32,
}

/// See `Norms`.
pub(super) struct NormsWeights<T: Tensors> {
    pub(super) before: Option<NormWeights<T>>,
    pub(super) after: Option<NormWeights<T>>,
    pub(super) of_sum: Option<NormWeights<T>>,
}

pub(super) enum MixerWeights<T: Tensors> {
    Attention(AttentionWeights<T>),
    Latent(LatentWeights<T>),
    DeltaNet(DeltaNetWeights<T>),
    Mamba(MambaWeights<T>),
    Mamba2(Mamba2Weights<T>),
    ShortConvolution(ShortConvolutionWeights<T>),
    None,
}

impl<T: Tensors> MixerWeights<T> {
    fn visit<V: Visitor<Made = T>>(index: usize, mixer: &Mixer, model: &ModelSpec, visitor: &mut V) -> Result<Self> {
        Ok(match mixer {
            Mixer::Attention(spec) => Self::Attention(AttentionWeights::visit(index, spec, model, visitor)?),
            Mixer::Latent(spec) => Self::Latent(LatentWeights::visit(index, spec, model, visitor)?),
            Mixer::DeltaNet(spec) => Self::DeltaNet(DeltaNetWeights::visit(index, spec, model, visitor)?),
            Mixer::Mamba(spec) => Self::Mamba(MambaWeights::visit(index, spec, model, visitor)?),
            Mixer::Mamba2(spec) => Self::Mamba2(Mamba2Weights::visit(index, spec, model, visitor)?),
            Mixer::ShortConvolution(shape) => {
                Self::ShortConvolution(ShortConvolutionWeights::visit(index, *shape, model, visitor)?)
            }
            Mixer::None => Self::None,
        })
    }

    /// Returns the last matrix of the mixer; `None` without a mixer.
    pub(super) fn output(&self) -> Option<&T::Matrix> {
        match self {
            Self::Attention(attention) => Some(&attention.output),
            Self::Latent(latent) => Some(&latent.output),
            Self::DeltaNet(delta_net) => Some(&delta_net.output),
            Self::Mamba(mamba) => Some(&mamba.output),
            Self::Mamba2(mamba2) => Some(&mamba2.output),
            Self::ShortConvolution(convolution) => Some(&convolution.output),
            Self::None => None,
        }
    }
}

pub(super) struct FfnWeights<T: Tensors> {
    pub(super) experts: Option<T::Experts>,
    /// The feed-forward of every row: the only one, a shared expert, or a branch beside the experts.
    pub(super) dense: Option<DenseWeights<T>>,
    /// Norms of the two branches, if feed-forward and experts are branches.
    pub(super) branches: Option<BranchNorms<T>>,
}

pub(super) struct DenseWeights<T: Tensors> {
    pub(super) spec: DenseSpec,
    /// The gate, if there is one, stacked with up.
    pub(super) gate_up: T::Matrix,
    pub(super) down: T::Matrix,
    /// See `DenseSpec::row_gate`.
    pub(super) row_gate: Option<T::Vector>,
}

impl<T: Tensors> Weights<T> {
    /// # Errors
    /// Errors of the visitor.
    pub(super) fn visit<V: Visitor<Made = T>>(spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let token_embd = visitor.matrix(&table("token_embd", spec.hidden_size, spec))?;
        let embedding = EmbeddingWeights::visit(spec, visitor)?;
        let has_output = !spec.tied_output && !spec.is_bidirectional();
        let output = if has_output { Some(visitor.matrix(&output(spec))?) } else { None };
        let output_norm = spec.output_norm.map(|name| NormWeights::visit(name, spec, visitor)).transpose()?;
        let ropes = spec.ropes.iter().map(|rope| visitor.rope(rope)).collect::<Result<_>>()?;
        let inputs = spec.layer_inputs.map(|inputs| InputsWeights::visit(inputs, spec, visitor)).transpose()?;
        let streams = spec.streams.map(|_| StreamsWeights::visit(spec, visitor)).transpose()?;
        let layers = spec.layers.iter().enumerate();
        let layers = layers.map(|(index, layer)| LayerWeights::visit(index, layer, spec, visitor));
        let layers = layers.collect::<Result<_>>()?;
        let drafter = spec.drafter.as_ref().map(|layer| DrafterWeights::visit(layer, spec, visitor)).transpose()?;
        let draft_model = None;
        Ok(Self { token_embd, embedding, output, output_norm, ropes, inputs, streams, layers, drafter, draft_model })
    }
}

impl<T: Tensors> LayerWeights<T> {
    /// True if one of the mixers has a recurrent state.
    pub(super) fn has_state(&self) -> bool {
        let of_mixer = match &self.mixer {
            MixerWeights::DeltaNet(_) | MixerWeights::Mamba(_) => true,
            MixerWeights::Mamba2(_) | MixerWeights::ShortConvolution(_) => true,
            MixerWeights::Attention(_) | MixerWeights::Latent(_) | MixerWeights::None => false,
        };
        of_mixer || self.beside.is_some()
    }

    fn visit<V: Visitor<Made = T>>(index: usize, layer: &LayerSpec, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let (eps, scale) = (layer.after_eps, layer.before_scale);
        let mixer_norms = NormsWeights::visit(index, layer.mixer_norms, (eps, scale), spec, visitor)?;
        let mut weights = Self {
            mixer_norms,
            mixer: MixerWeights::visit(index, &layer.mixer, spec, visitor)?,
            beside: layer.beside.map(|mamba2| Mamba2Weights::visit(index, &mamba2, spec, visitor)).transpose()?,
            ffn_norms: NormsWeights::visit(index, layer.ffn_norms, (eps, 1.0), spec, visitor)?,
            ffn: FfnWeights::visit(index, &layer.ffn, spec, visitor)?,
            parallel: layer.parallel,
            input: spec.layer_inputs.map(|inputs| InputWeights::visit(index, inputs, spec, visitor)).transpose()?,
            streams: spec.streams.map(|streams| StreamWeights::visit(index, streams, spec, visitor)).transpose()?,
        };
        // The sum of the residual, attention and the low-rank addition is divided by the root of 2.
        if let (Some(_), Some(after)) = (&weights.streams, &mut weights.mixer_norms.after) {
            after.sum_factor = std::f32::consts::FRAC_1_SQRT_2;
        }
        if let Some(scale) = layer.output_scale {
            weights.last_norm()?.sum_factor = scale;
        }
        Ok(weights)
    }

    /// Returns the norm of the layer's last addition to the residual.
    fn last_norm(&mut self) -> Result<&mut NormWeights<T>> {
        let of_input = self.input.as_mut().map(|input| &mut input.norm);
        let norm = of_input.or(self.ffn_norms.after.as_mut()).filter(|_| !self.parallel);
        norm.ok_or_else(|| Error::internal("a factor on the output of a layer that ends without a norm"))
    }
}

impl<T: Tensors> NormsWeights<T> {
    fn visit<V: Visitor<Made = T>>(
        index: usize,
        norms: Norms,
        (after_eps, before_scale): (Option<f32>, f32),
        spec: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let mut visit = |name: Option<&str>, scale: f32| {
            name.map(|name| NormWeights::visit_of(&of_layer(index, name), spec.hidden_size, scale, spec, visitor))
        };
        let before = visit(norms.before, before_scale).transpose()?;
        let mut after = visit(norms.after, 1.0).transpose()?;
        let of_sum = visit(norms.of_sum, 1.0).transpose()?;
        if let (Some(norm), Some(eps)) = (&mut after, after_eps) {
            norm.spec.eps = eps;
        }
        Ok(Self { before, after, of_sum })
    }
}

impl<T: Tensors> NormWeights<T> {
    fn visit<V: Visitor<Made = T>>(name: &str, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        Self::visit_of(name, spec.hidden_size, 1.0, spec, visitor)
    }

    /// Returns a norm over rows of the hidden state, without weights.
    fn plain<V: Visitor<Made = T>>(spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let weight = visitor.constant(1.0, spec.hidden_size)?;
        Ok(Self { spec: spec.norm, weight, bias: None, sum_factor: 1.0 })
    }

    /// Visits a norm over rows of `len` elements. Its weights are multiplied by a factor.
    fn visit_of<V: Visitor<Made = T>>(
        name: &str,
        len: usize,
        scale: f32,
        spec: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let weight = match spec.norm.weight {
            true => visitor.scaled(&format!("{name}.weight"), len, scale)?,
            false => visitor.constant(scale, len)?,
        };
        let bias = match spec.norm.bias {
            true => Some(visitor.vector(&format!("{name}.bias"), len)?),
            false => None,
        };
        Ok(Self { spec: spec.norm, weight, bias, sum_factor: 1.0 })
    }
}

impl<B: Backend> NormWeights<B> {
    pub(super) fn norm(&self) -> backend::Norm<'_, B> {
        let NormSpec { kind, eps, .. } = self.spec;
        backend::Norm { kind, weight: &self.weight, bias: self.bias.as_ref(), eps }
    }

    /// `x = norm(x)`.
    pub(super) fn apply(&self, step: &mut B::Step<'_>, x: &mut B::Buffer, rows: usize) -> Result<()> {
        step.norm_in_place(NormInPlace { x, norm: self.norm(), rows })
    }

    /// `out = sum_factor * (out + norm(x))`.
    pub(super) fn add_to(&self, step: &mut B::Step<'_>, x: &B::Buffer, rows: usize, out: &mut B::Buffer) -> Result<()> {
        step.add_norm(AddNorm { x, norm: self.norm(), rows, out, factor: self.sum_factor })
    }
}

impl<T: Tensors> FfnWeights<T> {
    fn visit<V: Visitor<Made = T>>(index: usize, spec: &Ffn, model: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let hidden = model.hidden_size;
        match spec {
            Ffn::Dense(dense) => {
                let dense = Some(DenseWeights::visit(index, "", dense, hidden, visitor)?);
                Ok(Self { experts: None, dense, branches: None })
            }
            Ffn::Experts { experts, shared } => {
                let shared = shared.map(|shared| DenseWeights::visit(index, "_shexp", &shared, hidden, visitor));
                let experts = Some(visitor.experts(index, experts)?);
                Ok(Self { experts, dense: shared.transpose()?, branches: None })
            }
            Ffn::Branches { dense, experts } => {
                let dense = Some(DenseWeights::visit(index, "", dense, hidden, visitor)?);
                let experts = Some(visitor.experts(index, experts)?);
                Ok(Self { experts, dense, branches: Some(BranchNorms::visit(index, model, visitor)?) })
            }
            Ffn::None => Ok(Self { experts: None, dense: None, branches: None }),
        }
    }
}

impl<T: Tensors> DenseWeights<T> {
    /// `suffix` ends the names of the tensors.
    fn visit<V: Visitor<Made = T>>(
        index: usize,
        suffix: &str,
        spec: &DenseSpec,
        hidden: usize,
        visitor: &mut V,
    ) -> Result<Self> {
        let part_of = |name: &str, rows: usize, cols: usize| {
            part(of_layer(index, &format!("{name}{suffix}")), rows, cols, spec.bias)
        };
        let size = spec.size;
        let gate_up = match spec.gate {
            Gate::None => vec![part_of("ffn_up", size, hidden)],
            Gate::Own => vec![part_of("ffn_gate", size, hidden), part_of("ffn_up", size, hidden)],
            Gate::InUp => vec![part_of("ffn_up", 2 * size, hidden)],
        };
        Ok(Self {
            spec: *spec,
            gate_up: visitor.matrix(&gate_up)?,
            down: visitor.matrix(&[part_of("ffn_down", hidden, size)])?,
            row_gate: match spec.row_gate {
                RowGate::None => None,
                RowGate::Own => {
                    Some(visitor.vector(&of_layer(index, &format!("ffn_gate_inp{suffix}.weight")), hidden)?)
                }
                // The sigmoid of 0 is a half.
                RowGate::Half => Some(visitor.constant(0.0, hidden)?),
            },
        })
    }
}

/// Returns the name of a tensor of layer `index`.
pub(super) fn of_layer(index: usize, name: &str) -> String {
    format!("blk.{index}.{name}")
}

pub(super) fn part(name: String, rows: usize, cols: usize, bias: Presence) -> Part {
    Part { name, rows, cols, bias, runs: None }
}

/// Returns the separate output projection of a model.
fn output(spec: &ModelSpec) -> Vec<Part> {
    let bias = if spec.output_bias { Presence::Required } else { Presence::Absent };
    table("output", spec.hidden_size, spec).into_iter().map(|part| Part { bias, ..part }).collect()
}

/// Rows per device tile. Every device merges consecutive whole tiles of one type into one matrix.
const TILE_ROWS: usize = 16;

/// Returns a table with a row for each token. If the file has fewer rows, its first rows are repeated after its last
/// whole tile.
pub(super) fn table(name: &str, cols: usize, spec: &ModelSpec) -> Vec<Part> {
    let (tokens, period) = (spec.vocab_size, spec.table_rows);
    let part = || part(name.to_owned(), period, cols, Presence::Absent);
    if tokens == period {
        return vec![part()];
    }
    let whole = period - period % TILE_ROWS;
    [whole, tokens - whole].map(|len| Part { runs: Some(Runs { period, first: 0, len, count: 1 }), ..part() }).into()
}
