//! `qwen2`: Qwen 2 and 2.5. Biases on q, k and v.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, LayerSpec, ModelSpec, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qkv_bias: Presence::Required,
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
