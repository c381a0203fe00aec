//! `lfm2`: Liquid's LFM2: short convolutions where a layer has no KV heads, attention with norms of q and k in the
//! others; the norm ahead of the output goes by the name of one of the embeddings.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, Ffn, LayerSpec, Mixer, ModelSpec, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    spec_with(keys, |_, layer| keys.dense(layer, Activation::Silu))
}

/// The model with the feed-forward that `ffn` gives each layer.
pub(super) fn spec_with(keys: &Keys<'_>, ffn: impl Fn(&ModelSpec, usize) -> Result<Ffn>) -> Result<ModelSpec> {
    let mut model = ModelSpec { output_norm: Some("token_embd_norm"), ..keys.model()? };
    let convolution = keys.short_convolution(model.hidden_size)?;
    for (layer, kv_heads) in keys.counts("attention.head_count_kv")?.into_iter().enumerate() {
        let mixer = match kv_heads {
            0 => Mixer::ShortConvolution(convolution),
            _ => {
                let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
                Mixer::Attention(AttentionSpec { qk_norm: Some(QkNorm::Heads), ..attention })
            }
        };
        let ffn = ffn(&model, layer)?;
        model.layers.push(LayerSpec::with_mixer(mixer, ffn));
    }
    Ok(model)
}
