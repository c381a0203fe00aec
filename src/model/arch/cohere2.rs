//! `cohere2`: Command R7B and Command A: attention and feed-forward side by side behind one LayerNorm without bias; a
//! sliding window with RoPE in three of four layers, everything without RoPE in the fourth.

use crate::Result;
use crate::backend::{Activation, NormKind, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{LayerSpec, LogitsSpec, ModelSpec, NormSpec, Norms};

/// Period of full attention: every fourth layer attends to everything. No key says it.
const PATTERN: usize = 4;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let norm = NormSpec { kind: NormKind::Layer, eps: keys.eps("attention.layer_norm_epsilon")?, bias: false };
    let mut model = keys.model_with(norm)?;
    model.logits = LogitsSpec { scale: keys.opt_positive("logit_scale")?.unwrap_or(1.0), softcap: None };
    let window = keys.required_window()?;
    for layer in 0..keys.layers()? {
        let (window, rope) = match (layer + 1).is_multiple_of(PATTERN) {
            true => (None, LayerRope::None),
            false => (Some(window), LayerRope::OfFile(RopeKind::Norm)),
        };
        let attention = keys.attention_over(&mut model, layer, window, rope)?;
        let ffn = keys.dense(layer, Activation::Silu)?;
        let ffn_norms = Norms::NONE;
        model.layers.push(LayerSpec { ffn_norms, parallel: true, ..LayerSpec::new(attention, ffn) });
    }
    Ok(model)
}
