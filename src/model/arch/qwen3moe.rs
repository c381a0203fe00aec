//! `qwen3moe`: Qwen 3 with experts (30B-A3B, 235B-A22B): the attention of `qwen3`, experts in every layer.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::model::keys::Keys;
use crate::model::spec::{AttentionSpec, Ffn, LayerSpec, Mixer, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    for layer in 0..keys.layers()? {
        let attention = AttentionSpec { qk_norm: true, ..keys.attention(&mut model, layer, RopeKind::Neox)? };
        let experts = keys.experts(&model, keys.size("expert_feed_forward_length")?, Activation::Silu)?;
        model.layers.push(LayerSpec { mixer: Mixer::Attention(attention), ffn: Ffn::Experts(experts) });
    }
    Ok(model)
}
