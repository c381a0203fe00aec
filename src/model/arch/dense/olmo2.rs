//! `olmo2`: OLMo 2 and 3. Norms of q and k over all heads at once, and norms only after attention and feed-forward.
//! OLMo 3 has a sliding window in three of four layers. These layers do not use the RoPE scaling for long contexts.

use crate::Result;
use crate::backend::Activation;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{AttentionSpec, LayerSpec, ModelSpec, Norms, QkNorm};

/// Default: full attention in the last of four layers.
const PATTERN: WindowPattern = WindowPattern::full_is_last_of(4);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.window()?);
    let base = keys.rope_base_of_windows()?;
    for layer in keys.layers_of(&model)? {
        let window = window.filter(|_| is_windowed[layer]);
        let attention = keys.attention_by_window(&mut model, layer, window, base)?;
        let attention = AttentionSpec { qk_norm: Some(QkNorm::Rows), ..attention };
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms::after("post_attention_norm"),
            ffn_norms: Norms::after("post_ffw_norm"),
            ..LayerSpec::new(attention, ffn)
        });
    }
    Ok(model)
}
