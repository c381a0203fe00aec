//! `ernie4_5`: ERNIE 4.5 dense models. Llama's layers, with RoPE on adjacent elements.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Norm))?;
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
