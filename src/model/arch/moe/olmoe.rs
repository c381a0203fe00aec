//! `olmoe`: OLMoE. Norms of q and k over all heads at once, and experts whose weights are not normalized. The key for
//! the width of dense models is the width of each expert.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_shared_experts()?;
    let mut model = keys.model()?;
    let experts = keys.experts(&model, keys.size("feed_forward_length")?, Activation::Silu)?;
    let experts = ExpertSpec { normalize: keys.weights_are_normalized()?, ..experts };
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        let attention = AttentionSpec { qk_norm: Some(QkNorm::Rows), ..attention };
        model.layers.push(LayerSpec::new(attention, Ffn::Experts { experts, shared: None }));
    }
    Ok(model)
}
