//! The tensors of a model, defined once: `Weights::visit` goes through them, and its visitor turns each into a member
//! of `Weights`. One visitor finds them in the file and sums them up, another uploads them.

mod delta_net;
mod latent;
mod mamba2;
mod short_convolution;

pub(super) use delta_net::DeltaNetWeights;
pub(super) use latent::{LatentQuery, LatentWeights};
pub(super) use mamba2::Mamba2Weights;
pub(super) use short_convolution::ShortConvolutionWeights;

use super::spec::{
    AttentionSpec, DenseSpec, Ffn, Gate, LayerSpec, Mixer, ModelSpec, NormSpec, Norms, Presence, QkNorm,
};
use crate::backend::{self, AddNorm, Backend, ExpertSpec, NormInPlace, Ops, RopeSpec};
use crate::{Error, Result};

mod branches;
mod drafter;
mod embedding;
mod inputs;

pub(super) use branches::BranchNorms;
pub(super) use drafter::DrafterWeights;
pub(super) use embedding::EmbeddingWeights;
pub(super) use inputs::{InputWeights, InputsWeights};

/// Types that stand for the weights of each kind: a device's own, or nothing where tensors are only looked for.
pub trait Tensors {
    type Matrix;
    type HeadMatrices;
    type Vector;
    type Experts;
    type Rope;
}

/// A device's own weights.
impl<B: Backend> Tensors for B {
    type Matrix = B::Matrix;
    type HeadMatrices = B::HeadMatrices;
    type Vector = B::Vector;
    type Experts = B::Experts;
    type Rope = B::Rope;
}

/// One matrix of a stack: `name.weight`, and `name.bias` where it has one.
pub(super) struct Part {
    pub name: String,
    /// Outputs and inputs of the tensor.
    pub rows: usize,
    pub cols: usize,
    pub bias: Presence,
    /// The outputs that the matrix has, where they are not all.
    pub runs: Option<Runs>,
}

/// Runs of a tensor's outputs: of every `period` the `len` from `first` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Runs {
    pub period: usize,
    pub first: usize,
    pub len: usize,
}

/// Visits every tensor of a model, in one order.
pub(super) trait Visitor {
    type Made: Tensors;

    /// Matrices with the same inputs, stacked along their outputs.
    fn matrix(&mut self, parts: &[Part]) -> Result<<Self::Made as Tensors>::Matrix>;

    /// The tensor of this name, which holds matrices of `heads` heads, of this many rows and columns each.
    fn heads(&mut self, name: &str, shape: [usize; 2], heads: usize) -> Result<<Self::Made as Tensors>::HeadMatrices>;

    /// The tensor of this name, of `len` elements.
    fn vector(&mut self, name: &str, len: usize) -> Result<<Self::Made as Tensors>::Vector> {
        self.vector_of(name, [len, 1])
    }

    /// The elements of the tensor of this name and shape.
    fn vector_of(&mut self, name: &str, shape: [usize; 2]) -> Result<<Self::Made as Tensors>::Vector>;

    /// The taps of a convolution: the tensor of this name, `taps` of each of `channels`.
    fn taps(&mut self, name: &str, taps: usize, channels: usize) -> Result<<Self::Made as Tensors>::Vector>;

    /// The experts of layer `layer`, with their router.
    fn experts(&mut self, layer: usize, spec: &ExpertSpec) -> Result<<Self::Made as Tensors>::Experts>;

    fn rope(&mut self, spec: &RopeSpec) -> Result<<Self::Made as Tensors>::Rope>;
}

/// The weights of a model.
pub struct Weights<T: Tensors> {
    pub(super) token_embd: T::Matrix,
    /// Tables and norm that make the first layer's input of the embeddings of tokens.
    pub(super) embedding: EmbeddingWeights<T>,
    /// `None`: the embedding table serves as output projection too, or there is none.
    pub(super) output: Option<T::Matrix>,
    pub(super) output_norm: Option<NormWeights<T>>,
    pub(super) ropes: Vec<T::Rope>,
    /// Makers of the inputs that layers have of their own.
    pub(super) inputs: Option<InputsWeights<T>>,
    pub(super) layers: Vec<LayerWeights<T>>,
    /// The block that guesses tokens, where the spec has one.
    pub(super) drafter: Option<DrafterWeights<T>>,
    /// The weights of the draft model, which come from a file of their own.
    pub(super) draft_model: Option<Box<Weights<T>>>,
}

