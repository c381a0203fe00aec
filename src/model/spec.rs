//! The hyper-parameters of a model, from its metadata. Nothing is guessed: a missing or contradictory key is an error
//! that names it; the only defaults are those that the GGUF specification states.

use super::arch::{self, Architecture};
use super::experts::{self, FeedForward};
use super::keys::Keys;
use super::rope;
use crate::Result;
use crate::backend::{AttentionArgs, QkvLayout, RopeSpec};
use crate::gguf::GgufFile;

/// Everything about a decoder that is not a weight.
#[derive(Debug, Clone)]
pub struct DecoderSpec {
    pub(super) arch: &'static Architecture,
    pub num_layers: usize,
    pub hidden_size: usize,
    pub feed_forward: FeedForward,
    pub vocab_size: usize,
    /// Positions the model was trained for.
    pub context_length: usize,
    pub qkv: QkvLayout,
    pub norm_eps: f32,
    pub rope: RopeSpec,
    pub attention: AttentionArgs,
    /// Token embedding and output projection are the same tensor.
    pub tied_output: bool,
}

impl DecoderSpec {
    /// # Errors
    /// `Error::ModelFile` naming the key or tensor that is missing, contradictory or not supported.
    pub fn from_gguf(gguf: &GgufFile) -> Result<Self> {
        let metadata = gguf.metadata();
        let name = metadata.str("general.architecture")?;
        let arch = arch::find(name).ok_or_else(|| {
            metadata.error(
                "general.architecture",
                format!("architecture '{name}' is not supported; this version runs {}", arch::names()),
            )
        })?;
        let keys = Keys { metadata, prefix: arch.name };

        let hidden_size = keys.size("embedding_length")?;
        let num_heads = keys.size("attention.head_count")?;
        let qkv = QkvLayout {
            num_heads,
            num_kv_heads: keys.kv_heads(num_heads)?,
            head_dim: keys.head_dim(hidden_size, num_heads)?,
        };
        let norm_eps = keys.norm_eps()?;
        let window = keys.opt_u32("attention.sliding_window")?.filter(|&w| w > 0);
        let rope = rope::spec(&keys, arch.rope_kind, qkv.head_dim, gguf)?;
        let attention = AttentionArgs { scale: 1.0 / (qkv.head_dim as f32).sqrt(), softcap: None, window };
        Ok(Self {
            arch,
            num_layers: keys.layers()?,
            hidden_size,
            feed_forward: experts::feed_forward(&keys, arch, hidden_size)?,
            vocab_size: keys.vocab_size(gguf)?,
            context_length: keys.size("context_length")?,
            qkv,
            norm_eps,
            rope,
            attention,
            tied_output: gguf.tensor("output.weight").is_none(),
        })
    }

    pub fn architecture(&self) -> &'static str {
        self.arch.name
    }
}

/// What the keys say of a decoder.
impl Keys<'_> {
    /// Absent means one KV head per query head (GGUF specification).
    fn kv_heads(&self, num_heads: usize) -> Result<usize> {
        let kv = self.opt_size("attention.head_count_kv")?.unwrap_or(num_heads);
        if !num_heads.is_multiple_of(kv) {
            return Err(self.error(
                "attention.head_count_kv",
                format!("is {kv}, expected a divisor of attention.head_count ({num_heads})"),
            ));
        }
        Ok(kv)
    }

    /// `attention.key_length`, else hidden size / heads (GGUF specification).
    fn head_dim(&self, hidden_size: usize, num_heads: usize) -> Result<usize> {
        let key_length = self.opt_size("attention.key_length")?;
        if key_length.is_none() && !hidden_size.is_multiple_of(num_heads) {
            return Err(self.error(
                "attention.head_count",
                format!("is {num_heads}, which does not divide embedding_length ({hidden_size}), and there is no attention.key_length"),
            ));
        }
        let head_dim = key_length.unwrap_or(hidden_size / num_heads);
        match self.opt_size("attention.value_length")? {
            Some(v) if v != head_dim => Err(self.error(
                "attention.value_length",
                format!("is {v} while keys have {head_dim} elements; different lengths are not supported"),
            )),
            _ => Ok(head_dim),
        }
    }

    fn norm_eps(&self) -> Result<f32> {
        let key = "attention.layer_norm_rms_epsilon";
        let eps = self.metadata.f32(&self.full(key))?;
        if !(eps.is_finite() && (0.0..1.0).contains(&eps)) {
            return Err(self.error(key, format!("is {eps}, expected a small positive number")));
        }
        Ok(eps)
    }

    /// The embedding table's rows; the token list and `vocab_size`, where present, must agree.
    fn vocab_size(&self, gguf: &GgufFile) -> Result<usize> {
        let tensor = gguf
            .tensor("token_embd.weight")
            .ok_or_else(|| self.metadata.error("token_embd.weight", "tensor is missing"))?;
        let rows = gguf.view(tensor).rows;
        if let Some(tokens) = self.metadata.opt_strings("tokenizer.ggml.tokens")?
            && tokens.len() != rows
        {
            return Err(self.metadata.error(
                "tokenizer.ggml.tokens",
                format!("holds {} tokens while token_embd.weight has {rows} rows", tokens.len()),
            ));
        }
        match self.opt_size("vocab_size")? {
            Some(v) if v != rows => {
                Err(self.error("vocab_size", format!("is {v} while token_embd.weight has {rows} rows")))
            }
            _ => Ok(rows),
        }
    }
}
