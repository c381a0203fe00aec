//! `nemotron_h`: Nemotron-H and Nemotron Nano 2. Each layer is Mamba-2, attention without RoPE, or an ungated
//! feed-forward of squared ReLU. A layer with KV heads is attention, and a layer with a feed-forward width is a
//! feed-forward.

use crate::Result;
use crate::backend::{Activation, Scoring};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{
    AttentionSpec, DenseSpec, Ffn, Gate, LayerSpec, Mixer, ModelSpec, NormSpec, Norms, Presence, RowGate,
};

/// The norm of a layer of any kind.
const NORM: Norms = Norms::before("attn_norm");

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    spec_with(keys, |_, _, size| {
        let (activation, bias) = (Activation::SquaredRelu, Presence::Optional);
        Ok(Ffn::Dense(DenseSpec { size, activation, gate: Gate::None, bias, row_gate: RowGate::None, sparsity: None }))
    })
}

/// Returns the model with feed-forwards from `ffn`, which takes a layer's index and its feed-forward width.
pub(super) fn spec_with(keys: &Keys<'_>, ffn: impl Fn(&ModelSpec, usize, usize) -> Result<Ffn>) -> Result<ModelSpec> {
    // Converters use either key for the epsilon of the RMS norms.
    let rms = "attention.layer_norm_rms_epsilon";
    let eps = if keys.opt_f32(rms)?.is_some() { keys.eps(rms)? } else { keys.eps("attention.layer_norm_epsilon")? };
    let mut model = keys.model_with(NormSpec::rms(eps))?;
    let layers = keys.layers_of(&model)?.end;
    let (kv_heads, sizes) = (keys.counts("attention.head_count_kv")?, keys.counts("feed_forward_length")?);
    for (layer, (kv_heads, size)) in kv_heads.into_iter().zip(sizes).enumerate().take(layers) {
        let alone =
            |mixer| LayerSpec { mixer_norms: NORM, ffn_norms: Norms::NONE, ..LayerSpec::with_mixer(mixer, Ffn::None) };
        let spec = match (kv_heads, size) {
            (0, 0) => alone(Mixer::Mamba2(keys.mamba2(layer, eps)?)),
            (_, 0) => {
                let attention = keys.attention(&mut model, layer, LayerRope::None)?;
                let scale = keys.opt_positive("attention.scale")?.unwrap_or(attention.scoring.scale);
                alone(Mixer::Attention(AttentionSpec {
                    scoring: Scoring::scaled(scale),
                    qkv_bias: Presence::Optional,
                    output_bias: Presence::Optional,
                    ..attention
                }))
            }
            (0, size) => LayerSpec {
                mixer_norms: Norms::NONE,
                ffn_norms: NORM,
                ..LayerSpec::with_mixer(Mixer::None, ffn(&model, layer, size)?)
            },
            (kv_heads, size) => {
                let problem = format!(
                    "is {size} in layer {layer}, which has {kv_heads} KV heads; expected 0 for one of them: a layer is \
                     either attention or a feed-forward"
                );
                return Err(keys.error("feed_forward_length", problem));
            }
        };
        model.layers.push(spec);
    }
    Ok(model)
}
