//! `afmoe`: Trinity. Attention has element-wise gates, and both halves of a layer have norms before and after. Three of
//! four layers have a sliding window with RoPE, the fourth has full attention without RoPE. Dense layers come first.
//! The others have a shared expert and sigmoid routing with a selection bias. Embeddings are multiplied by the root of
//! their size.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, QkvLayout, RopeKind};
use crate::keys::rope::LayerRope;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, Norms, QkNorm};

/// Default: full attention in the last of four layers.
const PATTERN: WindowPattern = WindowPattern::full_is_last_of(4);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    model.embedding_scale = (model.hidden_size as f32).sqrt();
    let dense_layers = keys.leading_dense_layers()?;
    let size = keys.size("expert_feed_forward_length")?;
    let experts = ExpertSpec { choice_bias: true, ..keys.experts(&model, size, Activation::Silu)? };
    for layer in keys.layers_of(&model)? {
        let attention = gated_attention(keys, &mut model, layer, RopeKind::Neox)?;
        let ffn = match layer < dense_layers {
            true => keys.dense(layer, Activation::Silu)?,
            false => Ffn::Experts { experts, shared: keys.shared_expert(size, Activation::Silu)? },
        };
        model.layers.push(LayerSpec {
            mixer_norms: Norms::around("attn_norm", "post_attention_norm"),
            ffn_norms: Norms::around("ffn_norm", "post_ffw_norm"),
            ..LayerSpec::new(attention, ffn)
        });
    }
    Ok(model)
}

/// Returns attention with per-head norms of q and k and element-wise gates. It has RoPE with a window, and none without
/// a window.
pub(super) fn gated_attention(
    keys: &Keys<'_>,
    model: &mut ModelSpec,
    layer: usize,
    kind: RopeKind,
) -> Result<AttentionSpec> {
    let window = keys.required_window()?;
    let (window, rope) = match keys.windowed_layers(PATTERN)?[layer] {
        true => (Some(window), LayerRope::OfFile(kind)),
        false => (None, LayerRope::None),
    };
    let attention = keys.attention_over(model, layer, window, rope)?;
    let qkv = QkvLayout { gated: true, ..attention.qkv };
    Ok(AttentionSpec { qkv, own_gates: true, qk_norm: Some(QkNorm::Heads), ..attention })
}
