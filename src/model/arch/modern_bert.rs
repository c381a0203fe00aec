//! `modern-bert`: ModernBERT (arXiv 2412.13663): norms before each half of a layer, but for the first layer's
//! attention, whose input is normed as it is; RoPE; a gate in the feed-forward. All layers but every
//! `sliding_window_pattern`-th see half of the window to each side, and have a RoPE base of their own.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, Gate, LayerSpec, ModelSpec, Norms};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = ModelSpec { output_norm: Some("output_norm"), ..keys.encoder(false)? };
    let pattern = keys.size("attention.sliding_window_pattern")?;
    let (reach, base) = (keys.required_window()? / 2, keys.rope_base("rope.freq_base_swa")?);
    for layer in 0..keys.layers()? {
        let (reach, rope) = match layer.is_multiple_of(pattern) {
            true => (u32::MAX, LayerRope::OfFile(RopeKind::Neox)),
            false => (reach, LayerRope::OfBase(RopeKind::Neox, base)),
        };
        let attention =
            AttentionSpec { fused_qkv: true, ..keys.attention_in_both_directions(&mut model, layer, reach, rope)? };
        let ffn = keys.dense_of(layer, Activation::GeluErf, Gate::InUp)?;
        let mixer_norms = if layer == 0 { Norms::NONE } else { Norms::before("attn_norm") };
        model.layers.push(LayerSpec { mixer_norms, ..LayerSpec::new(attention, ffn) });
    }
    Ok(model)
}
