//! `granitemoe`: Granite 3 with experts, and a shared expert if the file has one. The model has four factors: on the
//! embeddings, on the output of each half of a layer, on the scores and under the logits.

use crate::Result;
use crate::backend::{Activation, RopeKind, Scoring};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Ffn, LayerSpec, LogitsSpec, ModelSpec, Presence};

pub(in crate::arch) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = scaled_model(keys)?;
    // The key for the width of dense models is the width of each expert.
    let expert_size = keys.size("feed_forward_length")?;
    let experts = keys.experts(&model, expert_size, Activation::Silu)?;
    for layer in keys.layers_of(&model)? {
        let attention = scaled_attention(keys, &mut model, layer)?;
        let shared = keys.shared_expert(expert_size, Activation::Silu)?;
        model.layers.push(LayerSpec::new(attention, Ffn::Experts { experts, shared }));
    }
    Ok(model)
}

/// Returns the model without its layers, with its factors applied.
///
/// A factor `r` on the output of each half of a layer, `x += r f(norm(x))`, needs no extra code. With `y = x / r` it
/// becomes `y += f(norm(r y))`. And `norm(r y)` is `norm(y)` with its epsilon divided by `r²`. So the embeddings are
/// divided by `r`, and `eps` by `r²`.
pub(in crate::arch) fn scaled_model(keys: &Keys<'_>) -> Result<ModelSpec> {
    let factor = |key: &str| Ok::<_, crate::Error>(keys.opt_positive(key)?.unwrap_or(1.0));
    let residual = factor("residual_scale")?;
    let mut model = keys.model()?;
    model.embedding_scale = factor("embedding_scale")? / residual;
    model.norm.eps /= residual * residual;
    model.logits = LogitsSpec { scale: 1.0 / factor("logit_scale")?, softcap: None };
    Ok(model)
}

/// Returns attention with the file's factor on scores, and without RoPE if the file says so.
pub(in crate::arch) fn scaled_attention(keys: &Keys<'_>, model: &mut ModelSpec, layer: usize) -> Result<AttentionSpec> {
    let rope = match keys.opt_bool("rope.scaling.finetuned")? {
        Some(false) => LayerRope::None,
        _ => LayerRope::OfFile(RopeKind::Norm),
    };
    scaled_attention_over(keys, model, layer, keys.window()?, rope)
}

/// Returns attention with the file's factor on scores.
pub(in crate::arch) fn scaled_attention_over(
    keys: &Keys<'_>,
    model: &mut ModelSpec,
    layer: usize,
    window: Option<u32>,
    rope: LayerRope,
) -> Result<AttentionSpec> {
    let attention = keys.attention_over(model, layer, window, rope)?;
    let scale = keys.opt_positive("attention.scale")?.unwrap_or(attention.scoring.scale);
    Ok(AttentionSpec {
        scoring: Scoring::scaled(scale),
        qkv_bias: Presence::Optional,
        output_bias: Presence::Optional,
        ..attention
    })
}
