//! `glm4`: GLM-4 of 2025 (9B, 32B), and the text part of GLM-4.1V and 4.6V-Flash. Norms before and after attention and
//! feed-forward, and optional biases on q, k and v. Half of each head is rotated, and gate and up are one tensor.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Gate, LayerSpec, ModelSpec, Norms, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    // Files of vision models have q and k in NEOX order, and give each pair one of three RoPE positions.
    let kind = if keys.has_sections()? { RopeKind::Neox } else { RopeKind::Norm };
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qkv_bias: Presence::Optional,
            ..keys.attention(&mut model, layer, LayerRope::OfFile(kind))?
        };
        let ffn = keys.dense_of(layer, Activation::Silu, Gate::InUp)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms::around("attn_norm", "post_attention_norm"),
            ffn_norms: Norms::around("ffn_norm", "post_ffw_norm"),
            ..LayerSpec::new(attention, ffn)
        });
    }
    model.sections = keys.sections(&model, false)?;
    Ok(model)
}
