//! `granitemoe`: Granite 3 with experts, and a shared one where the file says so. It has four factors: on the
//! embeddings, on the output of each half of a layer, on the scores and under the logits.

use crate::Result;
use crate::backend::{Activation, RopeKind, Scoring};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, Ffn, LayerSpec, LogitsSpec, ModelSpec, Presence};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = scaled_model(keys)?;
    // Each expert is as wide as the key for dense models says.
    let expert_size = keys.size("feed_forward_length")?;
    let experts = keys.experts(&model, expert_size, Activation::Silu)?;
    for layer in 0..keys.layers()? {
        let attention = scaled_attention(keys, &mut model, layer)?;
        let shared = keys.shared_expert(expert_size, Activation::Silu)?;
        model.layers.push(LayerSpec::new(attention, Ffn::Experts { experts, shared }));
    }
    Ok(model)
}

/// The model without its layers, its factors applied.
///
/// A factor `r` on the output of each half layer, `x += r f(norm(x))`, needs no code of its own. With `y = x / r` it is
/// `y += f(norm(r y))`, and `norm(r y)` is `norm(y)` with its epsilon divided by `r²`. So the embeddings are divided by
/// `r`, and `eps` by `r²`.
pub(super) fn scaled_model(keys: &Keys<'_>) -> Result<ModelSpec> {
    let factor = |key: &str| Ok::<_, crate::Error>(keys.opt_positive(key)?.unwrap_or(1.0));
    let residual = factor("residual_scale")?;
    let mut model = keys.model()?;
    model.embedding_scale = factor("embedding_scale")? / residual;
    model.norm.eps /= residual * residual;
    model.logits = LogitsSpec { scale: 1.0 / factor("logit_scale")?, softcap: None };
    Ok(model)
}

/// Attention with the file's own factor on scores, and without RoPE where the file says so.
pub(super) fn scaled_attention(keys: &Keys<'_>, model: &mut ModelSpec, layer: usize) -> Result<AttentionSpec> {
    let rope = match keys.opt_bool("rope.scaling.finetuned")? {
        Some(false) => LayerRope::None,
        _ => LayerRope::OfFile(RopeKind::Norm),
    };
    let attention = keys.attention(model, layer, rope)?;
    let scale = keys.opt_positive("attention.scale")?.unwrap_or(attention.scoring.scale);
    Ok(AttentionSpec {
        scoring: Scoring { scale, softcap: None },
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        ..attention
    })
}
