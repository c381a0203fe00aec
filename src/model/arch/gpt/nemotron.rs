//! `nemotron`: Nemotron 4 and Minitron. LayerNorms, and an ungated feed-forward of squared ReLU.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{Gate, LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model_with(keys.layer_norm(true)?)?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        let ffn = keys.dense_of(layer, Activation::SquaredRelu, Gate::None)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
