//! `exaone4`: EXAONE 4. Norms of q and k heads, and norms only after attention and feed-forward. The smaller model has
//! full attention. The larger one has a sliding window in three of four layers, and no RoPE in the fourth.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::rope::LayerRope;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{AttentionSpec, LayerSpec, ModelSpec, Norms, QkNorm};

/// Default for models with windows: full attention in the last of four layers.
const PATTERN: WindowPattern = WindowPattern::full_is_last_of(4);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.window()?);
    for layer in keys.layers_of(&model)? {
        let (window, rope) = match window.is_some() && !is_windowed[layer] {
            true => (None, LayerRope::None),
            false => (window, LayerRope::OfFile(RopeKind::Neox)),
        };
        let attention = keys.attention_over(&mut model, layer, window, rope)?;
        let attention = AttentionSpec { qk_norm: Some(QkNorm::Heads), ..attention };
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms::after("post_attention_norm"),
            ffn_norms: Norms::after("post_ffw_norm"),
            ..LayerSpec::new(attention, ffn)
        });
    }
    Ok(model)
}
