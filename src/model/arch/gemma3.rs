//! `gemma3`: Gemma 3, its text part: as `gemma2` with norms of q and k heads in place of the soft cap of scores, and
//! full attention in every sixth layer alone. Layers with a window have a RoPE base of their own and no scaling.

use super::gemma2::score_scale;
use crate::Result;
use crate::backend::{Activation, RopeKind, Scoring};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, LayerSpec, LogitsSpec, ModelSpec, Norms, QkNorm};

/// Period of full attention where the file does not say: every sixth layer attends to everything.
const PATTERN: usize = 6;
/// Number of layers of the largest model, whose scores are scaled differently, as `gemma2`'s largest.
const LAYERS_OF_27B: usize = 62;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    model.embedding_scale = (model.hidden_size as f32).sqrt();
    model.logits = LogitsSpec { softcap: keys.opt_positive("final_logit_softcapping")?, ..LogitsSpec::PLAIN };
    let pattern = keys.opt_size("attention.sliding_window_pattern")?.unwrap_or(PATTERN);
    let base_of_windows = keys.rope_base("rope.freq_base_swa")?;
    let (layers, window) = (keys.layers()?, keys.required_window()?);
    for layer in 0..layers {
        let (window, rope) = match (layer + 1).is_multiple_of(pattern) {
            true => (None, LayerRope::OfFile(RopeKind::Neox)),
            false => (Some(window), LayerRope::OfBase(RopeKind::Neox, base_of_windows)),
        };
        let attention = keys.attention_over(&mut model, layer, window, rope)?;
        let scale = score_scale(&model, attention.qkv, layers == LAYERS_OF_27B);
        let scoring = Scoring { scale, softcap: None };
        let attention = AttentionSpec { scoring, qk_norm: Some(QkNorm::Heads), ..attention };
        let ffn = keys.dense(layer, Activation::Gelu)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms::around("attn_norm", "post_attention_norm"),
            ffn_norms: Norms::around("ffn_norm", "post_ffw_norm"),
            ..LayerSpec::new(attention, ffn)
        });
    }
    Ok(model)
}
