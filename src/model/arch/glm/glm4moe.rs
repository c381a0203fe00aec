//! `glm4moe`: GLM-4.5, 4.6 and Air. Dense layers come first. The others have one shared expert and sigmoid routing with
//! a selection bias. The norm before the feed-forward is named `post_attention_norm`.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, Norms, Presence, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    let dense_layers = keys.leading_dense_layers()?;
    let expert_size = keys.size("expert_feed_forward_length")?;
    let experts = keys.experts(&model, expert_size, Activation::Silu)?;
    let experts = ExpertSpec { choice_bias: true, ..experts };
    let num_layers = keys.layers_of(&model)?.end;
    let num_drafters = usize::from(keys.wants_drafter && model.nextn_layers > 0);
    for layer in 0..num_layers + num_drafters {
        let norms = keys.gguf.tensor(&format!("blk.{layer}.attn_q_norm.weight"));
        let attention = AttentionSpec {
            qkv_bias: Presence::Optional,
            // The smaller model has no norms.
            qk_norm: norms.map(|_| QkNorm::Heads),
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = match layer < dense_layers {
            true => keys.dense(layer, Activation::Silu)?,
            false => Ffn::Experts { experts, shared: keys.shared_expert(expert_size, Activation::Silu)? },
        };
        let ffn_norms = Norms::before("post_attention_norm");
        model.layers.push(LayerSpec { ffn_norms, ..LayerSpec::new(attention, ffn) });
    }
    model.drafter = model.layers.drain(num_layers..).next();
    // Files of vision models give each pair one of three RoPE positions.
    model.sections = keys.sections(&model, false)?;
    Ok(model)
}
