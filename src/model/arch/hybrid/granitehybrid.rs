//! `granitehybrid`: Granite 4.0 H. Layers without KV heads are Mamba-2, the others attention, with the factors of
//! `granitemoe`. The feed-forward is dense, or has experts and a shared expert.

use crate::Result;
use crate::arch::moe::granitemoe::{scaled_attention, scaled_model};
use crate::backend::Activation;
use crate::keys::Keys;
use crate::spec::{Ffn, LayerSpec, Mixer, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = scaled_model(keys)?;
    // The input of a mixer's internal norm has no factor, so its epsilon is not scaled.
    let eps = keys.eps("attention.layer_norm_rms_epsilon")?;
    let has_experts = keys.opt_u32("expert_count")?.is_some_and(|count| count > 0);
    let (layers, kv_heads) = (keys.layers_of(&model)?, keys.counts("attention.head_count_kv")?);
    for (layer, kv_heads) in layers.zip(kv_heads) {
        let mixer = match kv_heads {
            0 => Mixer::Mamba2(keys.mamba2(layer, eps)?),
            _ => Mixer::Attention(scaled_attention(keys, &mut model, layer)?),
        };
        let ffn = match has_experts {
            false => keys.dense(layer, Activation::Silu)?,
            true => {
                let size = keys.size_of(layer, "feed_forward_length")?;
                let experts = keys.experts(&model, size, Activation::Silu)?;
                Ffn::Experts { experts, shared: keys.shared_expert(size, Activation::Silu)? }
            }
        };
        model.layers.push(LayerSpec::with_mixer(mixer, ffn));
    }
    Ok(model)
}
