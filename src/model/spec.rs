//! `ModelSpec`: a model as a list of layers, each with its own mixer and feed-forward, and what they share.

mod kv_groups;

pub use kv_groups::KvGroupSpec;

use kv_groups::KvLayout;

use crate::backend::{
    Activation, DeltaNetShape, ExpertSpec, LatentShape, Mamba2Shape, NormKind, QkvLayout, RopeSpec, Scoring,
    ShortConvolutionShape, StateLayerSpec, Temperature,
};
use crate::config::Pooling;

/// The tensor of a layer that holds the factor on what it leaves.
pub(super) const OUTPUT_SCALE: &str = "layer_output_scale.weight";

/// Whether an architecture has a tensor of some kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Absent,
    Optional,
    Required,
}

/// Everything about a model that is not a weight. Made by the file of its architecture (`arch`).
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// `general.architecture`.
    pub architecture: &'static str,
    pub hidden_size: usize,
    pub vocab_size: usize,
    /// Rows of the file's tables of tokens: as many as there are tokens, but fewer in some draft models (`table`).
    pub table_rows: usize,
    /// Positions the model was trained for.
    pub context_length: usize,
    /// Kind and epsilon of every norm of rows.
    pub norm: NormSpec,
    /// Name of the tensors of the norm ahead of the output projection; `None` where the last layer ends with a norm.
    pub output_norm: Option<&'static str>,
    /// Factor on the embeddings of tokens.
    pub embedding_scale: f32,
    pub embedding: EmbeddingSpec,
    pub logits: LogitsSpec,
    /// Inputs that each layer has of its own, beside the layer before it.
    pub layer_inputs: Option<LayerInputsSpec>,
    pub layers: Vec<LayerSpec>,
    /// Blocks that the file has behind these layers, each to guess a token more: no part of the model itself.
    pub nextn_layers: usize,
    /// The layer of the first of these blocks, where it is to guess tokens: see `DrafterWeights`. It is one of
    /// attention.
    pub drafter: Option<LayerSpec>,
    /// A model of a file of its own that is to guess tokens. Its layers name the KV groups of this one.
    pub draft_model: Option<Box<ModelSpec>>,
    /// RoPEs and KV groups, which the layers name by their index.
    pub ropes: Vec<RopeSpec>,
    pub kv_groups: Vec<KvGroupSpec>,
    /// How the file's makers turn hidden states into an embedding.
    pub pooling: Pooling,
    /// The head of a model that ranks, whose pooling is `Rank`.
    pub rank: Option<RankSpec>,
    /// Token embedding and output projection are the same tensor.
    pub tied_output: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    pub kind: NormKind,
    pub eps: f32,
    /// Whether norms have biases beside their weights.
    pub bias: bool,
}

/// Changes of the embeddings of tokens before the first layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingSpec {
    /// Rows of the table of positions, `position_embd`, whose rows are added.
    pub positions: Option<usize>,
    /// Rows of the table of token types, `token_types`, of which one is added to each.
    pub token_types: Option<usize>,
    /// The token that ends the first text of a pair: behind it tokens take the second row of that table. Without it,
    /// all tokens are of one text and take the first row.
    pub separator: Option<u32>,
    /// Name of the tensors of the norm of the sum.
    pub norm: Option<&'static str>,
}

impl EmbeddingSpec {
    pub const PLAIN: Self = Self { positions: None, token_types: None, separator: None, norm: None };
}

/// The head of a model that ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankSpec {
    /// The hidden state that it reads: of the last token, of the first one, or their mean.
    pub input: Pooling,
    /// The activation and the norm of a matrix that may stand ahead of the labels; `None` where there never is one.
    pub dense: Option<HeadDense>,
    pub score: Score,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadDense {
    pub activation: HeadActivation,
    /// Whether a norm may follow the activation.
    pub may_norm: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadActivation {
    Tanh,
    GeluErf,
}

/// The way from the logits of labels to a relevance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// The first label's share of the softmax over all.
    Softmax,
    /// The sigmoid of the first label's.
    Sigmoid,
}

