//! `phi3`: Phi 3, 3.5 and 4. q, k and v are one tensor, gate and up another. RoPE may have longrope factors.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{Gate, LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        let ffn = keys.dense_of(layer, Activation::Silu, Gate::InUp)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
