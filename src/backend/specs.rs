//! A model's demands on a device as plain data: layouts, RoPE, layers of the KV pool, tensors to upload.

use std::ops::Range;

use crate::batch::GroupKind;
use crate::config::KvCacheDtype;
use crate::tensor::TensorView;
use crate::{Error, Result};

/// One matrix of a stack, and its bias (`[rows]`, f32) if the model has one.
#[derive(Debug, Clone, Copy)]
pub struct LinearPart<'a> {
    pub weight: TensorView<'a>,
    pub bias: Option<TensorView<'a>>,
}

/// The elements of a head that RoPE pairs: adjacent ones (llama) or the two halves (qwen).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeKind {
    Norm,
    Neox,
}

/// A rotary embedding with every scaling already folded into the frequencies.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeSpec {
    pub kind: RopeKind,
    /// The angle per position of each rotated pair. The first `2 * len()` elements of each head are rotated, the rest
    /// pass through.
    pub inv_freq: Vec<f32>,
    /// Factor on cos and sin: the attention factor of YaRN and longrope, otherwise 1.
    pub magnitude: f32,
}

/// The layout of one row of the stacked projection: gates if any, then q, k and v. q has `num_heads * head_dim`
/// numbers, k has `num_kv_heads * head_dim` and v has `num_kv_heads * value_dim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QkvLayout {
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    /// Elements of a head of V and of the attention output: at most `head_dim`. The cache has room for `head_dim`.
    pub value_dim: usize,
    /// True if a gate for each element of q precedes q. The attention output is multiplied by the gate's sigmoid.
    pub gated: bool,
    /// True if k and v follow q. A layer that attends to the keys and values of another layer has q alone.
    pub has_kv: bool,
}

impl QkvLayout {
    pub fn q_cols(self) -> usize {
        self.num_heads * self.head_dim
    }
    /// Returns the columns of all heads of K.
    pub fn k_cols(self) -> usize {
        self.num_kv_heads * self.head_dim
    }
    /// Returns the columns of all heads of V.
    pub fn v_cols(self) -> usize {
        self.num_kv_heads * self.value_dim
    }
    /// Returns the columns of the attention output, over all heads.
    pub fn out_cols(self) -> usize {
        self.num_heads * self.value_dim
    }
    /// Returns the columns of the gates, which is also the offset of q.
    pub fn gate_cols(self) -> usize {
        if self.gated { self.q_cols() } else { 0 }
    }
    /// Returns the number of heads of q, k and v in a row.
    pub fn row_heads(self) -> usize {
        self.num_heads + if self.has_kv { 2 * self.num_kv_heads } else { 0 }
    }
    pub fn cols(self) -> usize {
        let of_kv = if self.has_kv { self.k_cols() + self.v_cols() } else { 0 };
        self.gate_cols() + self.q_cols() + of_kv
    }
    /// True if heads of V have fewer elements than heads of K.
    pub fn has_short_values(self) -> bool {
        self.value_dim < self.head_dim
    }
    /// If heads of K and V differ in size, both sizes must be multiples of this, so that rows are read in whole words.
    pub const SHORT_VALUES_STEP: usize = 8;
    /// # Errors
    /// `Error::Internal` unless heads are non-zero and the query heads are a multiple of the KV heads. A head of V must
    /// not be longer than a head of K. If it is shorter, both sizes must be multiples of eight, and gates are not
    /// allowed.
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
        let is_whole = |dim: usize| dim.is_multiple_of(Self::SHORT_VALUES_STEP);
        let has_values = self.has_kv && self.value_dim > 0 && !self.gated;
        let is_right = has_values && is_whole(self.head_dim) && is_whole(self.value_dim);
        if self.value_dim > self.head_dim || (self.has_kv && self.has_short_values() && !is_right) {
            return Err(Error::internal(format!("qkv layout {self:?} has values of another size than it may")));
        }
        Ok(())
    }
}

/// The shape of multi-head latent attention (MLA; arXiv 2405.04434, section 2.1) with absorbed key and value matrices.
/// A head of q becomes as long as the latent row, and the attention output is latent too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentShape {
    pub num_heads: usize,
    /// A head of q has `plain_dim` elements without position, followed by `rope_dim` elements that RoPE rotates.
    pub plain_dim: usize,
    pub rope_dim: usize,
    /// Elements of a token's latent. The rotated key follows it in the same row of the cache.
    pub rank: usize,
    /// Elements of a head's values.
    pub value_dim: usize,
}

impl LatentShape {
    /// Returns the elements of a head of q.
    pub fn head_dim(self) -> usize {
        self.plain_dim + self.rope_dim
    }

    /// Returns the columns of q.
    pub fn q_cols(self) -> usize {
        self.num_heads * self.head_dim()
    }

