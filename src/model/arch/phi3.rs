//! `phi3`: Phi 3, 3.5 and 4: q, k and v in one tensor, gate and up in another; longrope.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, Gate, LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in 0..keys.layers()? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        let attention = AttentionSpec { fused_qkv: true, ..attention };
        let ffn = keys.dense_of(layer, Activation::Silu, Gate::InUp)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