/// How the output projection's products become logits: `cap(scale * logits)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitsSpec {
    pub scale: f32,
    /// `cap(x) = softcap * tanh(x / softcap)`.
    pub softcap: Option<f32>,
}

impl LogitsSpec {
    pub const PLAIN: Self = Self { scale: 1.0, softcap: None };
}

/// Inputs of each token for each layer: `row * scale + norm(W · x)`, the row being of a table of tokens, x the token's
/// embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerInputsSpec {
    /// Columns of one layer's input.
    pub size: usize,
    pub activation: Activation,
    pub scale: f32,
    /// Epsilon of the norm of each layer's part of `W · x`.
    pub projection_eps: f32,
    /// Epsilon of the norm of what a layer makes of its input.
    pub output_eps: f32,
}

/// One layer: `x += mixer(x); x += ffn(x)`, each with the norms around it, or one of the two alone.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    pub mixer: Mixer,
    pub mixer_norms: Norms,
    pub ffn: Ffn,
    pub ffn_norms: Norms,
    /// `x += mixer(n(x)) + ffn(n(x))`, n being the norm before the mixer: there is none before the feed-forward.
    pub parallel: bool,
    /// Factor on all that the layer leaves.
    pub output_scale: Option<f32>,
}

/// Names of the norms' tensors around a mixer or a feed-forward: one of its input, one of its output before that is
/// added to the residual, one of the residual once it is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Norms {
    pub before: Option<&'static str>,
    pub after: Option<&'static str>,
    pub of_sum: Option<&'static str>,
}

impl Norms {
    pub const NONE: Self = Self { before: None, after: None, of_sum: None };

    pub const fn before(name: &'static str) -> Self {
        Self { before: Some(name), ..Self::NONE }
    }

    pub const fn after(name: &'static str) -> Self {
        Self { after: Some(name), ..Self::NONE }
    }

    pub const fn around(before: &'static str, after: &'static str) -> Self {
        Self { before: Some(before), after: Some(after), ..Self::NONE }
    }

    pub const fn of_sum(name: &'static str) -> Self {
        Self { of_sum: Some(name), ..Self::NONE }
    }
}

impl LayerSpec {
    /// A layer in the form that most models have.
    pub fn new(attention: AttentionSpec, ffn: Ffn) -> Self {
        Self::with_mixer(Mixer::Attention(attention), ffn)
    }

    /// A layer in the form that most models have, but for its mixer.
    pub fn with_mixer(mixer: Mixer, ffn: Ffn) -> Self {
        Self {
            mixer,
            mixer_norms: Norms::before("attn_norm"),
            ffn,
            ffn_norms: Norms::before("ffn_norm"),
            parallel: false,
            output_scale: None,
        }
    }
}

/// The part of a layer that lets a token see those before it: by their keys and values, or by a state that is carried
/// from token to token in place of them.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    Attention(AttentionSpec),
    Latent(LatentSpec),
    DeltaNet(DeltaNetSpec),
    Mamba2(Mamba2Spec),
    ShortConvolution(ShortConvolutionShape),
    /// The layer is a feed-forward alone.
    None,
}

impl Mixer {
    /// Columns of the mixer's projections of a token, and of its result ahead of its last matrix.
    pub(super) fn cols(&self) -> [usize; 2] {
        match self {
            Self::Attention(attention) => [attention.qkv.cols(), attention.qkv.q_cols()],
            // The result of attention takes the place of q, which is absorbed by then.
            Self::Latent(LatentSpec { shape, .. }) => [shape.q_cols().max(shape.found_cols()), shape.value_cols()],
            Self::DeltaNet(delta_net) => [delta_net.shape.cols(), delta_net.shape.value_cols()],
            Self::Mamba2(mamba2) => [mamba2.shape.cols(), mamba2.shape.inner_cols()],
            Self::ShortConvolution(shape) => [shape.cols(), shape.channels],
            Self::None => [0, 0],
        }
    }