    /// Returns the elements of a row of the cache.
    pub fn row_dim(self) -> usize {
        self.rank + self.rope_dim
    }

    /// Returns the layout of the absorbed queries for attention.
    pub fn queries(self) -> QkvLayout {
        let head_dim = self.row_dim();
        let value_dim = self.rank;
        QkvLayout { num_heads: self.num_heads, num_kv_heads: 1, head_dim, value_dim, gated: false, has_kv: false }
    }

    /// Returns the columns of the latent attention output, before the value matrices.
    pub fn found_cols(self) -> usize {
        self.num_heads * self.rank
    }

    /// Returns the columns of the values of all heads.
    pub fn value_cols(self) -> usize {
        self.num_heads * self.value_dim
    }

    /// # Errors
    /// `Error::Internal` if a size is zero or `rope_dim` is odd.
    pub fn validate(self) -> Result<()> {
        let sizes = [self.num_heads, self.plain_dim, self.rope_dim, self.rank, self.value_dim];
        match sizes.contains(&0) || !self.rope_dim.is_multiple_of(2) {
            true => Err(Error::internal(format!("{self:?} is no shape of latent attention"))),
            false => Ok(()),
        }
    }
}

/// Hidden streams of a token in models with several: the active one, which layers read and change, and the others.
pub const STREAMS: usize = 4;

/// The kind of a norm. RMS norm divides a row by its root mean square. LayerNorm subtracts the row's mean and divides
/// by its standard deviation. Without either, the row is only multiplied by the weights (LayerScale, arXiv 2103.17239).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    Rms,
    Layer,
    Weights,
}

/// The function that combines a feed-forward's gate with `up`. It is `act(gate) * up` unless a variant says otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Φ(x)` in its tanh approximation (arXiv 1606.08415).
    Gelu,
    /// `x * Φ(x)` exactly, computed with the error function.
    GeluErf,
    /// gpt-oss: `(clamp(up, -7, 7) + 1) * g * sigmoid(1.702 g)`, `g = min(gate, 7)`.
    ClampedSwiglu,
    /// Step 3.5: `min(silu(gate), limit) * clamp(up, -limit, limit)`. `is_limit` must accept the limit.
    ClampedSilu { limit: f32 },
    /// `max(x, 0)`. It never has a gate.
    Relu,
    /// `max(x, 0)^2` (arXiv 2109.08668).
    SquaredRelu,
    /// xIELU (arXiv 2411.13010). It never has a gate.
    Xielu(Xielu),
}

impl Activation {
    /// Low bits of a `ClampedSilu` limit that must be zero. Kernels store the number of the activation in them.
    pub const LIMIT_SPARES: u32 = 0xFF;

    /// True if `ClampedSilu` accepts this limit.
    pub fn is_limit(limit: f32) -> bool {
        limit.is_finite() && limit > 0.0 && limit.to_bits() & Self::LIMIT_SPARES == 0
    }
}

/// The parameters of xIELU: `positive x^2 + slope x` above zero, else `negative (e^min(x, eps) - 1 - x) + slope x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xielu {
    pub positive: f32,
    pub negative: f32,
    pub slope: f32,
    pub eps: f32,
}

/// The function of a gate's input; its result multiplies the attention output of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateFunction {
    Sigmoid,
    /// `ln(1 + e^x)`.
    Softplus,
}

/// One layer of the KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayerSpec {
    /// The tokens that a token attends to.
    pub kind: GroupKind,
    /// True if only the first token of a sequence attends to the first token. This is so in layers whose rows combine a
    /// token with the output of the token before. Such a layer has no window.
    pub skips_first: bool,
    pub num_blocks: usize,
    pub block_size: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    /// The length of V in latent attention, which has one KV head. V is the beginning of K's row and is not stored
    /// again.
    pub latent: Option<usize>,
    pub dtype: KvCacheDtype,
}

impl KvLayerSpec {
    /// Elements of a head that share a scale and a minimum in int4.
    pub const INT4_BLOCK: usize = 32;
    /// Bytes of such a block: a scale and a minimum in f16, and half a byte for each element.
    const INT4_BLOCK_BYTES: usize = 4 + Self::INT4_BLOCK / 2;
    /// The largest chunk, in tokens. It exceeds every context; a higher bit tells kernels that the number is a chunk.
    const MAX_CHUNK: u32 = 1 << 30;

    /// Returns the positions that the token at `position` attends to when the cache holds `context` tokens.
    pub fn keys(&self, position: u32, context: u32) -> Range<u32> {
        let keys = self.kind.keys(position, context);
        keys.start.max(u32::from(self.skips_first && position > 0))..keys.end
    }

    /// Returns the blocks of a head in int4.
    pub fn int4_blocks(&self) -> usize {
        self.head_dim.div_ceil(Self::INT4_BLOCK)
    }

