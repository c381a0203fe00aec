//! `olmo2`: OLMo 2: norms of q and k over all heads at once, and norms behind attention and feed-forward only.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::model::keys::Keys;
use crate::model::rope::LayerRope;
use crate::model::spec::{AttentionSpec, LayerSpec, ModelSpec, Norms, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model()?;
    for layer in 0..keys.layers()? {
        let attention = AttentionSpec {
            qk_norm: Some(QkNorm::Rows),
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec {
            mixer_norms: Norms::after("post_attention_norm"),
            ffn_norms: Norms::after("post_ffw_norm"),
            ..LayerSpec::new(attention, ffn)
        });
    }
    Ok(model)
}
