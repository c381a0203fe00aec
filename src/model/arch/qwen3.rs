//! `qwen3`: Qwen 3 dense models: an RMS norm on each query and key head, head size independent of the hidden size.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::model::keys::Keys;
use crate::model::spec::{AttentionSpec, LayerSpec, Mixer, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in 0..keys.layers()? {
        let attention = AttentionSpec { qk_norm: true, ..keys.attention(&mut model, layer, RopeKind::Neox)? };
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec { mixer: Mixer::Attention(attention), ffn });
    }
    Ok(model)
}
