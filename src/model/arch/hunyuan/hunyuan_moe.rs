//! `hunyuan-moe`: Hunyuan A13B. The attention of `hunyuan-dense`, and experts with a shared expert in every layer.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    let size = keys.size("expert_feed_forward_length")?;
    let experts = keys.experts(&model, size, Activation::Silu)?;
    let shared = keys.shared_expert(size, Activation::Silu)?;
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qk_norm: Some(QkNorm::HeadsAfterRope),
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        model.layers.push(LayerSpec::new(attention, Ffn::Experts { experts, shared }));
    }
    Ok(model)
}
