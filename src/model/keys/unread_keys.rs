//! Keys that an architecture does not read. A reviewed list says which of them change nothing. Any other key is an
//! error, like a tensor that no computation uses.
//!
//! The names are those that the converters of llama.cpp and of Ollama have written so far.

use super::Keys;
use crate::Result;
use crate::gguf::Value;
use crate::spec::{Ffn, ModelSpec};

/// The condition under which an unread key changes nothing.
#[derive(Debug, Clone, Copy)]
enum Harmless {
    Always,
    /// The key holds 0 or false, which turns the feature off.
    Zero,
    /// The key holds 0, which turns the feature off, or 1, the neutral factor.
    ZeroOrOne,
    /// The key has the same value as this key, which was read.
    SameAs(&'static str),
    WithoutExperts,
    WithoutDenseLayers,
    WithoutRope,
    /// The model is no reranking model.
    WithoutHead,
}

use Harmless::{Always, SameAs, WithoutDenseLayers, WithoutExperts, WithoutHead, WithoutRope, Zero, ZeroOrOne};

/// Keys that an architecture need not read. A name that ends in a dot or an underscore is a prefix.
const HARMLESS: [(&str, Harmless); 53] = [
    // Image and audio encoders, and their placeholder tokens. This version only computes text.
    ("vision.", Always),
    ("audio.", Always),
    ("mm.", Always),
    ("deepstack_mapping", Always),
    ("image_end_token_id", Always),
    ("image_start_token_id", Always),
    ("image_token_id", Always),
    ("image_token_index", Always),
    ("n_deepstack_layers", Always),
    ("spatial_merge_size", Always),
    ("video_end_token_id", Always),
    ("video_start_token_id", Always),
    ("video_token_id", Always),
    ("vision_end_token_id", Always),
    ("vision_start_token_id", Always),
    // Multi-section RoPE: the position, one of three, of each pair of elements. For text all three are equal. `glm4`
    // checks if the key exists.
    ("mrope_sections", Always),
    ("rope.dimension_sections", Always),
    ("rope.mrope_interleaved", Always),
    ("rope.mrope_section", Always),
    // The architecture has norms of one kind, and reads the epsilon of that kind.
    ("attention.layer_norm_epsilon", Always),
    ("attention.layer_norm_rms_epsilon", Always),
    // Names and notes: labels, the order of rows before conversion, fine-tuning after RoPE scaling.
    // `normalize_embeddings` is a default of the makers' software; here the caller decides.
    ("classifier.output_labels", Always),
    ("normalize_embeddings", Always),
    ("rope.scaling.finetuned", Always),
    ("tensor_data_layout", Always),
    // Parts that the model does not have.
    ("classifier.pooling_type", WithoutHead),
    ("expert_", WithoutExperts),
    ("interleave_moe_layer_step", WithoutExperts),
    ("leading_dense_block_count", WithoutExperts),
    ("moe_every_n_layers", WithoutExperts),
    ("norm_top_k_prob", WithoutExperts),
    ("feed_forward_length", WithoutDenseLayers),
    ("rope.", WithoutRope),
    ("rope.dimension_count_swa", SameAs("rope.dimension_count")),
    ("rope.freq_base_swa", SameAs("rope.freq_base")),
    ("attention.key_length_swa", SameAs("attention.key_length")),
    ("attention.value_length_swa", SameAs("attention.value_length")),
    ("embedding_length_out", SameAs("embedding_length")),
    // Values that turn a feature off.
    ("attention.clamp_kqv", Zero),
    ("attention.max_alibi_bias", Zero),
    ("attention.shared_kv_layers", Zero),
    ("attention.sliding_window", Zero),
    ("attention.temperature_length", Zero),
    ("attention.temperature_scale", Zero),
    ("attn_logit_softcapping", Zero),
    ("embedding_length_per_layer_input", Zero),
    ("final_logit_softcapping", Zero),
    ("moe_latent_size", Zero),
    ("router_logit_softcapping", Zero),
    ("attention.scale", Zero),
    ("embedding_scale", ZeroOrOne),
    ("logit_scale", ZeroOrOne),
    ("residual_scale", ZeroOrOne),
];

impl Keys<'_> {
    /// Checks each key of the architecture: it was read, or it changes nothing in this model. Several names of one key
    /// must have the same value.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key.
    pub(crate) fn check_all_read(&self, model: &ModelSpec) -> Result<()> {
        self.check_read_or(|key, value| self.is_harmless(key, value, model))
    }

    /// Checks that each key of the architecture either was asked for or is accepted, and the names of keys as
    /// `check_all_read` does.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key.
    pub(crate) fn check_read_or(&self, is_harmless: impl Fn(&str, &Value) -> bool) -> Result<()> {
        let prefix = format!("{}.", self.architecture);
        for (name, value) in self.metadata.iter() {
            let Some(key) = name.strip_prefix(&prefix) else { continue };
            if self.was_read(name) {
                self.check_names_agree(key)?;
            } else if !is_harmless(key, value) {
                let problem = format!(
                    "holds {value}, but nothing in {} models is computed by this key: ignoring it would change the \
                     results",
                    self.architecture
                );
                return Err(self.metadata.error(name, problem));
            }
        }
        Ok(())
    }

    fn check_names_agree(&self, key: &str) -> Result<()> {
        let names = self.names(key);
        let mut found = names.iter().filter_map(|name| Some((name, self.metadata.get(name)?)));
        let Some((first, value)) = found.next() else { return Ok(()) };
        match found.find(|(_, other)| *other != value) {
            None => Ok(()),
            Some((name, other)) => Err(self
                .metadata
                .error(name, format!("holds {other}, while {first}, another name of it, holds {value}"))),
        }
    }

    fn is_harmless(&self, key: &str, value: &Value, model: &ModelSpec) -> bool {
        let is_named = |name: &str| if name.ends_with(['.', '_']) { key.starts_with(name) } else { key == name };
        HARMLESS.iter().filter(|(name, _)| is_named(name)).any(|(_, harmless)| match harmless {
            Always => true,
            Zero => is_number(value, 0.0),
            ZeroOrOne => is_number(value, 0.0) || is_number(value, 1.0),
            SameAs(other) => self.metadata.get(&self.full(other)).is_some_and(|other| same(value, other)),
            WithoutExperts => model.all_layers().all(|layer| layer.ffn.experts().is_none()),
            WithoutDenseLayers => {
                model.all_layers().all(|layer| !matches!(layer.ffn, Ffn::Dense(_) | Ffn::Branches { .. }))
            }
            WithoutRope => model.ropes.iter().all(|rope| rope.inv_freq.is_empty()),
            WithoutHead => model.rank.is_none(),
        })
    }
}

/// True if the value is this number; false counts as 0.
fn is_number(value: &Value, number: f64) -> bool {
    as_number(value) == Some(number)
}

fn same(value: &Value, other: &Value) -> bool {
    value == other || (as_number(value).is_some() && as_number(value) == as_number(other))
}

fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::F32(value) => Some(f64::from(*value)),
        Value::F64(value) => Some(*value),
        Value::Bool(value) => Some(f64::from(u8::from(*value))),
        _ => value.as_integer().map(|value| value as f64),
    }
}
