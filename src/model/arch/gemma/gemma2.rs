//! `gemma2`: Gemma 2. Norms before and after attention and feed-forward, and soft caps on scores and logits. Every
//! other layer has a sliding window. Embeddings are multiplied by the root of their size.

use crate::Result;
use crate::backend::{Activation, QkvLayout, RopeKind, Scoring};
use crate::keys::rope::LayerRope;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{AttentionSpec, LayerSpec, LogitsSpec, ModelSpec, Norms};

/// Number of layers of the largest model. No key identifies it.
const LAYERS_OF_27B: usize = 46;

/// Default: full attention in the second of two layers.
const PATTERN: WindowPattern = WindowPattern::full_is_last_of(2);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    model.embedding_scale = (model.hidden_size as f32).sqrt();
    model.logits = LogitsSpec { softcap: keys.opt_positive("final_logit_softcapping")?, ..LogitsSpec::PLAIN };
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.required_window()?);
    let layers = keys.layers_of(&model)?;
    let is_27b = layers.len() == LAYERS_OF_27B;
    for layer in layers {
        let window = is_windowed[layer].then_some(window);
        let attention = keys.attention_over(&mut model, layer, window, LayerRope::OfFile(RopeKind::Neox))?;
        let softcap = keys.opt_positive("attn_logit_softcapping")?;
        let scoring = Scoring { softcap, ..Scoring::scaled(score_scale(&model, attention.qkv, is_27b)) };
        let ffn = keys.dense(layer, Activation::Gelu)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms::around("attn_norm", "post_attention_norm"),
            ffn_norms: Norms::around("ffn_norm", "post_ffw_norm"),
            ..LayerSpec::new(AttentionSpec { scoring, ..attention }, ffn)
        });
    }
    Ok(model)
}

/// Returns the factor on scores: 1 / sqrt(head size), or 1 / sqrt(hidden size / heads) in the largest model.
pub(super) fn score_scale(model: &ModelSpec, qkv: QkvLayout, is_27b: bool) -> f32 {
    let size = if is_27b { model.hidden_size / qkv.num_heads } else { qkv.head_dim };
    1.0 / (size as f32).sqrt()
}
