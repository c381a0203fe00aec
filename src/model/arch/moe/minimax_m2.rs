//! `minimax-m2`: MiniMax M2. Sigmoid routing with a selection bias, norms of q and k over all heads at once, and half
//! of each head rotated.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, QkNorm};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_shared_experts()?;
    let mut model = keys.model()?;
    let experts = keys.experts(&model, keys.size("expert_feed_forward_length")?, Activation::Silu)?;
    let experts = ExpertSpec { choice_bias: true, ..experts };
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        let attention = AttentionSpec { qk_norm: Some(QkNorm::Rows), ..attention };
        model.layers.push(LayerSpec::new(attention, Ffn::Experts { experts, shared: None }));
    }
    Ok(model)
}
