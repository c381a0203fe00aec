//! `gemma`: Gemma 1 and CodeGemma. Llama's layers with GELU, and embeddings multiplied by the root of their size.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    model.embedding_scale = (model.hidden_size as f32).sqrt();
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        let ffn = keys.dense(layer, Activation::Gelu)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