    /// Columns of what a convolution makes of a token's projections, where a further pass takes them.
    pub(super) fn convolved_cols(&self) -> Option<usize> {
        match self {
            Self::Attention(_) | Self::Latent(_) | Self::ShortConvolution(_) | Self::None => None,
            Self::DeltaNet(delta_net) => Some(delta_net.shape.channels()),
            Self::Mamba2(mamba2) => Some(mamba2.shape.channels()),
        }
    }

    /// The layer's KV group, and what it keeps there; `None` for a layer that keeps no keys and values of its own.
    fn kv(&self) -> Option<(usize, KvLayout)> {
        match self {
            Self::Attention(AttentionSpec { kv_group, qkv, .. }) => {
                qkv.has_kv.then(|| (*kv_group, KvLayout::of(*qkv, None)))
            }
            Self::Latent(LatentSpec { kv_group, shape, .. }) => {
                Some((*kv_group, KvLayout::of(shape.queries(), Some(shape.rank))))
            }
            Self::DeltaNet(_) | Self::Mamba2(_) | Self::ShortConvolution(_) | Self::None => None,
        }
    }

    /// The index of the KV group that the layer attends to.
    fn kv_group_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Attention(AttentionSpec { kv_group, .. }) | Self::Latent(LatentSpec { kv_group, .. }) => {
                Some(kv_group)
            }
            Self::DeltaNet(_) | Self::Mamba2(_) | Self::ShortConvolution(_) | Self::None => None,
        }
    }

    /// Whether a step that leaves the layer out would lack something later: keys and values, or a state.
    pub(super) fn stores(&self) -> bool {
        match self {
            Self::Attention(attention) => attention.qkv.has_kv,
            Self::Latent(_) | Self::DeltaNet(_) | Self::Mamba2(_) | Self::ShortConvolution(_) => true,
            Self::None => false,
        }
    }

    /// The layer's states in a pool of `num_slots`, where it carries one.
    fn state_layer(&self, num_slots: usize) -> Option<StateLayerSpec> {
        match self {
            Self::Attention(_) | Self::Latent(_) | Self::None => None,
            Self::DeltaNet(delta_net) => Some(delta_net.shape.state_layer(num_slots)),
            Self::Mamba2(mamba2) => Some(mamba2.shape.state_layer(num_slots)),
            Self::ShortConvolution(shape) => Some(shape.state_layer(num_slots)),
        }
    }
}

/// Multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LatentSpec {
    pub shape: LatentShape,
    /// Elements of the latent that q is made of, where the model has one.
    pub q_rank: Option<usize>,
    /// Index into `ModelSpec::kv_groups`, and among the model's KV layers.
    pub kv_group: usize,
    pub kv_layer: usize,
    /// Index into `ModelSpec::ropes`.
    pub rope: usize,
    /// Factor on the scores.
    pub scale: f32,
    pub temperature: Option<Temperature>,
}

/// A gated delta net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaNetSpec {
    pub shape: DeltaNetShape,
    pub projections: Projections,
}

/// A Mamba-2 mixer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2Spec {
    pub shape: Mamba2Shape,
    /// Epsilon of the norm of its output, which is none of rows of the residual.
    pub eps: f32,
    /// Whether its convolution has biases.
    pub taps_bias: bool,
}

/// The tensors that hold the projections of a gated delta net.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projections {
    /// The tensors are `attn_qkv`, `attn_gate` (z), `ssm_beta` and `ssm_alpha`.
    Apart,
    /// The gates of a key head's values lie together: `attn_qkv`, `attn_gate`, `ssm_ba`.
    GatesTogether,
    /// All that a key head needs lies together, its q, k, v and z: `ssm_in`, `ssm_ba`.
    HeadsTogether,
}

