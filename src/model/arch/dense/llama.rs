//! `llama`: Llama 1 to 3.x, Mistral, Mixtral, SmolLM2 and similar models. The converter permutes q and k, so RoPE pairs
//! adjacent elements.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_shared_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qkv_bias: Presence::Optional,
            output_bias: Presence::Optional,
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Norm))?
        };
        let ffn = match keys.opt_u32("expert_count")?.filter(|&count| count > 0) {
            None => keys.dense(layer, Activation::Silu)?,
            Some(_) => {
                // In Mixtral's files, the key for the width of dense models is the width of each expert.
                let size = match keys.opt_size("expert_feed_forward_length")? {
                    Some(size) => size,
                    None => keys.size_of(layer, "feed_forward_length")?,
                };
                Ffn::Experts { experts: keys.experts(&model, size, Activation::Silu)?, shared: None }
            }
        };
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
