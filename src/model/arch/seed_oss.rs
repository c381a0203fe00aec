//! `seed_oss`: Seed-OSS: biases on q, k and v; the norm before the feed-forward goes by the name of one after
//! attention.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, LayerSpec, ModelSpec, Norms, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in 0..keys.layers()? {
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
