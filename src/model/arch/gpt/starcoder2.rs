//! `starcoder2`: StarCoder2. LayerNorms and matrices with biases, and an ungated feed-forward.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Gate, LayerSpec, ModelSpec, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model_with(keys.layer_norm(true)?)?;
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qkv_bias: Presence::Optional,
            output_bias: Presence::Optional,
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = keys.dense_of(layer, Activation::Gelu, Gate::None)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
