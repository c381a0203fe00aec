//! `nemotron_h`: Nemotron-H and Nemotron Nano 2: each layer is one of Mamba-2, attention without RoPE, and a
//! feed-forward of squared ReLU without a gate. A layer with KV heads is attention, one with a feed-forward's width is
//! that.

use crate::Result;
use crate::backend::{Activation, NormKind, Scoring};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, DenseSpec, Ffn, Gate, LayerSpec, Mixer, ModelSpec, NormSpec, Norms, Presence};

/// The norm of a layer, whatever the layer is.
const NORM: Norms = Norms::before("attn_norm");

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    spec_with(keys, |_, _, size| {
        let (activation, bias) = (Activation::SquaredRelu, Presence::Optional);
        Ok(Ffn::Dense(DenseSpec { size, activation, gate: Gate::None, bias, row_gate: false }))
    })
}

/// The model with what `ffn` makes of a layer's number and of the width that the file gives its feed-forward.
pub(super) fn spec_with(keys: &Keys<'_>, ffn: impl Fn(&ModelSpec, usize, usize) -> Result<Ffn>) -> Result<ModelSpec> {
    // Converters have called it by either name; it is that of an RMS norm.
    let rms = "attention.layer_norm_rms_epsilon";
    let eps = if keys.opt_f32(rms)?.is_some() { keys.eps(rms)? } else { keys.eps("attention.layer_norm_epsilon")? };
    let mut model = keys.model_with(NormSpec { kind: NormKind::Rms, eps, bias: false })?;
    let layers = keys.layers()?;
    model.nextn_layers = keys.opt_u32("nextn_predict_layers")?.map_or(0, |count| (count as usize).min(layers - 1));
    let (kv_heads, sizes) = (keys.counts("attention.head_count_kv")?, keys.counts("feed_forward_length")?);
    for (layer, (kv_heads, size)) in kv_heads.into_iter().zip(sizes).enumerate().take(layers - model.nextn_layers) {
        let alone =
            |mixer| LayerSpec { mixer_norms: NORM, ffn_norms: Norms::NONE, ..LayerSpec::with_mixer(mixer, Ffn::None) };
        let spec = match (kv_heads, size) {
            (0, 0) => alone(Mixer::Mamba2(keys.mamba2(layer, eps)?)),
            (_, 0) => {
                let attention = keys.attention(&mut model, layer, LayerRope::None)?;
                let scale = keys.opt_positive("attention.scale")?.unwrap_or(attention.scoring.scale);
                alone(Mixer::Attention(AttentionSpec {
                    scoring: Scoring { scale, softcap: None },
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
