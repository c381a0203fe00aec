//! Named arguments of the ops. Only `validate` compares shapes; after it, a device may index without further checks.

mod branches;
mod delta_net;
mod fusions;
mod gate_heads;
mod gate_rows;
mod in_place;
mod join_rows;
mod latent;
mod mamba;
mod mamba2;
mod scale_rows;
mod short_convolution;
mod streams;

pub use branches::{AddNorm, GateColumns};
pub use delta_net::{DeltaNet, DeltaNetWeights};
pub use fusions::{NormExperts, NormGatedLinear, NormLinear, RopeAttention};
pub use gate_heads::GateHeads;
pub use gate_rows::GateRows;
pub use in_place::{AddRows, NormInPlace, TableRow};
pub use join_rows::JoinRows;
pub use latent::{HeadProducts, RopeAndStoreLatent};
pub use mamba::{Mamba, MambaConvolution};
pub use mamba2::{Mamba2, Mamba2Weights};
pub use scale_rows::{Cap, ScaleRows};
pub use short_convolution::ShortConvolution;
pub use streams::{LevelRows, Sparsify, Streams};

use super::Backend;
use super::shapes::{BufferShape, ExpertShape, KvShape, MatrixShape, RopeShape, VectorShape, WorkShape};
use super::specs::{Activation, NormKind, QkvLayout};
use crate::batch::BlockCopy;
use crate::{Error, Result};

/// A norm of rows.
pub struct Norm<'a, B: Backend> {
    pub kind: NormKind,
    pub weight: &'a B::Vector,
    /// Added after the weights; `None` if the model has no bias.
    pub bias: Option<&'a B::Vector>,
    pub eps: f32,
}

impl<B: Backend> Clone for Norm<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Norm<'_, B> {}

impl<'a, B: Backend> Norm<'a, B> {
    /// Returns an RMS norm without a bias.
    pub fn rms(weight: &'a B::Vector, eps: f32) -> Self {
        Self { kind: NormKind::Rms, weight, bias: None, eps }
    }

    fn check(&self, len: usize) -> Result<()> {
        [Some(self.weight), self.bias].into_iter().flatten().try_for_each(|vector| check_vector("a norm", vector, len))
    }
}

fn check_vector<T: VectorShape>(what: &str, vector: &T, len: usize) -> Result<()> {
    match vector.elements() == len {
        true => Ok(()),
        false => Err(Error::internal(format!("{what} of {} elements for {len}", vector.elements()))),
    }
}

fn check_room<T: BufferShape>(what: &str, buffer: &T, rows: usize, cols: usize) -> Result<()> {
    match buffer.holds(rows, cols) {
        true => Ok(()),
        false => Err(Error::internal(format!("{what} has no room for {rows} rows of {cols}: {}", buffer.room()))),
    }
}

/// Checks the arguments of `Backend::write_rows`.
pub fn check_written<T: BufferShape>(buffer: &T, first: usize, values: &[f32], cols: usize) -> Result<()> {
    if cols == 0 || !values.len().is_multiple_of(cols) {
        return Err(Error::internal(format!("{} values are no rows of {cols}", values.len())));
    }
    check_room("the buffer of written rows", buffer, first.saturating_add(values.len() / cols), cols)
}

/// See `Ops::embed`.
pub struct Embed<'a, B: Backend> {
    pub table: &'a B::Matrix,
    pub scale: f32,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> Embed<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        check_room("embed's output", self.out, tokens, self.table.cols())
    }
}

/// See `Ops::norm_rows`.
pub struct NormRows<'a, B: Backend> {
    pub x: &'a B::Buffer,
    pub norm: Norm<'a, B>,
    pub rows: usize,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> NormRows<'_, B> {
    pub fn cols(&self) -> usize {
        self.norm.weight.elements()
    }

    pub fn validate(&self) -> Result<()> {
        self.norm.check(self.cols())?;
        check_room("norm's input", self.x, self.rows, self.cols())?;
        check_room("norm's output", self.out, self.rows, self.cols())
    }
}

/// See `Ops::linear`.
pub struct Linear<'a, B: Backend> {
    pub x: &'a B::Buffer,
    pub matrix: &'a B::Matrix,
    pub rows: usize,
    pub out: &'a mut B::Buffer,
    /// True if the products are added to the contents of `out`.
    pub add: bool,
}

impl<B: Backend> Linear<'_, B> {
    pub fn validate(&self) -> Result<()> {
        check_room("linear's input", self.x, self.rows, self.matrix.cols())?;
        check_room("linear's output", self.out, self.rows, self.matrix.rows())
    }
}

