//! `exaone4`: EXAONE 4: norms of q and k heads, and norms behind attention and feed-forward only. The smaller model
//! attends to everything; the larger one has a sliding window in three of four layers, and no RoPE in the fourth.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, LayerSpec, ModelSpec, Norms, QkNorm};

/// Period of full attention in a model with windows: every fourth layer attends to everything. No key says it.
const PATTERN: usize = 4;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    let window = keys.window()?;
    for layer in 0..keys.layers()? {
        let (window, rope) = match window.is_some() && (layer + 1).is_multiple_of(PATTERN) {
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
