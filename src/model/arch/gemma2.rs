//! `gemma2`: Gemma 2: norms on both sides of attention and feed-forward, soft caps of scores and logits, a sliding
//! window in every other layer, embeddings times the root of their size.

use crate::Result;
use crate::backend::{Activation, QkvLayout, RopeKind, Scoring};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, LayerSpec, LogitsSpec, ModelSpec, Norms};

/// The largest model is the one with so many layers; no key of the file says so.
const LAYERS_OF_27B: usize = 46;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    model.embedding_scale = (model.hidden_size as f32).sqrt();
    model.logits = LogitsSpec { softcap: keys.opt_positive("final_logit_softcapping")?, ..LogitsSpec::PLAIN };
    let (layers, window) = (keys.layers()?, keys.required_window()?);
    for layer in 0..layers {
        let window = layer.is_multiple_of(2).then_some(window);
        let attention = keys.attention_over(&mut model, layer, window, LayerRope::OfFile(RopeKind::Neox))?;
        let softcap = keys.opt_positive("attn_logit_softcapping")?;
        let scoring = Scoring { scale: score_scale(&model, attention.qkv, layers == LAYERS_OF_27B), softcap };
        let ffn = keys.dense(layer, Activation::Gelu)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms::around("attn_norm", "post_attention_norm"),
            ffn_norms: Norms::around("ffn_norm", "post_ffw_norm"),
            ..LayerSpec::new(AttentionSpec { scoring, ..attention }, ffn)
        });
    }
    Ok(model)
}

/// Factor on scores: 1 / sqrt(head size), in the largest model 1 / sqrt(hidden size / heads).
pub(super) fn score_scale(model: &ModelSpec, qkv: QkvLayout, is_27b: bool) -> f32 {
    let size = if is_27b { model.hidden_size / qkv.num_heads } else { qkv.head_dim };
    1.0 / (size as f32).sqrt()
}
