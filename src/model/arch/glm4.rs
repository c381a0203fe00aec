//! `glm4`: GLM-4 of 2025 (9B, 32B): norms on both sides of attention and feed-forward, optional biases on q, k and v,
//! half of each head rotated, gate and up in one tensor.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, Gate, LayerSpec, ModelSpec, Norms, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in 0..keys.layers()? {
        let attention = AttentionSpec {
            qkv_bias: Presence::Optional,
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Norm))?
        };
        let ffn = keys.dense_of(layer, Activation::Silu, Gate::InUp)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms::around("attn_norm", "post_attention_norm"),
            ffn_norms: Norms::around("ffn_norm", "post_ffw_norm"),
            ..LayerSpec::new(attention, ffn)
        });
    }
    Ok(model)
}
