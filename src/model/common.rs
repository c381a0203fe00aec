//! Metadata that most architectures read in the same way. Nothing is guessed: a missing or contradictory key is an
//! error that names it; the only defaults are those that the GGUF specification states.

use super::keys::Keys;
use super::rope::LayerRope;
use super::spec::{
    AttentionSpec, EmbeddingSpec, HeadActivation, HeadDense, LogitsSpec, ModelSpec, NormSpec, Presence, RankSpec, Score,
};
use crate::Result;
use crate::backend::{NormKind, QkvLayout, Scoring, Temperature};
use crate::batch::GroupKind;
use crate::config::Pooling;

/// Heads of no real model are near this; RoPE has a frequency for each two of their elements.
const MAX_HEAD_DIM: usize = 1 << 12;

/// Architectures whose models may have a head that ranks.
const RANKS: [&str; 4] = ["bert", "modern-bert", "qwen3", "qwen3vl"];

/// The keys that give a head's elements, and how many of them RoPE rotates.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadKeys {
    key_length: &'static str,
    value_length: &'static str,
    rope_dims: &'static str,
}

impl HeadKeys {
    pub(super) const OF_FILE: Self = Self {
        key_length: "attention.key_length",
        value_length: "attention.value_length",
        rope_dims: "rope.dimension_count",
    };
    /// Keys of layers with a window, in files where these differ from the others.
    pub(super) const OF_WINDOWS: Self = Self {
        key_length: "attention.key_length_swa",
        value_length: "attention.value_length_swa",
        rope_dims: "rope.dimension_count_swa",
    };
}

