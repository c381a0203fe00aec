//! `ModelSpec`: a model as a list of layers, each with its own mixer and feed-forward, plus the parts that they share.

mod distance_biases;
mod heads;
mod kv_groups;
mod mixers;
mod sections;
mod streams;

pub(super) use distance_biases::DistanceBiases;
pub(super) use heads::{EmbedSpec, HeadActivation, HeadDense, RankSpec, Score};
pub use kv_groups::KvGroupSpec;
pub(super) use mixers::{DeltaNetSpec, LatentSpec, Mamba2Spec, MambaNorms, MambaSpec, Projections};
pub(super) use sections::Sections;
pub(super) use streams::StreamsSpec;

use kv_groups::KvLayout;

use crate::backend::{
    Activation, ExpertSpec, GateFunction, NormKind, QkvLayout, RopeSpec, Scoring, ShortConvolutionShape,
    StateLayerSpec, Temperature,
};
use crate::config::Pooling;

/// The tensor of a layer that holds the factor on the layer's output.
pub(super) const OUTPUT_SCALE: &str = "layer_output_scale.weight";
/// The two possible names of a layer's tensor with the experts' selection bias.
pub(super) const CHOICE_BIAS: [&str; 2] = ["exp_probs_b.bias", "exp_probs_b"];

/// The presence of a certain tensor in the files of an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Absent,
    Optional,
    Required,
}

/// Everything about a model that is not a weight. The file of its architecture in `arch` creates it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// `general.architecture`.
    pub architecture: &'static str,
    pub hidden_size: usize,
    pub vocab_size: usize,
    /// Rows of the file's token tables. They equal `vocab_size`, except for some draft models with fewer rows
    /// (`table`).
    pub table_rows: usize,
    /// Number of positions that the model was trained for.
    pub context_length: usize,
    /// Kind and epsilon of every norm over rows.
    pub norm: NormSpec,
    /// Tensor name of the norm before the output projection; `None` if the last layer ends with a norm.
    pub output_norm: Option<&'static str>,
    /// Factor on the token embeddings.
    pub embedding_scale: f32,
    pub embedding: EmbeddingSpec,
    pub logits: LogitsSpec,
    /// The additional input of each layer, beside the output of the previous layer.
    pub layer_inputs: Option<LayerInputsSpec>,
    /// The hidden streams of each token, in models with several.
    pub streams: Option<StreamsSpec>,
    pub layers: Vec<LayerSpec>,
    /// MTP blocks in the file after these layers. Each drafts one more token and is not part of the model itself.
    pub nextn_layers: usize,
    /// The layer of the first MTP block, if that block is used to propose draft tokens; see `DrafterWeights`. It is an
    /// attention layer.
    pub drafter: Option<LayerSpec>,
    /// A draft model from a separate file. Its layers refer to the KV groups of this model.
    pub draft_model: Option<Box<ModelSpec>>,
    /// The sections of RoPE positions, for models whose images have positions of three parts (M-RoPE).
    pub sections: Option<Sections>,
    /// RoPEs and KV groups. Layers refer to them by index.
    pub ropes: Vec<RopeSpec>,
    pub kv_groups: Vec<KvGroupSpec>,
    /// The pooling that the model was made for.
    pub pooling: Pooling,
    /// The head of a reranking model, whose pooling is `Rank`.
    pub rank: Option<RankSpec>,
    /// The head of an embedding model: the matrices that are applied after pooling.
    pub embed: Vec<EmbedSpec>,
    /// True if token embedding and output projection are one tensor.
    pub tied_output: bool,
    /// True if the output projection has a bias.
    pub output_bias: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    pub kind: NormKind,
    pub eps: f32,
    /// True if the norms over rows have weights, and if they have biases.
    pub weight: bool,
    pub bias: bool,
}

impl NormSpec {
    /// Returns the spec of RMS norms with weights.
    pub const fn rms(eps: f32) -> Self {
        Self { kind: NormKind::Rms, eps, weight: true, bias: false }
    }
}

/// Changes to the token embeddings before the first layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingSpec {
    /// Rows of the position table `position_embd`, which is added to the embeddings.
    pub positions: Option<usize>,
    /// Rows of the token type table `token_types`, which is added to the embeddings.
    pub token_types: Option<usize>,
    /// The token that ends the first text of a pair. Tokens after it take the second row of `token_types`. Without it,
    /// all tokens belong to one text and take the first row.
    pub separator: Option<u32>,
    /// Tensor name of the norm of the sum.
    pub norm: Option<&'static str>,
    /// True if the sum goes through a norm without weights. The model has no tensors for it.
    pub plain_norm: bool,
}

