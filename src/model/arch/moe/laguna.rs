//! `laguna`: Laguna. Attention has a gate per head. Three of four layers have a sliding window, a different number of
//! heads and a different RoPE. Dense layers come first. The others have a shared expert and sigmoid routing with a
//! selection bias.

use crate::Result;
use crate::backend::{Activation, ExpertSpec, GateFunction, RopeKind};
use crate::keys::common::HeadKeys;
use crate::keys::rope::LayerRope;
use crate::keys::{Keys, WindowPattern};
use crate::spec::{AttentionSpec, Ffn, LayerSpec, ModelSpec, QkNorm};

/// Default: full attention in the first of four layers.
const PATTERN: WindowPattern = WindowPattern::full_is_first_of(4);

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let silu = |_| Ok(Activation::Silu);
    spec_with(keys, GateFunction::Softplus, [HeadKeys::OF_FILE, HeadKeys::ROTATED_IN_WINDOWS], [&silu, &silu])
}

/// Returns the activation of a layer.
pub(super) type OfLayer<'a> = &'a dyn Fn(usize) -> Result<Activation>;

/// Returns the model with these gates. `full` and `windowed` are the head keys of layers without and with a window. The
/// activations are those of experts, and of all other feed-forwards.
pub(super) fn spec_with(
    keys: &Keys<'_>,
    gates: GateFunction,
    [full, windowed]: [HeadKeys; 2],
    [of_experts, of_dense]: [OfLayer<'_>; 2],
) -> Result<ModelSpec> {
    let mut model = keys.model()?;
    let dense_layers = keys.leading_dense_layers()?;
    let size = keys.size("expert_feed_forward_length")?;
    let experts = ExpertSpec { choice_bias: true, ..keys.experts(&model, size, Activation::Silu)? };
    let (is_windowed, window) = (keys.windowed_layers(PATTERN)?, keys.required_window()?);
    let base_of_windows = keys.rope_base("rope.freq_base_swa")?;
    for layer in keys.layers_of(&model)? {
        let (heads, window, rope) = match is_windowed[layer] {
            true => (windowed, Some(window), LayerRope::OfBase(RopeKind::Neox, base_of_windows)),
            false => (full, None, LayerRope::OfFile(RopeKind::Neox)),
        };
        let attention = AttentionSpec {
            qk_norm: Some(QkNorm::Heads),
            head_gates: Some(gates),
            ..keys.attention_by(heads, &mut model, layer, window, rope)?
        };
        let ffn = match layer < dense_layers {
            true => keys.dense(layer, of_dense(layer)?)?,
            false => Ffn::Experts {
                experts: ExpertSpec { activation: of_experts(layer)?, ..experts },
                shared: keys.shared_expert(size, of_dense(layer)?)?,
            },
        };
        model.layers.push(LayerSpec::new(attention, ffn));
    }
    Ok(model)
}
