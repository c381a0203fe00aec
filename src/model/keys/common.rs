//! Metadata that most architectures read in the same way. Nothing is guessed: a missing or contradictory key is an
//! error that names it. The only defaults are those of the GGUF specification.

use super::Keys;
use super::rope::LayerRope;
use crate::Result;
use crate::backend::{NormKind, QkvLayout, RopeKind, Scoring, Temperature};
use crate::batch::GroupKind;
use crate::config::Pooling;
use crate::layers::of_layer;
use crate::spec::{
    AttentionSpec, EmbeddingSpec, HeadActivation, HeadDense, LogitsSpec, ModelSpec, NormSpec, Presence, RankSpec, Score,
};

/// No real model has heads near this size. RoPE has one frequency for every two elements of a head.
const MAX_HEAD_DIM: usize = 1 << 12;

/// Architectures with reranking models.
const RANKS: [&str; 4] = ["bert", "modern-bert", "qwen3", "qwen3vl"];

/// The keys for the number of elements per head, and for the elements that RoPE rotates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadKeys {
    key_length: &'static str,
    value_length: &'static str,
    rope_dims: &'static str,
    /// True if RoPE rotates half of a head, not all of it, in files without the key.
    rotates_half: bool,
}

impl HeadKeys {
    pub(crate) const OF_FILE: Self = Self {
        key_length: "attention.key_length",
        value_length: "attention.value_length",
        rope_dims: "rope.dimension_count",
        rotates_half: false,
    };
    /// Keys of sliding window layers, in files with separate head sizes for them.
    pub(crate) const OF_WINDOWS: Self = Self {
        key_length: "attention.key_length_swa",
        value_length: "attention.value_length_swa",
        rope_dims: "rope.dimension_count_swa",
        rotates_half: false,
    };
    /// Keys of sliding window layers, in files where only their number of rotated elements differs.
    pub(crate) const ROTATED_IN_WINDOWS: Self = Self { rope_dims: Self::OF_WINDOWS.rope_dims, ..Self::OF_FILE };
    /// Keys of layers whose heads are rotated by half.
    pub(crate) const HALF_ROTATED: Self = Self { rotates_half: true, ..Self::OF_FILE };
}

