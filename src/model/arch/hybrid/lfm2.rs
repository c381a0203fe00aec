//! `lfm2`: Liquid's LFM2. Layers without KV heads are short convolutions, the others attention with norms of q and k.
//! The norm before the output projection is named `token_embd_norm`.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Ffn, LayerSpec, Mixer, ModelSpec, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    spec_with(keys, |_, layer| keys.dense(layer, Activation::Silu))
}

/// Returns the model with the feed-forward of each layer from `ffn`.
pub(super) fn spec_with(keys: &Keys<'_>, ffn: impl Fn(&ModelSpec, usize) -> Result<Ffn>) -> Result<ModelSpec> {
    // Ollama's converter gives the output norm the name that it has in all other models.
    let output_norm = match keys.gguf.tensor("output_norm.weight") {
        Some(_) => "output_norm",
        None => "token_embd_norm",
    };
    let mut model = ModelSpec { output_norm: Some(output_norm), ..keys.model()? };
    let convolution = keys.short_convolution(model.hidden_size)?;
    let (layers, kv_heads) = (keys.layers_of(&model)?, keys.counts("attention.head_count_kv")?);
    for (layer, kv_heads) in layers.zip(kv_heads) {
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
