//! A model's demands on a device, as plain data: layouts, RoPE, shares of the KV pool, tensors to upload.

use std::ops::Range;

use crate::batch::GroupKind;
use crate::config::KvCacheDtype;
use crate::tensor::TensorView;
use crate::{Error, Result};

/// One matrix of a stack, with its bias (`[rows]`, f32) where the model has one.
#[derive(Debug, Clone, Copy)]
pub struct LinearPart<'a> {
    pub weight: TensorView<'a>,
    pub bias: Option<TensorView<'a>>,
}

/// How RoPE pairs the elements of a head: adjacent ones (llama), or the two halves (qwen).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeKind {
    Norm,
    Neox,
}

/// Rotary embedding with every scaling already folded into the frequencies.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    pub kind: RopeKind,
    /// Angle per position of each rotated pair; `2 * len()` elements of each head are rotated, the rest pass through.
    pub inv_freq: Vec<f32>,
    /// Factor on cos and sin (YaRN's and longrope's attention factor), else 1.
    pub magnitude: f32,
}

/// How q, k and v lie in one row of the stacked projection: `[num_heads | num_kv_heads | num_kv_heads] * head_dim`,
/// with gates ahead of them where there are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QkvLayout {
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    /// Whether a gate of each element of q lies ahead of q. Its sigmoid is a factor on what attention finds.
    pub gated: bool,
    /// Whether k and v lie behind q. The rows of a layer that attends to another layer's keys and values hold q alone.
    pub has_kv: bool,
}

impl QkvLayout {
    pub fn q_cols(self) -> usize {
        self.num_heads * self.head_dim
    }
    pub fn kv_cols(self) -> usize {
        self.num_kv_heads * self.head_dim
    }
    /// Columns of the gates, behind which q begins.
    pub fn gate_cols(self) -> usize {
        if self.gated { self.q_cols() } else { 0 }
    }
    /// Heads of gates, q, k and v that a row holds.
    pub fn row_heads(self) -> usize {
        let of_kv = if self.has_kv { 2 * self.num_kv_heads } else { 0 };
        self.num_heads + of_kv + if self.gated { self.num_heads } else { 0 }
    }
    pub fn cols(self) -> usize {
        self.row_heads() * self.head_dim
    }
    /// # Errors
    /// `Error::Internal` unless heads are non-zero and q heads are a multiple of kv heads.
    pub fn validate(self) -> Result<()> {
        if self.num_kv_heads == 0
            || self.head_dim == 0
            || !self.num_heads.is_multiple_of(self.num_kv_heads)
            || self.num_heads == 0
        {
            return Err(Error::internal(format!(
                "qkv layout {self:?} is not a whole number of query heads per kv head"
            )));
        }
        Ok(())
    }
}

/// Shape of multi-head latent attention (MLA; arXiv 2405.04434, section 2.1), with the matrices of keys and values
/// absorbed: a head of q becomes one of the latent row's length, and what attention finds is latent as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentShape {
    pub num_heads: usize,
    /// Elements of a head of q that know nothing of positions, and of those behind them, which RoPE rotates.
    pub plain_dim: usize,
    pub rope_dim: usize,
    /// Elements of a token's latent; its rotated key lies behind them in one row of the cache.
    pub rank: usize,
    /// Elements of a head's values.
    pub value_dim: usize,
}

impl LatentShape {
    /// Elements of a head of q.
    pub fn head_dim(self) -> usize {
        self.plain_dim + self.rope_dim
    }

    /// Columns of q.
    pub fn q_cols(self) -> usize {
        self.num_heads * self.head_dim()
    }

    /// Elements of a row of the cache.
    pub fn row_dim(self) -> usize {
        self.rank + self.rope_dim
    }

    /// How the absorbed queries lie, as attention takes them.
    pub fn queries(self) -> QkvLayout {
        let head_dim = self.row_dim();
        QkvLayout { num_heads: self.num_heads, num_kv_heads: 1, head_dim, gated: false, has_kv: false }
    }

    /// Columns of what attention finds, ahead of the matrices of values.
    pub fn found_cols(self) -> usize {
        self.num_heads * self.rank
    }

    /// Columns of the values of all heads.
    pub fn value_cols(self) -> usize {
        self.num_heads * self.value_dim
    }

    /// # Errors
    /// `Error::Internal` unless heads have elements of each kind, and RoPE has whole pairs.
    pub fn validate(self) -> Result<()> {
        let sizes = [self.num_heads, self.plain_dim, self.rope_dim, self.rank, self.value_dim];
        match sizes.contains(&0) || !self.rope_dim.is_multiple_of(2) {
            true => Err(Error::internal(format!("{self:?} is no shape of latent attention"))),
            false => Ok(()),
        }
    }
}

/// Kind of a norm: RMS norm divides a row by its root mean square; LayerNorm subtracts the row's mean, then divides by
/// its standard deviation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    Rms,
    Layer,
}

