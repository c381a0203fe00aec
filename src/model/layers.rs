//! The tensors of a model, defined once: `Weights::visit` goes through them, and its visitor turns each into a member
//! of `Weights`. One visitor finds them in the file and sums them up, another uploads them.

mod delta_net;

pub(super) use delta_net::DeltaNetWeights;

use super::spec::{
    AttentionSpec, DenseSpec, Ffn, Gate, LayerSpec, Mixer, ModelSpec, NormSpec, Norms, Presence, QkNorm,
};
use crate::Result;
use crate::backend::{self, Backend, ExpertSpec, RopeSpec};

/// Types that stand for the weights of each kind: a device's own, or nothing where tensors are only looked for.
pub trait Tensors {
    type Matrix;
    type Vector;
    type Experts;
    type Rope;
}

/// A device's own weights.
impl<B: Backend> Tensors for B {
    type Matrix = B::Matrix;
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

    /// The tensor of this name, of `len` elements.
    fn vector(&mut self, name: &str, len: usize) -> Result<<Self::Made as Tensors>::Vector>;

    /// The taps of a convolution: the tensor of this name, `taps` of each of `channels`.
    fn taps(&mut self, name: &str, taps: usize, channels: usize) -> Result<<Self::Made as Tensors>::Vector>;

    /// The experts of layer `layer`, with their router.
    fn experts(&mut self, layer: usize, spec: &ExpertSpec) -> Result<<Self::Made as Tensors>::Experts>;

    fn rope(&mut self, spec: &RopeSpec) -> Result<<Self::Made as Tensors>::Rope>;
}

/// The weights of a model.
pub struct Weights<T: Tensors> {
    pub(super) token_embd: T::Matrix,
    /// `None`: the embedding table serves as output projection too.
    pub(super) output: Option<T::Matrix>,
    pub(super) output_norm: NormWeights<T>,
    pub(super) ropes: Vec<T::Rope>,
    pub(super) layers: Vec<LayerWeights<T>>,
}

/// The weights of a layer, each with what the spec says of it.
pub(super) struct LayerWeights<T: Tensors> {
    pub(super) mixer_norms: NormsWeights<T>,
    pub(super) mixer: MixerWeights<T>,
    pub(super) ffn_norms: NormsWeights<T>,
    pub(super) ffn: FfnWeights<T>,
    pub(super) parallel: bool,
}

/// Weights of a norm of rows.
pub(super) struct NormWeights<T: Tensors> {
    pub(super) spec: NormSpec,
    pub(super) weight: T::Vector,
    pub(super) bias: Option<T::Vector>,
}

/// See `Norms`.
pub(super) struct NormsWeights<T: Tensors> {
    pub(super) before: Option<NormWeights<T>>,
    pub(super) after: Option<NormWeights<T>>,
}

pub(super) enum MixerWeights<T: Tensors> {
    Attention(AttentionWeights<T>),
    DeltaNet(DeltaNetWeights<T>),
}

impl<T: Tensors> MixerWeights<T> {
    /// The matrix that the mixer's result goes through at last.
    pub(super) fn output(&self) -> &T::Matrix {
        match self {
            Self::Attention(attention) => &attention.output,
            Self::DeltaNet(delta_net) => &delta_net.output,
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
    pub(super) k: T::Vector,
    pub(super) eps: f32,
}

pub(super) struct FfnWeights<T: Tensors> {
    pub(super) experts: Option<T::Experts>,
    /// The feed-forward of every row: the only one, or the experts' shared one.
    pub(super) dense: Option<DenseWeights<T>>,
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
        let table = |name: &str| [part(name.to_owned(), spec.vocab_size, spec.hidden_size, Presence::Absent)];
        let token_embd = visitor.matrix(&table("token_embd"))?;
        let output = if spec.tied_output { None } else { Some(visitor.matrix(&table("output"))?) };
        let output_norm = NormWeights::visit("output_norm", spec, visitor)?;
        let ropes = spec.ropes.iter().map(|rope| visitor.rope(rope)).collect::<Result<_>>()?;
        let layers = spec.layers.iter().enumerate();
        let layers = layers.map(|(index, layer)| LayerWeights::visit(index, layer, spec, visitor));
        Ok(Self { token_embd, output, output_norm, ropes, layers: layers.collect::<Result<_>>()? })
    }
}

impl<T: Tensors> LayerWeights<T> {
    fn visit<V: Visitor<Made = T>>(index: usize, layer: &LayerSpec, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let mixer_norms = NormsWeights::visit(index, layer.mixer_norms, spec, visitor)?;
        let mixer = match &layer.mixer {
            Mixer::Attention(attention) => {
                MixerWeights::Attention(AttentionWeights::visit(index, attention, spec, visitor)?)
            }
            Mixer::DeltaNet(delta_net) => {
                MixerWeights::DeltaNet(DeltaNetWeights::visit(index, delta_net, spec, visitor)?)
            }
        };
        Ok(Self {
            mixer_norms,
            mixer,
            ffn_norms: NormsWeights::visit(index, layer.ffn_norms, spec, visitor)?,
            ffn: FfnWeights::visit(index, &layer.ffn, spec.hidden_size, visitor)?,
            parallel: layer.parallel,
        })
    }
}

impl<T: Tensors> NormsWeights<T> {
    fn visit<V: Visitor<Made = T>>(index: usize, norms: Norms, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let mut visit =
            |name: Option<&str>| name.map(|name| NormWeights::visit(&of_layer(index, name), spec, visitor)).transpose();
        Ok(Self { before: visit(norms.before)?, after: visit(norms.after)? })
    }
}

impl<T: Tensors> NormWeights<T> {
    fn visit<V: Visitor<Made = T>>(name: &str, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let weight = visitor.vector(&format!("{name}.weight"), spec.hidden_size)?;
        let bias = match spec.norm.bias {
            true => Some(visitor.vector(&format!("{name}.bias"), spec.hidden_size)?),
            false => None,
        };
        Ok(Self { spec: spec.norm, weight, bias })
    }
}

impl<B: Backend> NormWeights<B> {
    pub(super) fn norm(&self) -> backend::Norm<'_, B> {
        let NormSpec { kind, eps, .. } = self.spec;
        backend::Norm { kind, weight: &self.weight, bias: self.bias.as_ref(), eps }
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
        let qkv = match (spec.fused_qkv, spec.qkv.gated) {
            (true, _) => vec![part_of("attn_qkv", spec.qkv.cols())],
            (false, false) => vec![part_of("attn_q", q), part_of("attn_k", kv), part_of("attn_v", kv)],
            (false, true) => {
                let runs = |first| Some(Runs { period: 2 * head_dim, first, len: head_dim });
                let gates = Part { runs: runs(head_dim), ..part_of("attn_q", 2 * q) };
                let queries = Part { runs: runs(0), ..part_of("attn_q", 2 * q) };
                vec![gates, queries, part_of("attn_k", kv), part_of("attn_v", kv)]
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
                k: vector("attn_k_norm.weight", k)?,
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
    fn visit<V: Visitor<Made = T>>(index: usize, spec: &Ffn, hidden: usize, visitor: &mut V) -> Result<Self> {
        match spec {
            Ffn::Dense(dense) => {
                Ok(Self { experts: None, dense: Some(DenseWeights::visit(index, "", dense, hidden, visitor)?) })
            }
            Ffn::Experts { experts, shared } => {
                let shared = shared.map(|shared| DenseWeights::visit(index, "_shexp", &shared, hidden, visitor));
                Ok(Self { experts: Some(visitor.experts(index, experts)?), dense: shared.transpose()? })
            }
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
