//! `falcon`: Falcon 7B, 40B and 180B. Attention and feed-forward run side by side, after one LayerNorm. In the larger
//! models each has its own.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::layers::of_layer;
use crate::spec::{Gate, LayerSpec, ModelSpec, Norms};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model_with(keys.layer_norm(true)?)?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        let ffn = keys.dense_of(layer, Activation::GeluErf, Gate::None)?;
        // With two norms, `attn_norm` is the feed-forward's. A single `attn_norm` is attention's.
        let [mixer_norms, ffn_norms] = match keys.gguf.tensor(&of_layer(layer, "attn_norm_2.weight")) {
            Some(_) => [Norms::before("attn_norm_2"), Norms::before("attn_norm")],
            None => [Norms::before("attn_norm"), Norms::NONE],
        };
        model.layers.push(LayerSpec { mixer_norms, ffn_norms, parallel: true, ..LayerSpec::new(attention, ffn) });
    }
    Ok(model)
}
