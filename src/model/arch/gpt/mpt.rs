//! `mpt`: MPT 7B and 30B. Positions are ALiBi's, q, k and v may be clamped, and the feed-forward has no gate.

use crate::Result;
use crate::backend::{Activation, Scoring};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Gate, LayerSpec, ModelSpec};

const ALIBI: &str = "attention.max_alibi_bias";

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let has_bias = keys.gguf.tensor("output_norm.bias").is_some();
    let mut model = keys.model_with(keys.layer_norm(has_bias)?)?;
    let clamp = keys.clamp()?;
    let alibi = keys.opt_positive(ALIBI)?.ok_or_else(|| keys.missing(ALIBI))?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::None)?;
        let scoring = Scoring { alibi: Some(alibi), ..attention.scoring };
        let ffn = keys.dense_of(layer, Activation::GeluErf, Gate::None)?;
        model.layers.push(LayerSpec::new(AttentionSpec { scoring, clamp, ..attention }, ffn));
    }
    Ok(model)
}
