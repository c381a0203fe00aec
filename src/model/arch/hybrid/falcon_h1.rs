//! `falcon-h1`: Falcon-H1. Attention and Mamba-2 run side by side in each layer, on one normed input. The weights
//! already contain the model's factors.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::layers::of_layer;
use crate::spec::{LayerSpec, Mamba2Spec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        // Some models have no norm.
        let norm = keys.gguf.tensor(&of_layer(layer, "ssm_norm.weight")).is_some();
        let mamba2 = Mamba2Spec { norm, ..keys.mamba2(layer, model.norm.eps)? };
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec { beside: Some(mamba2), ..LayerSpec::new(attention, ffn) });
    }
    Ok(model)
}