    /// # Errors
    /// `InvalidRequest` for latent rows in int4.
    ///
    /// `Error::Internal` for:
    /// - a window of zero tokens, which would exclude the token itself,
    /// - a chunk size that is not a power of two,
    /// - a window in a layer that also skips the first token,
    /// - latent rows with several heads, or rows shorter than their values.
    pub fn validate(&self) -> Result<()> {
        if self.latent.is_some() && self.dtype == KvCacheDtype::Int4 {
            let expected = "'f16', 'f32' or 'int8' for a model with latent attention";
            return Err(Error::invalid("kv_cache_dtype", self.dtype.name(), expected));
        }
        if self.latent.is_some_and(|values| values == 0 || values > self.head_dim || self.num_kv_heads != 1) {
            return Err(Error::internal(format!("a KV layer with latent rows of {self:?}")));
        }
        match self.kind {
            GroupKind::Sliding { window: 0 } => Err(Error::internal("a KV layer with a window of no tokens")),
            GroupKind::Chunked { size } if !size.is_power_of_two() || size > Self::MAX_CHUNK => {
                Err(Error::internal(format!("a KV layer with chunks of {size} tokens, which is no power of two")))
            }
            GroupKind::Full => Ok(()),
            _ if self.skips_first => Err(Error::internal("a KV layer with a window and without the first token")),
            GroupKind::Sliding { .. } | GroupKind::Chunked { .. } | GroupKind::Bidirectional { .. } => Ok(()),
        }
    }

    /// Returns the bytes of K and V of one block. A latent layer stores one row per token instead of two, and in int8
    /// two scales with it.
    pub fn block_bytes(&self) -> Option<u64> {
        let head_dim = self.head_dim as u64;
        let head = match self.dtype {
            KvCacheDtype::F16 => head_dim.checked_mul(2)?,
            KvCacheDtype::F32 => head_dim.checked_mul(4)?,
            KvCacheDtype::Int8 => head_dim.checked_add(size_of::<f32>() as u64)?,
            KvCacheDtype::Int4 => (self.int4_blocks() as u64).checked_mul(Self::INT4_BLOCK_BYTES as u64)?,
        };
        let (head, rows) = match (self.latent, self.dtype) {
            (None, _) => (head, 2),
            (Some(_), KvCacheDtype::Int8) => (head.checked_add(size_of::<f32>() as u64)?, 1),
            (Some(_), _) => (head, 1),
        };
        let heads = (self.block_size as u64).checked_mul(self.num_kv_heads as u64)?;
        head.checked_mul(rows)?.checked_mul(heads)
    }
}

/// The sizes of the largest step, for which memory is allocated at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLimits {
    pub tokens: usize,
    pub seqs: usize,
    pub logits_rows: usize,
    /// KV groups of the model.
    pub groups: usize,
    /// Blocks of the longest sequence.
    pub table_blocks: usize,
    /// States that a step may save; 0 for a model without states.
    pub state_writes: usize,
}

impl StepLimits {
    /// Returns the largest number of sequences that can decode one token each.
    pub fn most_decodes(&self) -> usize {
        self.tokens.min(self.seqs).min(self.logits_rows)
    }

    /// True if the model's layers carry recurrent states.
    pub fn has_states(&self) -> bool {
        self.state_writes > 0
    }

    /// Returns the entries of the block tables of all sequences in all groups.
    pub fn table_entries(&self) -> usize {
        self.seqs.saturating_mul(self.table_blocks).saturating_mul(self.groups)
    }

    /// Returns the number of blocks that a step may copy.
    pub fn copies(&self) -> usize {
        self.seqs.saturating_mul(self.groups)
    }
}

/// Bytes in use on the device, by purpose, and those of weights in the host's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryLedger {
    pub weights: u64,
    pub kv_cache: u64,
    pub scratch: u64,
    pub other: u64,
    /// Page-locked memory of the host that holds weights of a GPU, and the rows of experts that the CPU computes.
    pub host_weights: u64,
    /// Host memory for blocks and snapshots that the device has evicted.
    pub kv_offload: u64,
}

/// Uses of experts that lie in the host's memory, in steps of few rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExpertCacheUse {
    /// Choices of an expert that had a copy on the device, and of one that had none.
    pub hits: u64,
    pub misses: u64,
    /// Bytes copied to the device.
    pub copied_bytes: u64,
}

impl std::ops::Add for MemoryLedger {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            weights: self.weights + more.weights,
            kv_cache: self.kv_cache + more.kv_cache,
            scratch: self.scratch + more.scratch,
            other: self.other + more.other,
            host_weights: self.host_weights + more.host_weights,
            kv_offload: self.kv_offload + more.kv_offload,
        }
    }
}