impl EmbeddingSpec {
    pub const PLAIN: Self = Self { positions: None, token_types: None, separator: None, norm: None, plain_norm: false };
}

/// The conversion of the output projection's products to logits: `cap(scale * logits)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogitsSpec {
    pub scale: f32,
    /// `cap(x) = softcap * tanh(x / softcap)`.
    pub softcap: Option<f32>,
}

impl LogitsSpec {
    pub const PLAIN: Self = Self { scale: 1.0, softcap: None };
}

/// Per-layer inputs of each token: `row * scale + norm(W · x)`. The row comes from a table of tokens, and x is the
/// token's embedding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerInputsSpec {
    /// Columns of one layer's input.
    pub size: usize,
    pub activation: Activation,
    pub scale: f32,
    /// Epsilon of the norm over each layer's part of `W · x`.
    pub projection_eps: f32,
    /// Epsilon of the norm over the result that a layer computes from its input.
    pub output_eps: f32,
}

/// One layer: `x += mixer(x); x += ffn(x)`, each with its norms. One of the two may be absent.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    pub mixer: Mixer,
    /// A second mixer beside attention. It takes the same normed input, and its result is added as well.
    pub beside: Option<Mamba2Spec>,
    pub mixer_norms: Norms,
    pub ffn: Ffn,
    pub ffn_norms: Norms,
    /// `x += mixer(n(x)) + ffn(m(x))`, each with its own norm. Both use the mixer's norm if the feed-forward has none.
    pub parallel: bool,
    /// Epsilon of the output norms, if it differs from the other norms.
    pub after_eps: Option<f32>,
    /// Factor on the weights of the norm before the mixer.
    pub before_scale: f32,
    /// Factor on the layer's output.
    pub output_scale: Option<f32>,
}

/// Tensor names of the norms around a mixer or a feed-forward. `before` norms its input, and `after` norms its output
/// before the residual is added. `of_sum` norms the residual after the addition.
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
    /// Returns an attention layer with the norms that most models have.
    pub fn new(attention: AttentionSpec, ffn: Ffn) -> Self {
        Self::with_mixer(Mixer::Attention(attention), ffn)
    }

    /// Returns a layer that computes attention and feed-forward side by side, after one norm.
    pub fn parallel(attention: AttentionSpec, ffn: Ffn) -> Self {
        Self { ffn_norms: Norms::NONE, parallel: true, ..Self::new(attention, ffn) }
    }

    /// Returns a layer with this mixer and the norms that most models have.
    pub fn with_mixer(mixer: Mixer, ffn: Ffn) -> Self {
        Self {
            mixer,
            beside: None,
            mixer_norms: Norms::before("attn_norm"),
            ffn,
            ffn_norms: Norms::before("ffn_norm"),
            parallel: false,
            after_eps: None,
            before_scale: 1.0,
            output_scale: None,
        }
    }
}

impl LayerSpec {
    /// Returns the columns of a token's projections and of the mixer's result before its last matrix. Both mixers use
    /// the same buffer for projections, so the larger number counts.
    pub(super) fn cols(&self) -> [usize; 2] {
        let [projected, mixed] = self.mixer.cols();
        [projected.max(self.beside.map_or(0, |mamba2| mamba2.shape.cols())), mixed]
    }

    /// Returns the columns of a token's convolved projections, if a later pass reads them.
    pub(super) fn convolved_cols(&self) -> Option<usize> {
        self.mixer.convolved_cols().max(self.beside.map(|mamba2| mamba2.shape.channels()))
    }

    /// Returns the layer's states in a pool of `num_slots`, if it is recurrent.
    fn state_layer(&self, num_slots: usize) -> Option<StateLayerSpec> {
        let beside = self.beside.map(|mamba2| mamba2.shape.state_layer(num_slots));
        self.mixer.state_layer(num_slots).or(beside)
    }
}

/// The part of a layer through which a token sees the tokens before it. It reads their keys and values, or a recurrent
/// state that is carried from token to token.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    Attention(AttentionSpec),
    Latent(LatentSpec),
    DeltaNet(DeltaNetSpec),
    Mamba(MambaSpec),
    Mamba2(Mamba2Spec),
    ShortConvolution(ShortConvolutionShape),
    /// The layer has only a feed-forward.
    None,
}

