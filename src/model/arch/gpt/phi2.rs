//! `phi2`: Phi 1, 1.5 and 2. Attention and feed-forward run side by side after one LayerNorm. Every matrix has a bias,
//! including the output projection.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Gate, LayerSpec, ModelSpec, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = ModelSpec { output_bias: true, ..keys.model_with(keys.layer_norm(true)?)? };
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qkv_bias: Presence::Required,
            output_bias: Presence::Required,
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = keys.dense_of(layer, Activation::Gelu, Gate::None)?;
        model.layers.push(LayerSpec::parallel(attention, ffn));
    }
    Ok(model)
}
