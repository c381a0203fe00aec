//! `qwen35`: the dense models of Qwen 3.5, 3.6 and 3.8: gated delta nets, and attention with a gate on its result, by
//! default in every fourth layer; the norm before the feed-forward goes by the name of one after attention.

use crate::Result;
use crate::backend::{Activation, HeadOrder, QkvLayout, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, DeltaNetSpec, Ffn, LayerSpec, Mixer, ModelSpec, Norms, Projections, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    let delta_net = keys.delta_net(HeadOrder::Tiled, Projections::Apart)?;
    add_layers(keys, &mut model, delta_net, |layer| keys.dense(layer, Activation::Silu))?;
    Ok(model)
}

/// Adds the layers, each of the kind that the file says, with this feed-forward, and the drafter's, which is one of
/// attention.
pub(super) fn add_layers(
    keys: &Keys<'_>,
    model: &mut ModelSpec,
    delta_net: DeltaNetSpec,
    ffn: impl Fn(usize) -> Result<Ffn>,
) -> Result<()> {
    model.nextn_layers = keys.nextn_layers()?;
    let num_layers = keys.layers()? - model.nextn_layers;
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
    // For text, the three positions of its RoPE are one.
    let attention = keys.attention(model, layer, LayerRope::OfFile(RopeKind::Neox))?;
    let qkv = QkvLayout { gated: true, ..attention.qkv };
    Ok(Mixer::Attention(AttentionSpec { qkv, qk_norm: Some(QkNorm::Heads), ..attention }))
}
