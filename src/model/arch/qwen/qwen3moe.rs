//! `qwen3moe`: Qwen 3 with experts (30B-A3B, 235B-A22B). The attention of `qwen3`, and experts in every layer.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_shared_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        let attention = AttentionSpec { qk_norm: Some(QkNorm::Heads), ..attention };
        let experts = keys.experts(&model, keys.size("expert_feed_forward_length")?, Activation::Silu)?;
        model.layers.push(LayerSpec::new(attention, Ffn::Experts { experts, shared: None }));
    }
    Ok(model)
}