impl Keys<'_> {
    /// The model without its layers, with RMS norms.
    pub(super) fn model(&self) -> Result<ModelSpec> {
        let eps = self.eps("attention.layer_norm_rms_epsilon")?;
        self.model_with(NormSpec { kind: NormKind::Rms, eps, bias: false })
    }

    /// The model without its layers.
    pub(super) fn model_with(&self, norm: NormSpec) -> Result<ModelSpec> {
        if self.opt_bool("attention.causal")? == Some(false) {
            let problem = "is false: attention in both directions is not supported in this architecture";
            return Err(self.error("attention.causal", problem));
        }
        self.model_that_pools(norm, self.pooling(Pooling::Last)?)
    }

    /// The model without its layers and with this pooling.
    pub(super) fn model_that_pools(&self, norm: NormSpec, pooling: Pooling) -> Result<ModelSpec> {
        let ranks = pooling == Pooling::Rank;
        let vocab_size = self.vocab_size()?;
        Ok(ModelSpec {
            architecture: self.architecture,
            hidden_size: self.size("embedding_length")?,
            vocab_size,
            table_rows: vocab_size,
            context_length: self.size("context_length")?,
            norm,
            output_norm: Some("output_norm"),
            embedding_scale: 1.0,
            embedding: EmbeddingSpec::PLAIN,
            logits: LogitsSpec::PLAIN,
            layer_inputs: None,
            layers: Vec::new(),
            nextn_layers: 0,
            drafter: None,
            draft_model: None,
            ropes: Vec::new(),
            kv_groups: Vec::new(),
            pooling,
            rank: if ranks { Some(self.rank()?) } else { None },
            tied_output: self.gguf.tensor("output.weight").is_none(),
        })
    }

    /// The key is one of llama.cpp, whose numbers these are. A file without it, or one that says 0 (no pooling), is of
    /// a model that was made for something else: to generate, where only the last token has seen the whole text, or to
    /// fill gaps, where all have, and the first one has nothing else to do.
    pub(super) fn pooling(&self, otherwise: Pooling) -> Result<Pooling> {
        let ranks = RANKS.contains(&self.architecture);
        match self.opt_u32("pooling_type")? {
            // llama.cpp's converter writes the key of models that rank for Qwen3 alone; the head tells of the others.
            None | Some(0) if ranks && self.gguf.tensor("cls.output.weight").is_some() => Ok(Pooling::Rank),
            None | Some(0) => Ok(otherwise),
            Some(3) => Ok(Pooling::Last),
            Some(1) => Ok(Pooling::Mean),
            Some(2) => Ok(Pooling::Cls),
            // The heads of others differ in what becomes of their values.
            Some(4) if ranks => Ok(Pooling::Rank),
            Some(4) => {
                let problem = format!("is 4: of the models that rank only those of {} are supported", RANKS.join(", "));
                Err(self.error("pooling_type", problem))
            }
            Some(other) => Err(self.error("pooling_type", format!("is {other}, expected 0 to 4"))),
        }
    }

    /// The head of a model that ranks, as llama.cpp and transformers have it in the architecture.
    fn rank(&self) -> Result<RankSpec> {
        let (otherwise, activation, may_norm) = match self.architecture {
            "bert" => (Pooling::Cls, HeadActivation::Tanh, false),
            // llama.cpp's converter wrote no key at first, when it knew one such model.
            "modern-bert" => (Pooling::Mean, HeadActivation::GeluErf, true),
            _ => return Ok(RankSpec { input: Pooling::Last, dense: None, score: Score::Softmax }),
        };
        let key = "classifier.pooling_type";
        let input = match self.opt_u32(key)? {
            None => otherwise,
            Some(1) => Pooling::Mean,
            Some(2) => Pooling::Cls,
            Some(other) => return Err(self.error(key, format!("is {other}, expected 1 (mean) or 2 (first token)"))),
        };
        Ok(RankSpec { input, dense: Some(HeadDense { activation, may_norm }), score: Score::Sigmoid })
    }

    /// Attention of a layer as it is in most models: over all tokens or the file's sliding window, scores divided by
    /// the root of the head size, no biases, no norms of q and k.
    pub(super) fn attention(&self, model: &mut ModelSpec, layer: usize, rope: LayerRope) -> Result<AttentionSpec> {
        self.attention_over(model, layer, self.window()?, rope)
    }

    /// Reads attention as `attention` does, over a window that is this layer's, or over all tokens.
    pub(super) fn attention_over(
        &self,
        model: &mut ModelSpec,
        layer: usize,
        window: Option<u32>,
        rope: LayerRope,
    ) -> Result<AttentionSpec> {
        self.attention_by(HeadKeys::OF_FILE, model, layer, window, rope)
    }

    /// Reads attention as `attention_over` does, the shape of its heads by other keys.
    pub(super) fn attention_by(
        &self,
        keys: HeadKeys,
        model: &mut ModelSpec,
        layer: usize,
        window: Option<u32>,
        rope: LayerRope,
    ) -> Result<AttentionSpec> {
        let kind = window.map_or(GroupKind::Full, |window| GroupKind::Sliding { window });
        self.attention_of_kind(keys, model, layer, kind, rope)
    }

    /// Reads attention as `attention_by` does, over the tokens that `kind` says.
    pub(super) fn attention_of_kind(
        &self,
        keys: HeadKeys,
        model: &mut ModelSpec,
        layer: usize,
        kind: GroupKind,
        rope: LayerRope,
    ) -> Result<AttentionSpec> {
        let qkv = self.heads(keys, layer, model.hidden_size)?;
        let rope = self.rope(keys.rope_dims, model, rope, qkv.head_dim)?;
        Ok(AttentionSpec {
            qkv,
            fused_qkv: false,
            kv_layer: model.num_kv_layers(),
            kv_group: model.join_kv_group(kind, qkv, None),
            v_is_k: false,
            rope,
            scoring: Scoring { scale: 1.0 / (qkv.head_dim as f32).sqrt(), softcap: None },
            temperature: None,
            sinks: false,
            qkv_bias: Presence::Absent,
            output_bias: Presence::Absent,
            qk_norm: None,
            v_norm: false,
        })
    }

    /// The factor on queries of far positions, where the file has it.
    pub(super) fn temperature(&self) -> Result<Option<Temperature>> {
        let Some(scale) = self.opt_positive("attention.temperature_scale")? else { return Ok(None) };
        let context = self.size("rope.scaling.original_context_length")? as u32;
        Ok(Some(Temperature { scale, context }))
    }

    /// The file's sliding window.
    pub(super) fn window(&self) -> Result<Option<u32>> {
        Ok(self.opt_u32("attention.sliding_window")?.filter(|&window| window > 0))
    }

    /// The window of an architecture whose layers are not all of one kind.
    pub(super) fn required_window(&self) -> Result<u32> {
        let key = "attention.sliding_window";
        self.window()?.ok_or_else(|| self.error(key, "is missing or 0, expected the tokens of the window"))
    }

    /// Heads of a layer. No number of KV heads means one per query head, no size of a head means that the hidden size
    /// is shared out among them (GGUF specification).
    pub(super) fn heads(&self, keys: HeadKeys, layer: usize, hidden_size: usize) -> Result<QkvLayout> {
        let num_heads = self.size_of(layer, "attention.head_count")?;
        let num_kv_heads = self.opt_size_of(layer, "attention.head_count_kv")?.unwrap_or(num_heads);
        if !num_heads.is_multiple_of(num_kv_heads) {
            return Err(self.error(
                "attention.head_count_kv",
                format!("is {num_kv_heads}, expected a divisor of attention.head_count ({num_heads})"),
            ));
        }
        let key_length = self.opt_size(keys.key_length)?;
        if key_length.is_none() && !hidden_size.is_multiple_of(num_heads) {
            return Err(self.error(
                "attention.head_count",
                format!(
                    "is {num_heads}, which does not divide embedding_length ({hidden_size}), and there is no {}",
                    keys.key_length
                ),
            ));
        }
        let head_dim = key_length.unwrap_or(hidden_size / num_heads);
        if head_dim > MAX_HEAD_DIM {
            let problem = format!("heads have {head_dim} elements, expected at most {MAX_HEAD_DIM}");
            return Err(self.error(keys.key_length, problem));
        }
        match self.opt_size(keys.value_length)? {
            Some(v) if v != head_dim => Err(self.error(
                keys.value_length,
                format!("is {v} while keys have {head_dim} elements; different lengths are not supported"),
            )),
            _ => Ok(QkvLayout { num_heads, num_kv_heads, head_dim, gated: false, has_kv: true }),
        }
    }

    /// The small number that a norm adds before it divides.
    pub(super) fn eps(&self, key: &str) -> Result<f32> {
        let eps = self.metadata.f32(&self.full(key))?;
        if !(eps.is_finite() && (0.0..1.0).contains(&eps)) {
            return Err(self.error(key, format!("is {eps}, expected a small positive number")));
        }
        Ok(eps)
    }

    /// A factor or a cap: a finite number above zero, where the file has it.
    pub(super) fn opt_positive(&self, key: &str) -> Result<Option<f32>> {
        match self.opt_f32(key)? {
            Some(value) if value <= 0.0 => Err(self.error(key, format!("is {value}, expected a number above 0"))),
            value => Ok(value),
        }
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
