//! `gpt-oss`: experts in every layer, with biases; a learned sink beside the keys of each head; a sliding window in
//! every other layer. The norm before the feed-forward goes by the name of one after attention.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, Norms, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_shared_experts()?;
    let mut model = keys.model()?;
    let size = keys.size("expert_feed_forward_length")?;
    let experts = keys.experts(&model, size, Activation::ClampedSwiglu)?;
    // The softmax over the chosen alone is that over all, divided by the sum of the chosen.
    let experts = ExpertSpec { router_bias: true, biases: true, normalize: true, ..experts };
    let window = keys.required_window()?;
    for layer in 0..keys.layers()? {
        let window = layer.is_multiple_of(2).then_some(window);
        let attention = AttentionSpec {
            sinks: true,
            qkv_bias: Presence::Required,
            output_bias: Presence::Required,
            ..keys.attention_over(&mut model, layer, window, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn_norms = Norms::before("post_attention_norm");
        let ffn = Ffn::Experts { experts, shared: None };
        model.layers.push(LayerSpec { ffn_norms, ..LayerSpec::new(attention, ffn) });
    }
    Ok(model)
}