/// The weights of a layer, each with what the spec says of it.
pub(super) struct LayerWeights<T: Tensors> {
    pub(super) mixer_norms: NormsWeights<T>,
    pub(super) mixer: MixerWeights<T>,
    pub(super) ffn_norms: NormsWeights<T>,
    pub(super) ffn: FfnWeights<T>,
    pub(super) parallel: bool,
    /// The weights by which the layer takes in its own input, at its end.
    pub(super) input: Option<InputWeights<T>>,
}

/// Weights of a norm of rows.
pub(super) struct NormWeights<T: Tensors> {
    pub(super) spec: NormSpec,
    pub(super) weight: T::Vector,
    pub(super) bias: Option<T::Vector>,
    /// Factor on the sum, where normed rows are added to others.
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
            Mixer::Mamba2(spec) => Self::Mamba2(Mamba2Weights::visit(index, spec, model, visitor)?),
            Mixer::ShortConvolution(shape) => {
                Self::ShortConvolution(ShortConvolutionWeights::visit(index, *shape, model, visitor)?)
            }
            Mixer::None => Self::None,
        })
    }

    /// The matrix that the mixer's result goes through at last; `None` where there is no mixer.
    pub(super) fn output(&self) -> Option<&T::Matrix> {
        match self {
            Self::Attention(attention) => Some(&attention.output),
            Self::Latent(latent) => Some(&latent.output),
            Self::DeltaNet(delta_net) => Some(&delta_net.output),
            Self::Mamba2(mamba2) => Some(&mamba2.output),
            Self::ShortConvolution(convolution) => Some(&convolution.output),
            Self::None => None,
        }
    }
}

pub(super) struct AttentionWeights<T: Tensors> {
    pub(super) spec: AttentionSpec,
    pub(super) qkv: T::Matrix,
    pub(super) qk_norm: Option<QkNormWeights<T>>,
    pub(super) sinks: Option<T::Vector>,
    pub(super) output: T::Matrix,
}

/// Norms of q and of k.
pub(super) struct QkNormWeights<T: Tensors> {
    pub(super) q: T::Vector,
    /// `None` where the rows hold q alone.
    pub(super) k: Option<T::Vector>,
    pub(super) eps: f32,
}

pub(super) struct FfnWeights<T: Tensors> {
    pub(super) experts: Option<T::Experts>,
    /// The feed-forward of every row: the only one, the experts' shared one, or a branch beside them.
    pub(super) dense: Option<DenseWeights<T>>,
    /// Norms of feed-forward and experts, where they are branches.
    pub(super) branches: Option<BranchNorms<T>>,
}

pub(super) struct DenseWeights<T: Tensors> {
    pub(super) spec: DenseSpec,
    /// Gate, where there is one, stacked with up.
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
        let output = if has_output { Some(visitor.matrix(&table("output", spec.hidden_size, spec))?) } else { None };
        let output_norm = spec.output_norm.map(|name| NormWeights::visit(name, spec, visitor)).transpose()?;
        let ropes = spec.ropes.iter().map(|rope| visitor.rope(rope)).collect::<Result<_>>()?;
        let inputs = spec.layer_inputs.map(|inputs| InputsWeights::visit(inputs, spec, visitor)).transpose()?;
        let layers = spec.layers.iter().enumerate();
        let layers = layers.map(|(index, layer)| LayerWeights::visit(index, layer, spec, visitor));
        let layers = layers.collect::<Result<_>>()?;
        let drafter = spec.drafter.as_ref().map(|layer| DrafterWeights::visit(layer, spec, visitor)).transpose()?;
        let draft_model = None;
        Ok(Self { token_embd, embedding, output, output_norm, ropes, inputs, layers, drafter, draft_model })
    }
}

impl<T: Tensors> LayerWeights<T> {
    fn visit<V: Visitor<Made = T>>(index: usize, layer: &LayerSpec, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let mixer_norms = NormsWeights::visit(index, layer.mixer_norms, spec, visitor)?;
        let mut weights = Self {
            mixer_norms,
            mixer: MixerWeights::visit(index, &layer.mixer, spec, visitor)?,
            ffn_norms: NormsWeights::visit(index, layer.ffn_norms, spec, visitor)?,
            ffn: FfnWeights::visit(index, &layer.ffn, spec, visitor)?,
            parallel: layer.parallel,
            input: spec.layer_inputs.map(|inputs| InputWeights::visit(index, inputs, spec, visitor)).transpose()?,
        };
        if let Some(scale) = layer.output_scale {
            weights.last_norm()?.sum_factor = scale;
        }
        Ok(weights)
    }

    /// The norm through which the last that the layer adds goes.
    fn last_norm(&mut self) -> Result<&mut NormWeights<T>> {
        let of_input = self.input.as_mut().map(|input| &mut input.norm);
        let norm = of_input.or(self.ffn_norms.after.as_mut()).filter(|_| !self.parallel);
        norm.ok_or_else(|| Error::internal("a factor on the output of a layer that ends without a norm"))
    }
}

