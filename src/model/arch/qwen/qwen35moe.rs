//! `qwen35moe`: Qwen 3.5, 3.6 and 3.8 with experts (35B-A3B, 122B-A10B). The layers of `qwen35`, each with experts and
//! a shared expert with its own gate.

use super::qwen35::add_layers;
use crate::Result;
use crate::backend::{Activation, HeadOrder};
use crate::keys::Keys;
use crate::spec::{DeltaNetSpec, DenseSpec, Ffn, ModelSpec, Projections, RowGate};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let model = spec_with(keys, keys.delta_net(HeadOrder::Tiled, Projections::Apart)?)?;
    Ok(ModelSpec { sections: keys.sections(&model, true)?, ..model })
}

/// Returns the model with gated delta nets of this kind.
pub(super) fn spec_with(keys: &Keys<'_>, delta_net: DeltaNetSpec) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    let size = keys.size("expert_feed_forward_length")?;
    let experts = keys.experts(&model, size, Activation::Silu)?;
    let shared = keys.shared_expert(size, Activation::Silu)?;
    let shared = shared.map(|shared| DenseSpec { row_gate: RowGate::Own, ..shared });
    add_layers(keys, &mut model, delta_net, |_| Ok(Ffn::Experts { experts, shared }))?;
    Ok(model)
}
