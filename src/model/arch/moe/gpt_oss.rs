//! `gpt-oss`: experts with biases in every layer, a learned attention sink per head, and a sliding window in every
//! other layer. The norm before the feed-forward is named `post_attention_norm`.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, RopeKind};
use crate::keys::rope::LayerRope;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, Norms, Presence};

/// Default: full attention in the second of two layers.
const PATTERN: WindowPattern = WindowPattern::full_is_last_of(2);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_shared_experts()?;
    let mut model = keys.model()?;
    let size = keys.size("expert_feed_forward_length")?;
    let experts = keys.experts(&model, size, Activation::ClampedSwiglu)?;
    // A softmax over the selected experts equals the softmax over all experts, divided by the sum of the selected ones.
    let experts = ExpertSpec { router_bias: true, biases: true, normalize: true, ..experts };
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.required_window()?);
    for layer in keys.layers_of(&model)? {
        let window = is_windowed[layer].then_some(window);
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