impl Mixer {
    /// Returns the columns of a token's projections and of the mixer's result before its last matrix.
    fn cols(&self) -> [usize; 2] {
        match self {
            Self::Attention(attention) => [attention.qkv.cols(), attention.qkv.out_cols()],
            // The attention result overwrites q, which is no longer needed after absorption.
            Self::Latent(LatentSpec { shape, .. }) => [shape.q_cols().max(shape.found_cols()), shape.value_cols()],
            Self::DeltaNet(delta_net) => [delta_net.shape.cols(), delta_net.shape.value_cols()],
            Self::Mamba(MambaSpec { shape, .. }) => [shape.cols(), shape.channels],
            Self::Mamba2(mamba2) => [mamba2.shape.cols(), mamba2.shape.inner_cols()],
            Self::ShortConvolution(shape) => [shape.cols(), shape.channels],
            Self::None => [0, 0],
        }
    }

    /// Returns the columns of a token's convolved projections, if a later pass reads them.
    fn convolved_cols(&self) -> Option<usize> {
        match self {
            Self::Attention(_) | Self::Latent(_) | Self::ShortConvolution(_) | Self::None => None,
            Self::DeltaNet(delta_net) => Some(delta_net.shape.channels()),
            Self::Mamba(mamba) => Some(mamba.shape.channels),
            Self::Mamba2(mamba2) => Some(mamba2.shape.channels()),
        }
    }

    /// Returns the layer's KV group and its layout there; `None` for a layer that stores no keys and values.
    fn kv(&self) -> Option<(usize, KvLayout)> {
        match self {
            Self::Attention(AttentionSpec { kv_group, qkv, .. }) => {
                qkv.has_kv.then(|| (*kv_group, KvLayout::of(*qkv, None)))
            }
            Self::Latent(LatentSpec { kv_group, shape, .. }) => {
                Some((*kv_group, KvLayout::of(shape.queries(), Some(shape.rank))))
            }
            Self::DeltaNet(_) | Self::Mamba(_) | Self::Mamba2(_) | Self::ShortConvolution(_) | Self::None => None,
        }
    }

    /// Returns the index of the KV group that the layer attends to.
    fn kv_group_mut(&mut self) -> Option<&mut usize> {
        match self {
            Self::Attention(AttentionSpec { kv_group, .. }) | Self::Latent(LatentSpec { kv_group, .. }) => {
                Some(kv_group)
            }
            Self::DeltaNet(_) | Self::Mamba(_) | Self::Mamba2(_) | Self::ShortConvolution(_) | Self::None => None,
        }
    }

    /// True if later steps need the keys and values, or the state, that the layer stores.
    pub(super) fn stores(&self) -> bool {
        match self {
            Self::Attention(attention) => attention.qkv.has_kv,
            Self::Latent(_) | Self::DeltaNet(_) => true,
            Self::Mamba(_) | Self::Mamba2(_) | Self::ShortConvolution(_) => true,
            Self::None => false,
        }
    }

