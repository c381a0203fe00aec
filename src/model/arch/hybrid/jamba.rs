//! `jamba`: Jamba. Layers without KV heads are Mamba mixers with norms of time steps, B and C; the others are attention
//! without RoPE. Some layers have experts, the others one feed-forward of the same width.

use crate::Result;
use crate::backend::{Activation, ExpertSpec};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::layers::of_layer;
use crate::spec::{Ffn, LayerSpec, MambaNorms, Mixer, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_shared_experts()?;
    let mut model = keys.model()?;
    let (layers, kv_heads) = (keys.layers_of(&model)?, keys.counts("attention.head_count_kv")?);
    for (layer, kv_heads) in layers.zip(kv_heads) {
        let mixer = match kv_heads {
            0 => Mixer::Mamba(keys.mamba(layer, model.norm.eps, MambaNorms::Weighted)?),
            _ => Mixer::Attention(keys.attention(&mut model, layer, LayerRope::None)?),
        };
        let ffn = match keys.gguf.tensor(&of_layer(layer, "ffn_gate_inp.weight")) {
            Some(_) => {
                let experts = keys.experts(&model, keys.size_of(layer, "feed_forward_length")?, Activation::Silu)?;
                let experts = ExpertSpec { normalize: keys.weights_are_normalized()?, ..experts };
                Ffn::Experts { experts, shared: None }
            }
            None => keys.dense(layer, Activation::Silu)?,
        };
        model.layers.push(LayerSpec::with_mixer(mixer, ffn));
    }
    Ok(model)
}
