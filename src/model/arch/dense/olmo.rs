//! `olmo`: OLMo 1. Llama's layers, with LayerNorms without weights, and with q, k and v clamped.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, LayerSpec, ModelSpec, NormSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model_with(NormSpec { weight: false, ..keys.layer_norm(false)? })?;
    // The larger model has no clamp.
    let clamp = keys.clamp()?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Norm))?;
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec::new(AttentionSpec { clamp, ..attention }, ffn));
    }
    Ok(model)
}