#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    /// Gates, where there are some, are in the file's `attn_q`, behind the q of each head.
    pub qkv: QkvLayout,
    /// q, k and v are one tensor, `attn_qkv`.
    pub fused_qkv: bool,
    /// Index into `ModelSpec::kv_groups`.
    pub kv_group: usize,
    /// Index among the model's KV layers. A layer whose rows hold q alone has that of an earlier layer.
    pub kv_layer: usize,
    /// V is the projection of K, without the norms and the RoPE of K: the file has no `attn_v`.
    pub v_is_k: bool,
    /// Index into `ModelSpec::ropes`.
    pub rope: usize,
    pub scoring: Scoring,
    pub temperature: Option<Temperature>,
    /// A learned score of each head that takes part in the softmax, `attn_sinks`.
    pub sinks: bool,
    pub qkv_bias: Presence,
    pub output_bias: Presence,
    pub qk_norm: Option<QkNorm>,
    /// Each head of V is divided by its root mean square, in a layer that has norms of heads of q and k.
    pub v_norm: bool,
}

/// RMS norms of q and k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// A norm of each head, before RoPE.
    Heads,
    /// A norm of each head, after RoPE.
    HeadsAfterRope,
    /// One norm over all heads of a token, before RoPE.
    Rows,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Ffn {
    Dense(DenseSpec),
    Experts {
        experts: ExpertSpec,
        /// A feed-forward that serves every row beside the experts that are chosen for it.
        shared: Option<DenseSpec>,
    },
    /// `n1(dense(x)) + n2(experts(x))`, each of the two with norms of its own, and a norm before the router.
    Branches {
        dense: DenseSpec,
        experts: ExpertSpec,
    },
    /// The layer is a mixer alone.
    None,
}

impl Ffn {
    pub fn experts(&self) -> Option<&ExpertSpec> {
        match self {
            Self::Experts { experts, .. } | Self::Branches { experts, .. } => Some(experts),
            Self::Dense(_) | Self::None => None,
        }
    }
}

/// `down · (act(gate · x) * (up · x))`, or without a gate `down · act(up · x)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DenseSpec {
    pub size: usize,
    pub activation: Activation,
    pub gate: Gate,
    /// Biases of gate, up and down.
    pub bias: Presence,
    /// Whether the result is multiplied by the sigmoid of one more product of the input, `ffn_gate_inp`.
    pub row_gate: bool,
}

/// Place of a feed-forward's gate in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// There is no gate.
    None,
    /// The gate is `ffn_gate`.
    Own,
    /// The gate is the first half of `ffn_up`.
    InUp,
}

impl ModelSpec {
    /// Whether tokens attend to those behind them: such a model has no output projection, and makes hidden states
    /// alone.
    pub fn is_bidirectional(&self) -> bool {
        self.kv_groups.iter().any(|group| group.kind.is_bidirectional())
    }

    /// Columns of a token's inputs for all layers.
    pub(super) fn input_cols(&self) -> usize {
        self.layer_inputs.map_or(0, |inputs| inputs.size.saturating_mul(self.layers.len()))
    }

    /// The layers that tokens are computed and guessed with: those of the model, and behind them the drafter's or those
    /// of the draft model.
    pub(super) fn all_layers(&self) -> impl Iterator<Item = &LayerSpec> {
        self.layers.iter().chain(&self.drafter).chain(self.draft_layers())
    }

    /// The layers of the draft model.
    fn draft_layers(&self) -> impl Iterator<Item = &LayerSpec> {
        self.draft_model.iter().flat_map(|draft| &draft.layers)
    }

    /// The model, and behind it the draft model.
    pub(super) fn all_models(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.draft_model.as_deref())
    }

    /// The layers that carry states, in the order of the model's layers, in a pool of `num_slots`. The drafter has one
    /// behind them: the hidden state of the token before.
    pub fn state_layers(&self, num_slots: usize) -> Vec<StateLayerSpec> {
        let of_model = self.layers.iter().filter_map(|layer| layer.mixer.state_layer(num_slots));
        of_model.chain(self.drafter.iter().map(|_| StateLayerSpec::of_row(num_slots, self.hidden_size))).collect()
    }

    /// Bytes of one state of all layers that carry one; 0 for a model without such layers.
    pub fn state_bytes(&self) -> u64 {
        self.state_layers(1).iter().map(StateLayerSpec::slot_bytes).fold(0, u64::saturating_add)
    }
}