impl<T: Tensors> NormsWeights<T> {
    fn visit<V: Visitor<Made = T>>(index: usize, norms: Norms, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let mut visit =
            |name: Option<&str>| name.map(|name| NormWeights::visit(&of_layer(index, name), spec, visitor)).transpose();
        Ok(Self { before: visit(norms.before)?, after: visit(norms.after)?, of_sum: visit(norms.of_sum)? })
    }
}

impl<T: Tensors> NormWeights<T> {
    fn visit<V: Visitor<Made = T>>(name: &str, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        Self::visit_of(name, spec.hidden_size, spec, visitor)
    }

    /// A norm of rows of `len` elements.
    fn visit_of<V: Visitor<Made = T>>(name: &str, len: usize, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let weight = visitor.vector(&format!("{name}.weight"), len)?;
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

impl<T: Tensors> AttentionWeights<T> {
    fn visit<V: Visitor<Made = T>>(
        index: usize,
        spec: &AttentionSpec,
        model: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let hidden = model.hidden_size;
        let (q, kv, head_dim) = (spec.qkv.q_cols(), spec.qkv.kv_cols(), spec.qkv.head_dim);
        let part_of = |name: &str, rows: usize| part(of_layer(index, name), rows, hidden, spec.qkv_bias);
        // A device needs V beside Q and K: where the file has none of its own, K serves twice.
        let v = if spec.v_is_k { "attn_k" } else { "attn_v" };
        let of_kv = || [part_of("attn_k", kv), part_of(v, kv)].into_iter().filter(|_| spec.qkv.has_kv);
        let qkv = match (spec.fused_qkv, spec.qkv.gated) {
            (true, _) => vec![part_of("attn_qkv", spec.qkv.cols())],
            (false, false) => std::iter::once(part_of("attn_q", q)).chain(of_kv()).collect(),
            (false, true) => {
                let runs = |first| Some(Runs { period: 2 * head_dim, first, len: head_dim });
                let gates = Part { runs: runs(head_dim), ..part_of("attn_q", 2 * q) };
                let queries = Part { runs: runs(0), ..part_of("attn_q", 2 * q) };
                [gates, queries].into_iter().chain(of_kv()).collect()
            }
        };
        let mut vector = |name: &str, len: usize| visitor.vector(&of_layer(index, name), len);
        let norm_lens = spec.qk_norm.map(|norm| match norm {
            QkNorm::Heads | QkNorm::HeadsAfterRope => [head_dim; 2],
            QkNorm::Rows => [q, kv],
        });
        let qk_norm = match norm_lens {
            None => None,
            Some([q, k]) => Some(QkNormWeights {
                q: vector("attn_q_norm.weight", q)?,
                k: spec.qkv.has_kv.then(|| vector("attn_k_norm.weight", k)).transpose()?,
                eps: model.norm.eps,
            }),
        };
        let sinks = match spec.sinks {
            false => None,
            true => Some(vector("attn_sinks.weight", spec.qkv.num_heads)?),
        };
        Ok(Self {
            spec: spec.clone(),
            qkv: visitor.matrix(&qkv)?,
            qk_norm,
            sinks,
            output: visitor.matrix(&[part(of_layer(index, "attn_output"), hidden, q, spec.output_bias)])?,
        })
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
    /// `suffix`: of the tensors' names.
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
                true => Some(visitor.vector(&of_layer(index, &format!("ffn_gate_inp{suffix}.weight")), hidden)?),
                false => None,
            },
        })
    }
}

/// The name of a tensor of layer `index`.
pub(super) fn of_layer(index: usize, name: &str) -> String {
    format!("blk.{index}.{name}")
}

pub(super) fn part(name: String, rows: usize, cols: usize, bias: Presence) -> Part {
    Part { name, rows, cols, bias, runs: None }
}

/// Rows of which devices make tiles: whole ones of a type that follow each other are one matrix to each device.
const TILE_ROWS: usize = 16;

/// A table with a row for each token. Where the file has fewer rows, its first ones stand behind its whole tiles for
/// the tokens that have none.
pub(super) fn table(name: &str, cols: usize, spec: &ModelSpec) -> Vec<Part> {
    let (tokens, period) = (spec.vocab_size, spec.table_rows);
    let part = || part(name.to_owned(), period, cols, Presence::Absent);
    if tokens == period {
        return vec![part()];
    }
    let whole = period - period % TILE_ROWS;
    [whole, tokens - whole].map(|len| Part { runs: Some(Runs { period, first: 0, len }), ..part() }).into()
}
