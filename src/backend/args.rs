//! Arguments of the backend's operations: plain data, checked once before any pointer is formed.

use crate::batch::Batch;
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

/// What makes q and k of what was projected: RMSNorm per head where given, then RoPE.
pub struct Rotation<'a, Vector, Buffer> {
    /// Of q and of k.
    pub norms: [Option<&'a Vector>; 2],
    pub eps: f32,
    pub rope: &'a RopeSpec,
    /// Those of `rope`, for the batch's rows.
    pub angles: &'a Buffer,
}

/// How q, k and v lie in one row of the stacked projection: `[num_heads | num_kv_heads | num_kv_heads] * head_dim`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QkvLayout {
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
}

impl QkvLayout {
    pub fn q_cols(self) -> usize {
        self.num_heads * self.head_dim
    }
    pub fn kv_cols(self) -> usize {
        self.num_kv_heads * self.head_dim
    }
    pub fn cols(self) -> usize {
        self.q_cols() + 2 * self.kv_cols()
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

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionArgs {
    /// Factor on q·k before the softmax.
    pub scale: f32,
    /// `cap * tanh(score / cap)`, where the model has it.
    pub softcap: Option<f32>,
    /// A token attends to itself and the `window - 1` tokens before it.
    pub window: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
}

/// One layer's share of the KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayerSpec {
    pub num_blocks: usize,
    pub block_size: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub dtype: KvCacheDtype,
}

impl KvLayerSpec {
    /// Bytes of K and V of one block.
    pub fn block_bytes(&self) -> Option<u64> {
        let element = match self.dtype {
            KvCacheDtype::F16 => 2u64,
            KvCacheDtype::F32 => 4,
        };
        [self.block_size, self.num_kv_heads, self.head_dim]
            .iter()
            .try_fold(2 * element, |acc, &n| acc.checked_mul(n as u64))
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

impl MemoryLedger {
    pub fn total(&self) -> u64 {
        self.weights + self.kv_cache + self.scratch + self.other
    }
}

/// Checks that the parts of a batch fit each other, so that the ops may index without asking again. Block ids and slots
/// are checked where they are used, against the pool.
///
/// # Errors
/// `Error::Internal`: batches are made by the scheduler, never by a caller.
pub fn validate_batch(batch: &Batch) -> Result<()> {
    let (n, s) = (batch.num_tokens(), batch.num_seqs());
    let ensure = |ok: bool, what: &str| {
        if ok { Ok(()) } else { Err(Error::internal(format!("batch of {n} tokens, {s} sequences: {what}"))) }
    };
    ensure(batch.positions.len() == n, "positions are not one per token")?;
    ensure(is_cumulative(&batch.cu_seqlens_q, s, n), "cu_seqlens_q does not cut the tokens into sequences")?;
    for seq in 0..s {
        let positions = &batch.positions[batch.tokens_of(seq)];
        ensure(positions.is_sorted_by(|a, b| a < b), "positions do not increase")?;
        ensure(positions.last().is_none_or(|&last| last < batch.context_lens[seq]), "a token is beyond its context")?;
    }
    for group in &batch.groups {
        ensure(group.slot_mapping.len() == n, "slots are not one per token")?;
        ensure(is_cumulative(&group.cu_blocks, s, group.block_tables.len()), "cu_blocks does not cut block_tables")?;
    }
    ensure(batch.logits_indices.iter().all(|&index| (index as usize) < n), "logits of a token that is not there")
}

/// Whether `offsets` cuts `total` things into `parts` runs.
fn is_cumulative(offsets: &[u32], parts: usize, total: usize) -> bool {
    offsets.len() == parts + 1
        && offsets[0] == 0
        && offsets.is_sorted()
        && offsets.last().is_some_and(|&last| last as usize == total)
}
