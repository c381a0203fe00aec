//! `stablelm`: StableLM 3B and 2 1.6B, and similar models. Llama's layers with LayerNorms, and a part of each head
//! rotated.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::layers::of_layer;
use crate::spec::{LayerSpec, ModelSpec};

const PARALLEL: &str = "use_parallel_residual";

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    // Converters write true if the original model has no value. A separate feed-forward norm shows that the
    // feed-forward follows attention.
    let is_parallel = keys.opt_bool(PARALLEL)?;
    let mut model = keys.model_with(keys.layer_norm(true)?)?;
    for layer in keys.layers_of(&model)? {
        if keys.gguf.tensor(&of_layer(layer, "ffn_norm.weight")).is_none() && is_parallel == Some(true) {
            let problem = format!(
                "is true, and layer {layer} has one norm: models like StableLM 2 12B, with attention and feed-forward \
                 side by side, are not supported"
            );
            return Err(keys.error(PARALLEL, problem));
        }
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
