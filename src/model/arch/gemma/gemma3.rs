//! `gemma3`: the text part of Gemma 3. Like `gemma2`, with norms of q and k heads and no soft cap on scores. Only every
//! sixth layer has full attention. Layers with a window have their own RoPE base and no RoPE scaling. Models of other
//! makers have no window at all.

use super::gemma2::score_scale;
use crate::Result;
use crate::backend::{Activation, Scoring};
use crate::keys::{Keys, WindowPattern};
use crate::spec::{AttentionSpec, LayerSpec, LogitsSpec, ModelSpec, Norms, QkNorm};

/// Default: full attention in the last of six layers.
const PATTERN: WindowPattern = WindowPattern::full_is_last_of(6);
/// Number of layers of the largest model. Its scores are scaled like those of `gemma2`'s largest.
const LAYERS_OF_27B: usize = 62;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    model.embedding_scale = (model.hidden_size as f32).sqrt();
    model.logits = LogitsSpec { softcap: keys.opt_positive("final_logit_softcapping")?, ..LogitsSpec::PLAIN };
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.window()?);
    let base_of_windows = keys.rope_base("rope.freq_base_swa")?;
    let layers = keys.layers_of(&model)?;
    let is_27b = layers.len() == LAYERS_OF_27B;
    for layer in layers {
        let window = window.filter(|_| is_windowed[layer]);
        let attention = keys.attention_by_window(&mut model, layer, window, base_of_windows)?;
        let scale = score_scale(&model, attention.qkv, is_27b);
        let scoring = Scoring::scaled(scale);
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