/// See `Ops::gated_activation`.
pub struct GatedActivation<'a, B: Backend> {
    pub gate_up: &'a B::Buffer,
    pub activation: Activation,
    pub rows: usize,
    /// Columns of the output.
    pub cols: usize,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> GatedActivation<'_, B> {
    pub fn validate(&self) -> Result<()> {
        check_gate(self.activation)?;
        check_room("gate and up", self.gate_up, self.rows, self.cols.saturating_mul(2))?;
        check_room("the activation's output", self.out, self.rows, self.cols)
    }
}

fn check_gate(activation: Activation) -> Result<()> {
    match activation {
        Activation::Relu | Activation::Xielu(_) => {
            Err(Error::internal(format!("{activation:?} as the activation of a gate")))
        }
        Activation::ClampedSilu { limit } if !Activation::is_limit(limit) => {
            Err(Error::internal(format!("an activation's limit of {limit}")))
        }
        _ => Ok(()),
    }
}

/// See `Ops::activation`.
pub struct Activate<'a, B: Backend> {
    pub x: &'a B::Buffer,
    pub activation: Activation,
    pub rows: usize,
    pub cols: usize,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> Activate<'_, B> {
    pub fn validate(&self) -> Result<()> {
        check_room("the activation's input", self.x, self.rows, self.cols)?;
        check_room("the activation's output", self.out, self.rows, self.cols)?;
        match self.activation {
            Activation::Silu
            | Activation::Gelu
            | Activation::GeluErf
            | Activation::Relu
            | Activation::SquaredRelu
            | Activation::Xielu(_) => Ok(()),
            Activation::ClampedSwiglu | Activation::ClampedSilu { .. } => {
                Err(Error::internal("an activation of a gate, without one"))
            }
        }
    }
}

/// See `Ops::experts`.
pub struct MixExperts<'a, B: Backend> {
    pub x: &'a B::Buffer,
    /// Rows for the router, if it does not read `x`.
    pub routed: Option<&'a B::Buffer>,
    pub experts: &'a B::Experts,
    pub rows: usize,
    /// Intermediate results. All layers with such experts share the buffers.
    pub work: &'a mut B::ExpertWork,
    pub out: &'a mut B::Buffer,
    /// True if the sum over the experts is added to the contents of `out`.
    pub add: bool,
}

impl<B: Backend> MixExperts<'_, B> {
    pub fn validate(&self) -> Result<()> {
        check_experts::<B>(self.experts, self.work, self.rows)?;
        let hidden = self.experts.spec().hidden_size;
        check_room("the experts' input", self.x, self.rows, hidden)?;
        self.routed.map_or(Ok(()), |x| check_room("the router's input", x, self.rows, hidden))?;
        check_room("the experts' output", self.out, self.rows, hidden)
    }
}

fn check_experts<B: Backend>(experts: &B::Experts, work: &B::ExpertWork, rows: usize) -> Result<()> {
    let (spec, (room, most)) = (experts.spec(), work.room());
    spec.check_room(rows, room, most)
}

/// See `Ops::rope_angles`.
pub struct RopeAngles<'a, B: Backend> {
    pub rope: &'a B::Rope,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> RopeAngles<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        check_room("the buffer of angles", self.out, tokens, 2 * self.rope.num_pairs())
    }
}

/// RMS norms of q and k. If the weights are as long as a head, each head is normed separately. If they are as long as
/// all heads of a row, these are normed together.
pub struct QkNorms<'a, B: Backend> {
    pub q: &'a B::Vector,
    /// `None` if the rows hold q alone.
    pub k: Option<&'a B::Vector>,
    /// True if each head of v is also divided by its root mean square, without weights.
    pub v: bool,
    pub eps: f32,
    /// True if the norms follow RoPE instead of preceding it. Only norms of single heads may.
    pub after_rope: bool,
}

impl<B: Backend> Clone for QkNorms<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for QkNorms<'_, B> {}

