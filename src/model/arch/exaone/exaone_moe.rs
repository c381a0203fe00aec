//! `exaone-moe`: K-EXAONE. Norms of q and k heads, and the feed-forwards of `deepseek2`. Three of four layers have a
//! sliding window with RoPE, the fourth has full attention without RoPE.

use crate::Result;
use crate::backend::RopeKind;
use crate::keys::rope::LayerRope;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{AttentionSpec, LayerSpec, ModelSpec, QkNorm};

/// Default: full attention in the last of four layers.
const PATTERN: WindowPattern = WindowPattern::full_is_last_of(4);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.required_window()?);
    for layer in keys.layers_of(&model)? {
        let (window, rope) = match is_windowed[layer] {
            true => (Some(window), LayerRope::OfFile(RopeKind::Neox)),
            false => (None, LayerRope::None),
        };
        let attention = keys.attention_over(&mut model, layer, window, rope)?;
        let attention = AttentionSpec { qk_norm: Some(QkNorm::Heads), ..attention };
        let ffn = keys.dense_then_experts(&model, layer)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
