//! `modern-bert`: ModernBERT (arXiv 2412.13663). Norms before each half of a layer, except the first layer's attention,
//! whose input is already normed. RoPE, and a gate in the feed-forward. Two of three layers see half of the window to
//! each side, and have their own RoPE base.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::rope::LayerRope;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{Gate, LayerSpec, ModelSpec, Norms};

/// Default: full attention in the first of three layers.
const PATTERN: WindowPattern = WindowPattern::full_is_first_of(3);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = ModelSpec { output_norm: Some("output_norm"), ..keys.encoder(false)? };
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.required_window()?);
    let (activation, base) = (activation(keys)?, keys.rope_base("rope.freq_base_swa")?);
    for layer in keys.layers_of(&model)? {
        let (reach, rope) = match is_windowed[layer] {
            true => (window / 2, LayerRope::OfBase(RopeKind::Neox, base)),
            false => (u32::MAX, LayerRope::OfFile(RopeKind::Neox)),
        };
        let attention = keys.attention_in_both_directions(&mut model, layer, reach, rope)?;
        let ffn = keys.dense_of(layer, activation, Gate::InUp)?;
        let mixer_norms = if layer == 0 { Norms::NONE } else { Norms::before("attn_norm") };
        model.layers.push(LayerSpec { mixer_norms, ..LayerSpec::new(attention, ffn) });
    }
    Ok(model)
}

/// Returns the activation of the feed-forward's gate. Models that were made after ModernBERT use SiLU.
fn activation(keys: &Keys<'_>) -> Result<Activation> {
    match keys.opt_str("hidden_activation")? {
        None | Some("gelu") => Ok(Activation::GeluErf),
        Some("silu") => Ok(Activation::Silu),
        Some(other) => Err(keys.error("hidden_activation", format!("is '{other}', expected 'gelu' or 'silu'"))),
    }
}