impl<B: Backend> QkNorms<'_, B> {
    /// True if one norm covers all heads of a row together instead of each head separately.
    pub fn is_of_rows(&self, layout: QkvLayout) -> bool {
        [Some(self.q), self.k].into_iter().flatten().any(|norm| norm.elements() != layout.head_dim)
    }

    fn check(&self, layout: QkvLayout) -> Result<()> {
        let of_rows = self.is_of_rows(layout);
        if of_rows && (self.after_rope || self.v) {
            return Err(Error::internal("norms of all heads of a row, after RoPE or beside those of v"));
        }
        if self.k.is_some() != layout.has_kv {
            return Err(Error::internal(format!(
                "a norm of k is needed where rows hold k, and only there: {layout:?}"
            )));
        }
        let lens = if of_rows { [layout.q_cols(), layout.k_cols()] } else { [layout.head_dim; 2] };
        let norms = [Some(self.q), self.k].into_iter().zip(lens);
        norms
            .filter_map(|(norm, len)| Some((norm?, len)))
            .try_for_each(|(norm, len)| check_vector("a norm of q or k", norm, len))
    }
}

/// Scales up the queries of far positions, so that attention stays sharp over many keys:
/// `q *= 1 + scale * ln(1 + floor((position + offset) / context))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    pub scale: f32,
    pub context: u32,
    pub offset: u32,
}

impl Temperature {
    /// Leaves all queries unscaled.
    pub const NONE: Self = Self { scale: 0.0, context: 1, offset: 0 };

    /// Returns the factor on the queries of a position.
    pub fn at(self, position: u32) -> f32 {
        1.0 + self.scale * (1.0 + ((position + self.offset) / self.context) as f32).ln()
    }
}

/// Turns the projected q and k into those of attention: RoPE, with optional norms and temperature.
pub struct Rotation<'a, B: Backend> {
    pub norms: Option<QkNorms<'a, B>>,
    pub rope: &'a B::Rope,
    /// The angles of `rope` at the positions of the step's tokens.
    pub angles: &'a B::Buffer,
    pub temperature: Option<Temperature>,
}

impl<B: Backend> Clone for Rotation<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Rotation<'_, B> {}

/// See `Ops::rope_and_store_kv`.
pub struct RopeAndStore<'a, B: Backend> {
    pub qkv: &'a mut B::Buffer,
    pub layout: QkvLayout,
    pub rotation: Rotation<'a, B>,
    /// The KV group of the layer.
    pub group: usize,
    pub kv: &'a mut B::KvLayer,
}

impl<B: Backend> RopeAndStore<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        check_rotation(self.layout, &self.rotation, self.kv, tokens)?;
        check_room("qkv", self.qkv, tokens, self.layout.cols())
    }
}

fn check_rotation<B: Backend>(
    layout: QkvLayout,
    rotation: &Rotation<'_, B>,
    kv: &B::KvLayer,
    tokens: usize,
) -> Result<()> {
    check_heads(layout, kv)?;
    if kv.spec().latent.is_some() {
        return Err(Error::internal(format!("keys and values for the latent rows of {:?}", kv.spec())));
    }
    let (head_dim, num_pairs) = (layout.head_dim, rotation.rope.num_pairs());
    if 2 * num_pairs > head_dim {
        return Err(Error::internal(format!("RoPE rotates {num_pairs} pairs of heads of {head_dim}")));
    }
    if let Some(Temperature { context: 0, .. }) = rotation.temperature {
        return Err(Error::internal("a temperature of a context of no tokens"));
    }
    rotation.norms.map_or(Ok(()), |norms| norms.check(layout))?;
    check_room("the buffer of angles", rotation.angles, tokens, 2 * num_pairs)
}

fn check_heads(layout: QkvLayout, kv: &impl KvShape) -> Result<()> {
    layout.validate()?;
    let spec = kv.spec();
    if (layout.num_kv_heads, layout.head_dim) != (spec.num_kv_heads, spec.head_dim) {
        return Err(Error::internal(format!("qkv of {layout:?} for a KV layer of {spec:?}")));
    }
    Ok(())
}

/// Checks what changes the scores of attention, beside the products.
fn check_scores<V: VectorShape>(
    layout: QkvLayout,
    scoring: Scoring,
    sinks: Option<&V>,
    biases: Option<&V>,
) -> Result<()> {
    sinks.map_or(Ok(()), |sinks| check_vector("sinks", sinks, layout.num_heads))?;
    if let Some(bias) = scoring.alibi.filter(|&bias| !(bias.is_finite() && bias > 0.0) || biases.is_some()) {
        let beside = if biases.is_some() { ", beside biases" } else { "" };
        return Err(Error::internal(format!("ALiBi with a largest exponent of {bias}{beside}")));
    }
    let Some(biases) = biases else { return Ok(()) };
    let reach = bias_reach(biases, layout.num_heads);
    check_vector("biases of distances", biases, layout.num_heads * (2 * reach + 1))
}

