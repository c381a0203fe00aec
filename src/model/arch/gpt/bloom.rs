//! `bloom`: BLOOM and BLOOMZ. Positions are ALiBi's, a norm follows the embeddings, and the feed-forward has no gate.

use crate::Result;
use crate::backend::{Activation, Scoring};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, EmbeddingSpec, Gate, LayerSpec, ModelSpec};

/// The largest exponent of slopes. The files have no key for it.
const ALIBI: f32 = 8.0;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let mut model = keys.model_with(keys.layer_norm(true)?)?;
    model.embedding = EmbeddingSpec { norm: Some("token_embd_norm"), ..model.embedding };
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::None)?;
        let scoring = Scoring { alibi: Some(ALIBI), ..attention.scoring };
        let ffn = keys.dense_of(layer, Activation::Gelu, Gate::None)?;
        model.layers.push(LayerSpec::new(AttentionSpec { scoring, ..attention }, ffn));
    }
    Ok(model)
}
