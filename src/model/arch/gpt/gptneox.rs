//! `gptneox`: GPT-NeoX, Pythia and others. Attention and feed-forward run side by side, each after its own LayerNorm,
//! or in sequence. q, k and v are one tensor, and a part of each head is rotated.

use crate::Result;
use crate::backend::{Activation, RopeKind};
use crate::keys::Keys;
use crate::keys::rope::LayerRope;
use crate::spec::{Gate, LayerSpec, ModelSpec};

const PARALLEL: &str = "use_parallel_residual";

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    let parallel = keys.opt_bool(PARALLEL)?.ok_or_else(|| keys.missing(PARALLEL))?;
    let mut model = keys.model_with(keys.layer_norm(true)?)?;
    for layer in keys.layers_of(&model)? {
        let attention = keys.attention(&mut model, layer, LayerRope::OfFile(RopeKind::Neox))?;
        let ffn = keys.dense_of(layer, Activation::GeluErf, Gate::None)?;
        model.layers.push(LayerSpec { parallel, ..LayerSpec::new(attention, ffn) });
    }
    Ok(model)
}
