//! What most architectures read from a file's metadata in the same way. Nothing is guessed: a missing or contradictory
//! key is an error that names it; the only defaults are those that the GGUF specification states.

use super::keys::Keys;
use super::spec::{AttentionSpec, ModelSpec, Presence};
use crate::Result;
use crate::backend::{QkvLayout, RopeKind, Scoring};
use crate::batch::GroupKind;

/// Heads of no real model are near this; RoPE has a frequency for each two of their elements.
const MAX_HEAD_DIM: usize = 1 << 16;

impl Keys<'_> {
    /// The model without its layers.
    pub(super) fn model(&self) -> Result<ModelSpec> {
        Ok(ModelSpec {
            architecture: self.architecture,
            hidden_size: self.size("embedding_length")?,
            vocab_size: self.vocab_size()?,
            context_length: self.size("context_length")?,
            norm_eps: self.norm_eps()?,
            layers: Vec::new(),
            ropes: Vec::new(),
            kv_groups: Vec::new(),
            tied_output: self.gguf.tensor("output.weight").is_none(),
        })
    }

    /// Attention of a layer as it is in most models: over all tokens or the file's sliding window, scores divided by
    /// the root of the head size, no biases, no norms of q and k.
    pub(super) fn attention(&self, model: &mut ModelSpec, layer: usize, rope_kind: RopeKind) -> Result<AttentionSpec> {
        let qkv = self.heads(layer, model.hidden_size)?;
        let kind = match self.opt_u32("attention.sliding_window")?.filter(|&window| window > 0) {
            Some(window) => GroupKind::Sliding { window },
            None => GroupKind::Full,
        };
        Ok(AttentionSpec {
            qkv,
            kv_group: model.join_kv_group(kind, qkv),
            rope: self.common_rope(model, rope_kind, qkv.head_dim)?,
            scoring: Scoring { scale: 1.0 / (qkv.head_dim as f32).sqrt(), softcap: None },
            qkv_bias: Presence::Absent,
            output_bias: Presence::Absent,
            qk_norm: false,
        })
    }

    /// Heads of a layer. No number of KV heads means one per query head, no size of a head means that the hidden size
    /// is shared out among them (GGUF specification).
    fn heads(&self, layer: usize, hidden_size: usize) -> Result<QkvLayout> {
        let num_heads = self.size_of(layer, "attention.head_count")?;
        let num_kv_heads = self.opt_size_of(layer, "attention.head_count_kv")?.unwrap_or(num_heads);
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(self.error(
                "attention.head_count_kv",
                format!("is {num_kv_heads}, expected a divisor of attention.head_count ({num_heads})"),
            ));
        }
        let key_length = self.opt_size("attention.key_length")?;
        if key_length.is_none() && !hidden_size.is_multiple_of(num_heads) {
            return Err(self.error(
                "attention.head_count",
                format!("is {num_heads}, which does not divide embedding_length ({hidden_size}), and there is no attention.key_length"),
            ));
        }
        let head_dim = key_length.unwrap_or(hidden_size / num_heads);
        if head_dim > MAX_HEAD_DIM {
            let problem = format!("heads have {head_dim} elements, expected at most {MAX_HEAD_DIM}");
            return Err(self.error("attention.key_length", problem));
        }
        match self.opt_size("attention.value_length")? {
            Some(v) if v != head_dim => Err(self.error(
                "attention.value_length",
                format!("is {v} while keys have {head_dim} elements; different lengths are not supported"),
            )),
            _ => Ok(QkvLayout { num_heads, num_kv_heads, head_dim }),
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
    fn vocab_size(&self) -> Result<usize> {
        let tensor = self
            .gguf
            .tensor("token_embd.weight")
            .ok_or_else(|| self.metadata.error("token_embd.weight", "tensor is missing"))?;
        let rows = self.gguf.view(tensor).rows;
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
