//! `smollm3`: SmolLM3. Llama's layers, without RoPE in every fourth layer.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{LayerSpec, ModelSpec};

/// Every fourth layer has no RoPE. No key states it.
const WITHOUT_ROPE: usize = 4;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let rope = match (layer + 1).is_multiple_of(WITHOUT_ROPE) {
            true => LayerRope::None,
            false => LayerRope::OfFile(RopeKind::Norm),
        };
        let attention = keys.attention(&mut model, layer, rope)?;
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
