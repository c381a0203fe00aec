//! `qwen35`: the dense models of Qwen 3.5, 3.6 and 3.8. Gated delta nets, and by default attention with gates in every
//! fourth layer. The norm before the feed-forward is named `post_attention_norm`.

use crate::Result;
use crate::backend::{Activation, HeadOrder, QkvLayout, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{
    AttentionSpec, DeltaNetSpec, Ffn, LayerSpec, Mixer, ModelSpec, Norms, Presence, Projections, QkNorm,
};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    let delta_net = keys.delta_net(HeadOrder::Tiled, Projections::Apart)?;
    add_layers(keys, &mut model, delta_net, |layer| keys.dense(layer, Activation::Silu))?;
    model.sections = keys.sections(&model, true)?;
    Ok(model)
}

/// Adds the layers with this feed-forward, each of the kind in the file. The layer of the MTP block is an attention
/// layer.
pub(super) fn add_layers(
    keys: &Keys<'_>,
    model: &mut ModelSpec,
    delta_net: DeltaNetSpec,
    ffn: impl Fn(usize) -> Result<Ffn>,
) -> Result<()> {
    let num_layers = keys.layers_of(model)?.end;
    let ffn_norms = Norms::before("post_attention_norm");
    let layer_of = |layer: usize, mixer| Ok(LayerSpec { ffn_norms, ..LayerSpec::with_mixer(mixer, ffn(layer)?) });
    let kinds = keys.recurrent_layers()?;
    for (layer, is_recurrent) in kinds.into_iter().enumerate().take(num_layers) {
        let mixer = if is_recurrent { Mixer::DeltaNet(delta_net) } else { attention(keys, model, layer)? };
        model.layers.push(layer_of(layer, mixer)?);
    }
    if keys.wants_drafter && model.nextn_layers > 0 {
        let mixer = attention(keys, model, num_layers)?;
        model.drafter = Some(layer_of(num_layers, mixer)?);
    }
    Ok(())
}

fn attention(keys: &Keys<'_>, model: &mut ModelSpec, layer: usize) -> Result<Mixer> {
    // For text, the three RoPE positions are equal.
    let attention = keys.attention(model, layer, LayerRope::OfFile(RopeKind::Neox))?;
    let qkv = QkvLayout { gated: true, ..attention.qkv };
    let (qkv_bias, qk_norm) = (Presence::Absent, Some(QkNorm::Heads));
    Ok(Mixer::Attention(AttentionSpec { qkv, qkv_bias, qk_norm, ..attention }))
}