    /// Returns the layer's states in a pool of `num_slots`, if it is recurrent.
    fn state_layer(&self, num_slots: usize) -> Option<StateLayerSpec> {
        match self {
            Self::Attention(_) | Self::Latent(_) | Self::None => None,
            Self::DeltaNet(delta_net) => Some(delta_net.shape.state_layer(num_slots)),
            Self::Mamba(mamba) => Some(mamba.shape.state_layer(num_slots)),
            Self::Mamba2(mamba2) => Some(mamba2.shape.state_layer(num_slots)),
            Self::ShortConvolution(shape) => Some(shape.state_layer(num_slots)),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct AttentionSpec {
    pub qkv: QkvLayout,
    /// True if element-wise gates come from a separate tensor, `attn_gate`. Otherwise `attn_q` holds them after the q
    /// of each head. Only relevant to rows with gates.
    pub own_gates: bool,
    /// The function of a per-head gate, by which the head's result is multiplied. The gate is a product of the input
    /// and `attn_gate`.
    pub head_gates: Option<GateFunction>,
    /// q, k and v are one tensor, `attn_qkv`. Some converters write it for any architecture.
    pub fused_qkv: bool,
    /// Index into `ModelSpec::kv_groups`.
    pub kv_group: usize,
    /// Index among the model's KV layers. A layer whose rows hold only q uses the index of an earlier layer.
    pub kv_layer: usize,
    /// V is the projection of K without K's norm and RoPE, and the file has no `attn_v`.
    pub v_is_k: bool,
    /// Index into `ModelSpec::ropes`.
    pub rope: usize,
    pub scoring: Scoring,
    pub temperature: Option<Temperature>,
    /// The softmax includes a learned score per head, `attn_sinks`.
    pub sinks: bool,
    /// Biases of scores by the distance of a key, which come from a table in the file.
    pub biases: Option<DistanceBiases>,
    pub qkv_bias: Presence,
    pub output_bias: Presence,
    /// Limit on the absolute values of projected q, k and v.
    pub clamp: Option<f32>,
    pub qk_norm: Option<QkNorm>,
    /// Each head of V is divided by its root mean square. Only in layers with per-head norms of q and k.
    pub v_norm: bool,
}

/// RMS norms of q and k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// A norm over each head, before RoPE.
    Heads,
    /// A norm over each head, after RoPE.
    HeadsAfterRope,
    /// A norm over each head, without weights, after RoPE.
    PlainHeadsAfterRope,
    /// One norm over all heads of a token, before RoPE.
    Rows,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Ffn {
    Dense(DenseSpec),
    Experts {
        experts: ExpertSpec,
        /// A feed-forward that serves every row, beside the row's selected experts.
        shared: Option<DenseSpec>,
    },
    /// `n1(dense(x)) + n2(experts(x))`. Each branch has its own norms, and the router has a norm before it.
    Branches {
        dense: DenseSpec,
        experts: ExpertSpec,
    },
    /// The layer has only a mixer.
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

/// `down · (act(gate · x) * (up · x))`, or `down · act(up · x)` without a gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DenseSpec {
    pub size: usize,
    pub activation: Activation,
    pub gate: Gate,
    /// Biases of gate, up and down.
    pub bias: Presence,
    pub row_gate: RowGate,
    /// Gates are clipped at this many standard deviations above their mean; see `Ops::sparsify`.
    pub sparsity: Option<f32>,
}

/// Factor on the result of a feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowGate {
    None,
    /// The factor is the sigmoid of a product of the input and `ffn_gate_inp`.
    Own,
    /// The factor is a half: the results of the feed-forward and of the experts are averaged.
    Half,
}

/// The location of a feed-forward's gate in the file.
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
    /// True if tokens attend to later tokens too. Such a model has no output projection and only computes hidden
    /// states.
    pub fn is_bidirectional(&self) -> bool {
        self.kv_groups.iter().any(|group| group.kind.is_bidirectional())
    }

    /// Returns the number of elements of an embedding.
    pub fn embedding_size(&self) -> usize {
        self.embed.last().map_or(self.hidden_size, |matrix| matrix.shape[0])
    }

    /// Returns the columns of a token's inputs for all layers.
    pub(super) fn input_cols(&self) -> usize {
        self.layer_inputs.map_or(0, |inputs| inputs.size.saturating_mul(self.layers.len()))
    }

    /// Returns the layers of the model, followed by the layer of the MTP block or the layers of the draft model.
    pub(super) fn all_layers(&self) -> impl Iterator<Item = &LayerSpec> {
        self.layers.iter().chain(&self.drafter).chain(self.draft_layers())
    }

    /// Returns the layers of the draft model.
    fn draft_layers(&self) -> impl Iterator<Item = &LayerSpec> {
        self.draft_model.iter().flat_map(|draft| &draft.layers)
    }

    /// Returns the model, followed by its draft model.
    pub(super) fn all_models(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.draft_model.as_deref())
    }

    /// Returns the recurrent layers in model order, in a pool of `num_slots`. The MTP block adds a last one, for the
    /// hidden state of the previous token.
    pub fn state_layers(&self, num_slots: usize) -> Vec<StateLayerSpec> {
        let of_model = self.layers.iter().filter_map(|layer| layer.state_layer(num_slots));
        of_model.chain(self.drafter.iter().map(|_| StateLayerSpec::of_row(num_slots, self.hidden_size))).collect()
    }

    /// Returns the bytes of one state over all recurrent layers; 0 for a model without such layers.
    pub fn state_bytes(&self) -> u64 {
        self.state_layers(1).iter().map(StateLayerSpec::slot_bytes).fold(0, u64::saturating_add)
    }
}
