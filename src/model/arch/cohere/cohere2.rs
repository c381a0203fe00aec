//! `cohere2`: Command R7B and Command A. Attention and feed-forward run side by side after one LayerNorm without bias.
//! Three of four layers have a sliding window with RoPE, the fourth has full attention without RoPE.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::rope::LayerRope;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{LayerSpec, LogitsSpec, ModelSpec};

/// Default: full attention in the last of four layers.
pub(super) const PATTERN: WindowPattern = WindowPattern::full_is_last_of(4);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = cohere_model(keys)?;
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.required_window()?);
    for layer in keys.layers_of(&model)? {
        let (window, rope) = match is_windowed[layer] {
            true => (Some(window), LayerRope::OfFile(RopeKind::Norm)),
            false => (None, LayerRope::None),
        };
        let attention = keys.attention_over(&mut model, layer, window, rope)?;
        model.layers.push(LayerSpec::parallel(attention, keys.dense(layer, Activation::Silu)?));
    }
    Ok(model)
}

/// Returns the model without its layers, with LayerNorms without biases and a factor on the logits.
pub(super) fn cohere_model(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = keys.model_with(keys.layer_norm(false)?)?;
    model.logits = LogitsSpec { scale: keys.opt_positive("logit_scale")?.unwrap_or(1.0), softcap: None };
    Ok(model)
}
