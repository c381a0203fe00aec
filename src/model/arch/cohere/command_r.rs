//! `command-r`: Command R and Aya 23. Attention and feed-forward run side by side as in `cohere2`, with full attention
//! and RoPE in every layer.

use super::cohere2::cohere_model;
use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = cohere_model(keys)?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Norm))?;
        model.layers.push(LayerSpec::parallel(attention, keys.dense(layer, Activation::Silu)?));
    }
    Ok(model)
}
