//! `cohere2moe`: Command A with experts. The layers of `cohere2`, dense ones first, then experts with sigmoid routing.
//! The sum of the experts and the shared expert are averaged.

use super::cohere2::{PATTERN, cohere_model};
use crate::Result;
use crate::backend::{Activation, ExpertSpec, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{DenseSpec, Ffn, LayerSpec, ModelSpec, RowGate};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = cohere_model(keys)?;
    let (dense_layers, experts) = (keys.leading_dense_layers()?, experts(keys, &model)?);
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.required_window()?);
    for layer in keys.layers_of(&model)? {
        let (window, is_dense) = (is_windowed[layer].then_some(window), layer < dense_layers);
        // The dense layers have RoPE with and without a window.
        let rope = match window.is_some() || is_dense {
            true => LayerRope::OfFile(RopeKind::Norm),
            false => LayerRope::None,
        };
        let attention = keys.attention_over(&mut model, layer, window, rope)?;
        let ffn = if is_dense { keys.dense(layer, Activation::Silu)? } else { experts.clone() };
        model.layers.push(LayerSpec::parallel(attention, ffn));
    }
    Ok(model)
}

fn experts(keys: &Keys<'_>, model: &ModelSpec) -> Result<Ffn> {
    let size = keys.size("expert_feed_forward_length")?;
    let experts = keys.sigmoid_experts(model, size, Activation::Silu)?;
    let experts = ExpertSpec { normalize: keys.weights_are_normalized()?, ..experts };
    Ok(match keys.shared_expert(size, Activation::Silu)? {
        None => Ffn::Experts { experts, shared: None },
        Some(shared) => Ffn::Experts {
            experts: ExpertSpec { scale: experts.scale / 2.0, ..experts },
            shared: Some(DenseSpec { row_gate: RowGate::Half, ..shared }),
        },
    })
}
