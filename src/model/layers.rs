//! The tensors of a model, defined once: `Weights::visit` goes through them, and what a visitor makes of each is the
//! weights. One visitor finds them in the file and sums them up, another uploads them.

use super::spec::{AttentionSpec, Ffn, LayerSpec, Mixer, ModelSpec, Presence};
use crate::Result;
use crate::backend::{Activation, Backend, ExpertSpec, RopeSpec};

/// What becomes of tensors of each kind.
pub trait Tensors {
    type Matrix;
    type Vector;
    type Experts;
    type Rope;
}

/// On a device.
impl<B: Backend> Tensors for B {
    type Matrix = B::Matrix;
    type Vector = B::Vector;
    type Experts = B::Experts;
    type Rope = B::Rope;
}

/// One matrix of a stack: `name.weight`, and `name.bias` where it has one.
pub struct Part {
    pub name: String,
    /// Outputs and inputs.
    pub rows: usize,
    pub cols: usize,
    pub bias: Presence,
}

/// Is shown every tensor of a model, in one order.
pub trait Visitor {
    type Made: Tensors;

    /// Matrices with the same inputs, stacked along their outputs.
    fn matrix(&mut self, parts: &[Part]) -> Result<<Self::Made as Tensors>::Matrix>;

    /// `name.weight`, of `len` elements.
    fn vector(&mut self, name: &str, len: usize) -> Result<<Self::Made as Tensors>::Vector>;

    /// The experts of layer `layer`, with their router.
    fn experts(&mut self, layer: usize, spec: &ExpertSpec) -> Result<<Self::Made as Tensors>::Experts>;

    fn rope(&mut self, spec: &RopeSpec) -> Result<<Self::Made as Tensors>::Rope>;
}

/// The weights of a model.
pub struct Weights<T: Tensors> {
    pub(super) token_embd: T::Matrix,
    /// `None`: the embedding table serves as output projection too.
    pub(super) output: Option<T::Matrix>,
    pub(super) output_norm: T::Vector,
    pub(super) ropes: Vec<T::Rope>,
    pub(super) layers: Vec<LayerWeights<T>>,
}

/// The weights of a layer, each with what the spec says of it.
pub(super) struct LayerWeights<T: Tensors> {
    pub(super) mixer_norm: T::Vector,
    pub(super) mixer: MixerWeights<T>,
    pub(super) ffn_norm: T::Vector,
    pub(super) ffn: FfnWeights<T>,
}

pub(super) enum MixerWeights<T: Tensors> {
    Attention(AttentionWeights<T>),
}

pub(super) struct AttentionWeights<T: Tensors> {
    pub(super) spec: AttentionSpec,
    pub(super) qkv: T::Matrix,
    /// Norms of each head of q and of k.
    pub(super) qk_norm: Option<[T::Vector; 2]>,
    pub(super) output: T::Matrix,
}

pub(super) enum FfnWeights<T: Tensors> {
    Dense { activation: Activation, gate_up: T::Matrix, down: T::Matrix },
    Experts(T::Experts),
}

impl<T: Tensors> Weights<T> {
    /// # Errors
    /// Those of the visitor.
    pub(super) fn visit<V: Visitor<Made = T>>(spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let table = |name: &str| [part(name.to_owned(), spec.vocab_size, spec.hidden_size, Presence::Absent)];
        let token_embd = visitor.matrix(&table("token_embd"))?;
        let output = if spec.tied_output { None } else { Some(visitor.matrix(&table("output"))?) };
        let output_norm = visitor.vector("output_norm", spec.hidden_size)?;
        let ropes = spec.ropes.iter().map(|rope| visitor.rope(rope)).collect::<Result<_>>()?;
        let layers = spec.layers.iter().enumerate();
        let layers = layers.map(|(index, layer)| LayerWeights::visit(index, layer, spec.hidden_size, visitor));
        Ok(Self { token_embd, output, output_norm, ropes, layers: layers.collect::<Result<_>>()? })
    }
}

impl<T: Tensors> LayerWeights<T> {
    fn visit<V: Visitor<Made = T>>(index: usize, spec: &LayerSpec, hidden: usize, visitor: &mut V) -> Result<Self> {
        let Mixer::Attention(attention) = &spec.mixer;
        Ok(Self {
            mixer_norm: visitor.vector(&of_layer(index, "attn_norm"), hidden)?,
            mixer: MixerWeights::Attention(AttentionWeights::visit(index, attention, hidden, visitor)?),
            ffn_norm: visitor.vector(&of_layer(index, "ffn_norm"), hidden)?,
            ffn: FfnWeights::visit(index, &spec.ffn, hidden, visitor)?,
        })
    }
}

impl<T: Tensors> AttentionWeights<T> {
    fn visit<V: Visitor<Made = T>>(index: usize, spec: &AttentionSpec, hidden: usize, visitor: &mut V) -> Result<Self> {
        let (q, kv, head_dim) = (spec.qkv.q_cols(), spec.qkv.kv_cols(), spec.qkv.head_dim);
        let qkv = [("attn_q", q), ("attn_k", kv), ("attn_v", kv)];
        let qkv = qkv.map(|(name, rows)| part(of_layer(index, name), rows, hidden, spec.qkv_bias));
        Ok(Self {
            spec: spec.clone(),
            qkv: visitor.matrix(&qkv)?,
            qk_norm: match spec.qk_norm {
                false => None,
                true => Some([
                    visitor.vector(&of_layer(index, "attn_q_norm"), head_dim)?,
                    visitor.vector(&of_layer(index, "attn_k_norm"), head_dim)?,
                ]),
            },
            output: visitor.matrix(&[part(of_layer(index, "attn_output"), hidden, q, spec.output_bias)])?,
        })
    }
}

impl<T: Tensors> FfnWeights<T> {
    fn visit<V: Visitor<Made = T>>(index: usize, spec: &Ffn, hidden: usize, visitor: &mut V) -> Result<Self> {
        let plain = |name: &str, rows, cols| part(of_layer(index, name), rows, cols, Presence::Absent);
        match *spec {
            Ffn::Dense { size, activation } => Ok(Self::Dense {
                activation,
                gate_up: visitor.matrix(&[plain("ffn_gate", size, hidden), plain("ffn_up", size, hidden)])?,
                down: visitor.matrix(&[plain("ffn_down", hidden, size)])?,
            }),
            Ffn::Experts(ref spec) => visitor.experts(index, spec).map(Self::Experts),
        }
    }
}

/// The name of a tensor of layer `index`.
pub(super) fn of_layer(index: usize, name: &str) -> String {
    format!("blk.{index}.{name}")
}

fn part(name: String, rows: usize, cols: usize, bias: Presence) -> Part {
    Part { name, rows, cols, bias }
}
