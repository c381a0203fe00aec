//! `seed_oss`: Seed-OSS. Biases on q, k and v. The norm before the feed-forward is named `post_attention_norm`.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, LayerSpec, ModelSpec, Norms, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qkv_bias: Presence::Required,
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = keys.dense(layer, Activation::Silu)?;
        let ffn_norms = Norms::before("post_attention_norm");
        model.layers.push(LayerSpec { ffn_norms, ..LayerSpec::new(attention, ffn) });
    }
    Ok(model)
}