/// How a feed-forward combines its gate with `up`, the values that the gate lets pass: `act(gate) * up`, but for
/// gpt-oss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Φ(x)` in the form of the tanh (arXiv 1606.08415).
    Gelu,
    /// `x * Φ(x)` as it is, by the error function.
    GeluErf,
    /// gpt-oss: `(clamp(up, -7, 7) + 1) * g * sigmoid(1.702 g)`, `g = min(gate, 7)`.
    ClampedSwiglu,
    /// `max(x, 0)^2` (arXiv 2109.08668).
    SquaredRelu,
}

/// One layer's share of the KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayerSpec {
    /// Which tokens the layer's tokens attend to: all before them, a window, or those on both sides.
    pub kind: GroupKind,
    /// Whether no token but the first itself attends to a sequence's first token, as in a layer whose rows are made of
    /// a token and what was before it. Such a layer has no window.
    pub skips_first: bool,
    pub num_blocks: usize,
    pub block_size: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    /// In latent attention, where there is one KV head: V is the first so many elements of K's row, and is not stored
    /// beside it.
    pub latent: Option<usize>,
    pub dtype: KvCacheDtype,
}

impl KvLayerSpec {
    /// Elements of a head of V.
    pub fn value_dim(&self) -> usize {
        self.latent.unwrap_or(self.head_dim)
    }

    /// Positions of the tokens that the token at `position` attends to, `context` tokens being in the cache.
    pub fn keys(&self, position: u32, context: u32) -> Range<u32> {
        let keys = self.kind.keys(position, context);
        keys.start.max(u32::from(self.skips_first && position > 0))..keys.end
    }

    /// # Errors
    /// `InvalidRequest` for latent rows in int8: the key behind a latent is so much larger than the latent that both
    /// would need scales of their own. `Error::Internal` for a window of no tokens: not even the token itself would be
    /// in it; for a window that leaves out the first token besides; and for latent rows of several heads, or shorter
    /// than the values in them.
    pub fn validate(&self) -> Result<()> {
        if self.latent.is_some() && self.dtype == KvCacheDtype::Int8 {
            let expected = "'f16' or 'f32' for a model with latent attention";
            return Err(Error::invalid("kv_cache_dtype", self.dtype.name(), expected));
        }
        if self.latent.is_some_and(|values| values == 0 || values > self.head_dim || self.num_kv_heads != 1) {
            return Err(Error::internal(format!("a KV layer with latent rows of {self:?}")));
        }
        match self.kind {
            GroupKind::Sliding { window: 0 } => Err(Error::internal("a KV layer with a window of no tokens")),
            GroupKind::Sliding { .. } | GroupKind::Bidirectional { .. } if self.skips_first => {
                Err(Error::internal("a KV layer with a window and without the first token"))
            }
            GroupKind::Full | GroupKind::Sliding { .. } | GroupKind::Bidirectional { .. } => Ok(()),
        }
    }

    /// Bytes of K and V of one block; latent rows are one where others are two.
    pub fn block_bytes(&self) -> Option<u64> {
        let head_dim = self.head_dim as u64;
        let head = match self.dtype {
            KvCacheDtype::F16 => head_dim.checked_mul(2)?,
            KvCacheDtype::F32 => head_dim.checked_mul(4)?,
            KvCacheDtype::Int8 => head_dim.checked_add(size_of::<f32>() as u64)?,
        };
        let rows = if self.latent.is_some() { 1 } else { 2 };
        let heads = (self.block_size as u64).checked_mul(self.num_kv_heads as u64)?;
        head.checked_mul(rows)?.checked_mul(heads)
    }
}

/// Sizes of the largest step, for which memory is taken at the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    pub tokens: usize,
    pub seqs: usize,
    pub logits_rows: usize,
    /// KV groups of the model.
    pub groups: usize,
    /// Blocks of the longest sequence.
    pub table_blocks: usize,
    /// States that a step may keep; 0 for a model without states.
    pub state_writes: usize,
}

impl StepLimits {
    /// The largest batch of single rows.
    pub fn most_decodes(&self) -> usize {
        self.tokens.min(self.seqs).min(self.logits_rows)
    }

    /// Whether the model's layers carry states.
    pub(crate) fn has_states(&self) -> bool {
        self.state_writes > 0
    }

    /// Entries of the block tables of all sequences in all groups.
    pub(crate) fn table_entries(&self) -> usize {
        self.seqs.saturating_mul(self.table_blocks).saturating_mul(self.groups)
    }

    /// Blocks that a step may copy.
    pub(crate) fn copies(&self) -> usize {
        self.seqs.saturating_mul(self.groups)
    }
}

/// Bytes in use, by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryLedger {
    pub weights: u64,
    pub kv_cache: u64,
    pub scratch: u64,
    pub other: u64,
}
