//! `dots1`: dots.llm1. The attention of `qwen3`, and the feed-forwards of `deepseek2`.

use crate::Result;
use crate::backend::RopeKind;
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, QkNorm};

pub(in crate::arch) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    spec_with(keys, |model, layer| keys.dense_then_experts(model, layer))
}

/// Returns the model with the feed-forward of each layer from `ffn`.
pub(in crate::arch) fn spec_with(keys: &Keys<'_>, ffn: impl Fn(&ModelSpec, usize) -> Result<Ffn>) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qk_norm: Some(QkNorm::Heads),
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = ffn(&model, layer)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
