//! `granite_swa`: Granite with sliding windows in the layers that the file lists. The factors of `granitemoe`, and a
//! learned attention sink per head. The feed-forward is dense, or has experts and a shared expert with gate and up in
//! one tensor.

use crate::Result;
use crate::arch::moe::granitemoe::{scaled_attention_over, scaled_model};
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{AttentionSpec, DenseSpec, Ffn, Gate, LayerSpec, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let mut model = scaled_model(keys)?;
    let (is_windowed, window) = (keys.listed_windows()?, keys.required_window()?);
    let has_experts = keys.opt_u32("expert_count")?.is_some_and(|count| count > 0);
    for layer in keys.layers_of(&model)? {
        let (window, rope) = (is_windowed[layer].then_some(window), LayerRope::OfFile(RopeKind::Norm));
        let attention = scaled_attention_over(keys, &mut model, layer, window, rope)?;
        let ffn = if has_experts { experts(keys, &model)? } else { keys.dense(layer, Activation::Silu)? };
        model.layers.push(LayerSpec::new(AttentionSpec { sinks: true, ..attention }, ffn));
    }
    Ok(model)
}

/// The key for the width of dense models is the width of each expert.
fn experts(keys: &Keys<'_>, model: &ModelSpec) -> Result<Ffn> {
    let size = keys.size("feed_forward_length")?;
    let experts = keys.experts(model, size, Activation::Silu)?;
    let shared = keys.shared_expert(size, Activation::Silu)?;
    Ok(Ffn::Experts { experts, shared: shared.map(|shared| DenseSpec { gate: Gate::InUp, ..shared }) })
}