impl Keys<'_> {
    /// Returns the model without its layers, with RMS norms.
    pub(crate) fn model(&self) -> Result<ModelSpec> {
        self.model_with(NormSpec::rms(self.eps("attention.layer_norm_rms_epsilon")?))
    }

    /// Returns LayerNorms with weights and the file's epsilon.
    pub(crate) fn layer_norm(&self, bias: bool) -> Result<NormSpec> {
        Ok(NormSpec { kind: NormKind::Layer, eps: self.eps("attention.layer_norm_epsilon")?, weight: true, bias })
    }

    /// Returns the model without its layers.
    pub(crate) fn model_with(&self, norm: NormSpec) -> Result<ModelSpec> {
        if self.opt_bool("attention.causal")? == Some(false) {
            let problem = "is false: attention in both directions is not supported in this architecture";
            return Err(self.error("attention.causal", problem));
        }
        self.model_that_pools(norm, self.pooling(Pooling::Last)?)
    }

    /// Returns the model without its layers, with this pooling.
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
            streams: None,
            layers: Vec::new(),
            nextn_layers: self.nextn_layers()?,
            drafter: None,
            draft_model: None,
            sections: None,
            ropes: Vec::new(),
            kv_groups: Vec::new(),
            pooling,
            rank: if ranks { Some(self.rank()?) } else { None },
            embed: Vec::new(),
            tied_output: self.gguf.tensor("output.weight").is_none(),
            output_bias: false,
        })
    }

    /// Reads llama.cpp's key, with its numbers. A file without the key, or with 0 (no pooling), was not made for
    /// embeddings, and `otherwise` applies. In a generative model, only the last token has seen the whole text. In a
    /// masked language model, every token has seen it, and the first one serves no other purpose.
    pub(crate) fn pooling(&self, otherwise: Pooling) -> Result<Pooling> {
        let ranks = RANKS.contains(&self.architecture);
        match self.opt_u32("pooling_type")? {
            // llama.cpp's converter writes the key for reranking models of Qwen3 only; the others are known by their
            // head.
            None | Some(0) if ranks && self.gguf.tensor("cls.output.weight").is_some() => Ok(Pooling::Rank),
            None | Some(0) => Ok(otherwise),
            Some(3) => Ok(Pooling::Last),
            Some(1) => Ok(Pooling::Mean),
            Some(2) => Ok(Pooling::Cls),
            // Other architectures use the values of their heads differently.
            Some(4) if ranks => Ok(Pooling::Rank),
            Some(4) => {
                let problem = format!("is 4: of the models that rank only those of {} are supported", RANKS.join(", "));
                Err(self.error("pooling_type", problem))
            }
            Some(other) => Err(self.error("pooling_type", format!("is {other}, expected 0 to 4"))),
        }
    }

    /// Returns the head of a reranking model, as llama.cpp and transformers define it for the architecture.
    fn rank(&self) -> Result<RankSpec> {
        let key = "classifier.pooling_type";
        let (otherwise, activation, may_norm) = match self.architecture {
            "bert" => (Pooling::Cls, HeadActivation::Tanh, false),
            // The first version of llama.cpp's converter wrote no key, because it knew one such model.
            "modern-bert" => (Pooling::Mean, HeadActivation::GeluErf, true),
            _ => return Ok(RankSpec { input: Pooling::Last, dense: None, score: Score::Softmax }),
        };
        let input = match self.opt_u32(key)? {
            None => otherwise,
            Some(1) => Pooling::Mean,
            Some(2) => Pooling::Cls,
            Some(other) => return Err(self.error(key, format!("is {other}, expected 1 (mean) or 2 (first token)"))),
        };
        Ok(RankSpec { input, dense: Some(HeadDense { activation, may_norm }), score: Score::Sigmoid })
    }

    /// Returns a layer's attention in its most common form. It covers all tokens or the file's sliding window, and
    /// scores are divided by the root of the head size. There are no norms of q and k. Biases and a fused q, k and v
    /// tensor follow from the file.
    pub(crate) fn attention(&self, model: &mut ModelSpec, layer: usize, rope: LayerRope) -> Result<AttentionSpec> {
        self.attention_over(model, layer, self.window()?, rope)
    }

    /// Reads attention like `attention`, over this layer's window or over all tokens.
    pub(crate) fn attention_over(
        &self,
        model: &mut ModelSpec,
        layer: usize,
        window: Option<u32>,
        rope: LayerRope,
    ) -> Result<AttentionSpec> {
        self.attention_by(HeadKeys::OF_FILE, model, layer, window, rope)
    }

    /// Reads attention like `attention_over`, with the file's RoPE over all tokens and RoPE of this base over a window.
    pub(crate) fn attention_by_window(
        &self,
        model: &mut ModelSpec,
        layer: usize,
        window: Option<u32>,
        base_of_windows: f32,
    ) -> Result<AttentionSpec> {
        let rope = match window {
            None => LayerRope::OfFile(RopeKind::Neox),
            Some(_) => LayerRope::OfBase(RopeKind::Neox, base_of_windows),
        };
        self.attention_over(model, layer, window, rope)
    }

    /// Reads attention like `attention_over`, with other keys for the shape of its heads.
    pub(crate) fn attention_by(
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

    /// Reads attention like `attention_by`, over the tokens of `kind`.
    pub(crate) fn attention_of_kind(
        &self,
        keys: HeadKeys,
        model: &mut ModelSpec,
        layer: usize,
        kind: GroupKind,
        rope: LayerRope,
    ) -> Result<AttentionSpec> {
        let qkv = self.heads(keys, layer, model.hidden_size)?;
        let rotated = if keys.rotates_half { qkv.head_dim / 2 } else { qkv.head_dim };
        let rope = self.rope(keys.rope_dims, model, rope, rotated)?;
        Ok(AttentionSpec {
            qkv,
            own_gates: false,
            head_gates: None,
            fused_qkv: self.gguf.tensor(&of_layer(layer, "attn_qkv.weight")).is_some(),
            kv_layer: model.num_kv_layers(),
            kv_group: model.join_kv_group(kind, qkv, None),
            v_is_k: false,
            rope,
            scoring: Scoring::scaled(1.0 / (qkv.head_dim as f32).sqrt()),
            temperature: None,
            sinks: false,
            biases: None,
            qkv_bias: Presence::Optional,
            output_bias: Presence::Optional,
            clamp: None,
            qk_norm: None,
            v_norm: false,
        })
    }

    /// Returns the file's factor on queries at far positions, if it has one.
    pub(crate) fn temperature(&self, context_length: usize) -> Result<Option<Temperature>> {
        let length = self.opt_size("attention.temperature_length")?;
        let original = self.original_context(context_length)?;
        let Some(scale) = self.opt_positive("attention.temperature_scale")? else { return Ok(None) };
        Ok(Some(Temperature { scale, context: length.unwrap_or(original) as u32, offset: 0 }))
    }

    /// Returns the file's sliding window.
    pub(crate) fn window(&self) -> Result<Option<u32>> {
        Ok(self.opt_u32("attention.sliding_window")?.filter(|&window| window > 0))
    }

    /// Returns the window of an architecture with several kinds of layers.
    pub(crate) fn required_window(&self) -> Result<u32> {
        let key = "attention.sliding_window";
        self.window()?.ok_or_else(|| self.error(key, "is missing or 0, expected the tokens of the window"))
    }

    /// Returns the heads of a layer. Defaults of the GGUF specification: one KV head per query head, and a head size of
    /// the hidden size divided by the number of heads.
    pub(crate) fn heads(&self, keys: HeadKeys, layer: usize, hidden_size: usize) -> Result<QkvLayout> {
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
        let value_dim = self.opt_size(keys.value_length)?.unwrap_or(head_dim);
        let is_whole = |dim: usize| dim.is_multiple_of(QkvLayout::SHORT_VALUES_STEP);
        if value_dim > head_dim || (value_dim < head_dim && !(is_whole(head_dim) && is_whole(value_dim))) {
            let problem = format!(
                "is {value_dim} while keys have {head_dim} elements; values may have as many, or fewer where both are \
                 multiples of {}",
                QkvLayout::SHORT_VALUES_STEP
            );
            return Err(self.error(keys.value_length, problem));
        }
        Ok(QkvLayout { num_heads, num_kv_heads, head_dim, value_dim, gated: false, has_kv: true })
    }

    /// Returns the epsilon of a norm.
    pub(crate) fn eps(&self, key: &str) -> Result<f32> {
        let eps = self.metadata.f32(&self.full(key))?;
        if !(eps.is_finite() && (0.0..1.0).contains(&eps)) {
            return Err(self.error(key, format!("is {eps}, expected a small positive number")));
        }
        Ok(eps)
    }

    /// Returns a factor or a cap, a finite number above zero, if the file has it.
    pub(crate) fn opt_positive(&self, key: &str) -> Result<Option<f32>> {
        match self.opt_f32(key)? {
            Some(value) if value <= 0.0 => Err(self.error(key, format!("is {value}, expected a number above 0"))),
            value => Ok(value),
        }
    }

    /// Returns the limit on the absolute values of q, k and v; 0 in the file means none.
    pub(crate) fn clamp(&self) -> Result<Option<f32>> {
        match self.opt_f32("attention.clamp_kqv")? {
            None | Some(0.0) => Ok(None),
            Some(_) => self.opt_positive("attention.clamp_kqv"),
        }
    }

    /// Returns the number of rows of the embedding table. The token list and `vocab_size` must agree, if present.
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
