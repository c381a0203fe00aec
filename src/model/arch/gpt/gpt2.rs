//! `gpt2`: GPT-2. Learned positions, LayerNorms and matrices with biases, and an ungated feed-forward.

use crate::Result;
use crate::backend::Activation;
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{EmbeddingSpec, Gate, LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model_with(keys.layer_norm(true)?)?;
    model.embedding = EmbeddingSpec { positions: Some(model.context_length), ..model.embedding };
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::None)?;
        let ffn = keys.dense_of(layer, Activation::Gelu, Gate::None)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
