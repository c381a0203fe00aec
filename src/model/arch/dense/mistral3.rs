//! `mistral3`: Mistral Small 3.x, Ministral 3. Llama's layers. Queries at far positions are scaled up if the file says
//! so.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    let temperature = keys.temperature(model.context_length)?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Norm))?;
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec::new(AttentionSpec { temperature, ..attention }, ffn));
    }
    Ok(model)
}
