//! `mimo2`: MiMo V2 Flash. Values have fewer elements than keys, and heads have a learned attention sink. Layers with a
//! sliding window have more KV heads and a different RoPE base. Attention results have a factor. Layers with a router
//! have sigmoid routing with a selection bias.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, Scoring};
use crate::keys::{Keys, WindowPattern};
use crate::layers::of_layer;
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, Presence};

/// Default: full attention in the first of six layers.
const PATTERN: WindowPattern = WindowPattern::full_is_first_of(6);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_shared_experts()?;
    let mut model = keys.model()?;
    let size = keys.size("expert_feed_forward_length")?;
    let experts = ExpertSpec { choice_bias: true, ..keys.experts(&model, size, Activation::Silu)? };
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.required_window()?);
    let base_of_windows = keys.rope_base("rope.freq_base_swa")?;
    // The factor on values goes into the weights of the norm before q, k and v. The scores then contain its square,
    // which their scale divides out.
    let found = keys.opt_positive("attention.value_scale")?.unwrap_or(1.0);
    for layer in keys.layers_of(&model)? {
        let window = is_windowed[layer].then_some(window);
        let attention = keys.attention_by_window(&mut model, layer, window, base_of_windows)?;
        let scoring = Scoring { scale: attention.scoring.scale / (found * found), ..attention.scoring };
        let sinks = keys.gguf.tensor(&of_layer(layer, "attn_sinks.weight")).is_some();
        let ffn = match keys.gguf.tensor(&of_layer(layer, "ffn_gate_inp.weight")) {
            Some(_) => Ffn::Experts { experts, shared: None },
            None => keys.dense(layer, Activation::Silu)?,
        };
        let attention = AttentionSpec { scoring, sinks, qkv_bias: Presence::Absent, ..attention };
        let layer = LayerSpec::new(attention, ffn);
        model.layers.push(LayerSpec { before_scale: found, ..layer });
    }
    Ok(model)
}
