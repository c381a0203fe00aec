//! `qwen2moe`: Qwen 1.5 and 2 with experts (A2.7B, 57B-A14B). Biases on q, k and v, experts whose weights are not
//! normalized, and a shared expert with its own gate.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, DenseSpec, Ffn, LayerSpec, ModelSpec, Presence, RowGate};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    let size = keys.size("expert_feed_forward_length")?;
    let experts = keys.experts(&model, size, Activation::Silu)?;
    let experts = ExpertSpec { normalize: keys.weights_are_normalized()?, ..experts };
    let shared = keys.shared_expert(size, Activation::Silu)?;
    let shared = shared.map(|shared| DenseSpec { row_gate: RowGate::Own, ..shared });
    for layer in keys.layers_of(&model)? {
        let attention = AttentionSpec {
            qkv_bias: Presence::Required,
            ..keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?
        };
        model.layers.push(LayerSpec::new(attention, Ffn::Experts { experts, shared }));
    }
    Ok(model)
}
