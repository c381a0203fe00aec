//! `mellum`: Mellum 2. The layers of `qwen3moe`, with a sliding window in the layers that the file lists. These layers
//! do not use the RoPE scaling for long contexts.

use crate::Result;
use crate::backend::Activation;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, QkNorm};

/// Default: full attention in the last of four layers.
const PATTERN: WindowPattern = WindowPattern::full_is_last_of(4);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_shared_experts()?;
    let mut model = keys.model()?;
    let experts = keys.experts(&model, keys.size("expert_feed_forward_length")?, Activation::Silu)?;
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.window()?);
    let base = keys.rope_base_of_windows()?;
    for layer in keys.layers_of(&model)? {
        let window = window.filter(|_| is_windowed[layer]);
        let attention = keys.attention_by_window(&mut model, layer, window, base)?;
        let attention = AttentionSpec { qk_norm: Some(QkNorm::Heads), ..attention };
        model.layers.push(LayerSpec::new(attention, Ffn::Experts { experts, shared: None }));
    }
    Ok(model)
}
