//! `ernie4_5-moe`: ERNIE 4.5 with experts (21B-A3B, 300B-A47B). The attention of `ernie4_5`, and dense layers first.
//! The others have shared experts and softmax routing with a selection bias.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{Ffn, LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    let dense_layers = keys.leading_dense_layers()?;
    let size = keys.size("expert_feed_forward_length")?;
    let experts = keys.experts(&model, size, Activation::Silu)?;
    let experts = ExpertSpec { choice_bias: true, ..experts };
    let shared = keys.shared_expert(size, Activation::Silu)?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Norm))?;
        let ffn = match layer < dense_layers {
            true => keys.dense(layer, Activation::Silu)?,
            false => Ffn::Experts { experts, shared },
        };
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
