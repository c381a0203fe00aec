//! `muse-glimmer`: Muse Glimmer. The attention of `afmoe` with RoPE on adjacent elements. Norms before and after
//! attention and feed-forward, with a separate epsilon for those after. Embeddings are normed without weights. Logits
//! are scaled and then capped.

use super::afmoe::gated_attention;
use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::spec::{EmbeddingSpec, LayerSpec, LogitsSpec, ModelSpec, Norms};

/// Epsilon of the norms after attention and feed-forward. No key states it.
const AFTER_EPS: f32 = 1e-8;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    model.embedding = EmbeddingSpec { plain_norm: true, ..model.embedding };
    model.logits = LogitsSpec {
        scale: keys.opt_positive("logit_scale")?.unwrap_or(1.0),
        softcap: keys.opt_positive("final_logit_softcapping")?,
    };
    for layer in keys.layers_of(&model)? {
        let attention = gated_attention(keys, &mut model, layer, RopeKind::Norm)?;
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms::around("attn_norm", "post_attention_norm"),
            ffn_norms: Norms::around("ffn_norm", "post_ffw_norm"),
            after_eps: Some(AFTER_EPS),
            ..LayerSpec::new(attention, ffn)
        });
    }
    Ok(model)
}
