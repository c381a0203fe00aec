//! `eurobert`: EuroBERT. Llama's layers, with bidirectional attention.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::config::Pooling;
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{LayerSpec, ModelSpec, NormSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let norm = NormSpec::rms(keys.eps("attention.layer_norm_rms_epsilon")?);
    let mut model = keys.encoder_with(norm, Pooling::Cls)?;
    for layer in keys.layers_of(&model)? {
        let rope = LayerRope::OfFile(RopeKind::Neox);
        let attention = keys.attention_in_both_directions(&mut model, layer, u32::MAX, rope)?;
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
