//! `starcoder2`: StarCoder2: LayerNorms and every matrix with biases, a feed-forward without a gate.

use crate::Result;
use crate::backend::{Activation, NormKind, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, DenseSpec, Ffn, Gate, LayerSpec, ModelSpec, NormSpec, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let norm = NormSpec { kind: NormKind::Layer, eps: keys.eps("attention.layer_norm_epsilon")?, bias: true };
    let mut model = keys.model_with(norm)?;
    for layer in 0..keys.layers()? {
        let attention = AttentionSpec {
            qkv_bias: Presence::Optional,
            output_bias: Presence::Optional,
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = Ffn::Dense(DenseSpec {
            size: keys.size_of(layer, "feed_forward_length")?,
            activation: Activation::Gelu,
            gate: Gate::None,
            bias: Presence::Optional,
            row_gate: false,
        });
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