/// Returns the largest distance with a bias of its own; see `Attention::biases`.
pub fn bias_reach(biases: &impl VectorShape, num_heads: usize) -> usize {
    (biases.elements() / num_heads).saturating_sub(1) / 2
}

/// The parameters of attention scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scoring {
    /// Factor on q·k before the softmax.
    pub scale: f32,
    /// Replaces a score by `cap * tanh(score / cap)`; `None` if the model has no cap.
    pub softcap: Option<f32>,
    /// ALiBi (arXiv 2108.12409): a score falls with the distance of its key. The number is the largest exponent of the
    /// heads' slopes, and is positive; `None` if the model has other positions.
    pub alibi: Option<f32>,
}

/// The slopes of ALiBi. The first `whole` heads have slopes `2^(-step (head + 1))`. The remaining heads fill the gaps
/// between them, from the first one on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slopes {
    /// The largest power of two that is at most the number of heads.
    pub whole: usize,
    pub step: f32,
}

impl Slopes {
    /// Returns the factor on a head's distances.
    pub fn of(self, head: usize) -> f32 {
        let place = if head < self.whole { (head + 1) as f32 } else { (head - self.whole) as f32 + 0.5 };
        (-self.step * place).exp2()
    }
}

impl Scoring {
    /// Returns scores with this factor and nothing else.
    pub const fn scaled(scale: f32) -> Self {
        Self { scale, softcap: None, alibi: None }
    }

    /// Returns the slopes of a layer with this many heads, if it has ALiBi.
    pub fn slopes(self, num_heads: usize) -> Option<Slopes> {
        let whole = 1 << num_heads.checked_ilog2()?;
        Some(Slopes { whole, step: self.alibi? / whole as f32 })
    }
}

/// See `Ops::attention`.
pub struct Attention<'a, B: Backend> {
    pub qkv: &'a B::Buffer,
    pub layout: QkvLayout,
    pub scoring: Scoring,
    /// One score per head that takes part in the softmax but has no value. The weights then add up to less than one.
    pub sinks: Option<&'a B::Vector>,
    /// Additions to scores by the distance of the key, which is negative before the query. Each head has values for the
    /// distances `-reach..=reach`. Keys further away take the outermost value.
    pub biases: Option<&'a B::Vector>,
    /// The KV group of the layer.
    pub group: usize,
    pub kv: &'a B::KvLayer,
    /// `[tokens, layout.out_cols()]`.
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> Attention<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        check_heads(self.layout, self.kv)?;
        check_scores(self.layout, self.scoring, self.sinks, self.biases)?;
        let spec = self.kv.spec();
        let is_latent = |values| !self.layout.has_kv && !self.layout.gated && self.layout.value_dim == values;
        let is_biased = self.scoring.alibi.is_some() || self.biases.is_some();
        if spec.latent.is_some_and(|values| !is_latent(values) || is_biased) {
            return Err(Error::internal(format!("rows of {:?} for the latent rows of {spec:?}", self.layout)));
        }
        check_room("qkv", self.qkv, tokens, self.layout.cols())?;
        check_room("attention's output", self.out, tokens, self.layout.out_cols())
    }
}

/// See `Ops::gather_rows`.
pub struct GatherRows<'a, B: Backend> {
    pub x: &'a B::Buffer,
    pub cols: usize,
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> GatherRows<'_, B> {
    pub fn validate(&self, tokens: usize, logits: usize) -> Result<()> {
        check_room("gather_rows' input", self.x, tokens, self.cols)?;
        check_room("gather_rows' output", self.out, logits, self.cols)
    }
}

/// See `Ops::copy_blocks`.
pub struct CopyBlocks<'a, B: Backend> {
    /// The KV group of the layer.
    pub group: usize,
    pub kv: &'a mut B::KvLayer,
}

impl<B: Backend> CopyBlocks<'_, B> {
    /// Checks `copies`, the copies of the step in all groups.
    pub fn validate(&self, copies: &[BlockCopy]) -> Result<()> {
        let num_blocks = self.kv.spec().num_blocks;
        let is_outside = |copy: &&BlockCopy| copy.src.max(copy.dst) as usize >= num_blocks;
        match copies.iter().filter(|copy| copy.group as usize == self.group).find(is_outside) {
            None => Ok(()),
            Some(copy) => Err(Error::internal(format!("{copy:?} is outside the pool of {num_blocks} blocks"))),
        }
    }
}
