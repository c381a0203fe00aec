//! `qwen3`: Qwen 3 dense models. RMS norms of q and k heads, and a head size that is independent of the hidden size.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, LayerSpec, ModelSpec, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qk_norm: Some(QkNorm::Heads),
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
