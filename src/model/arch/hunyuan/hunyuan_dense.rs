//! `hunyuan-dense`: Hunyuan dense models. Norms of q and k heads after RoPE. The file's RoPE base already includes the
//! scaling for long contexts.

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
            qk_norm: Some(QkNorm::HeadsAfterRope),
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        let ffn = keys.dense(layer, Activation::Silu)?;
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
