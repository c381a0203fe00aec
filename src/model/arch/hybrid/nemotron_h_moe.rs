//! `nemotron_h_moe`: Nemotron 3 Nano. The layers of `nemotron_h`, with a shared expert and ungated experts of squared
//! ReLU. Routing is by sigmoid with a selection bias.

use super::nemotron_h::spec_with;
use crate::Result;
use crate::backend::{Activation, ExpertSpec};
use crate::keys::Keys;
use crate::spec::{DenseSpec, Ffn, Gate, ModelSpec};

const ACTIVATION: Activation = Activation::SquaredRelu;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    if let Some(size) = keys.opt_u32("moe_latent_size")?.filter(|&size| size > 0) {
        let problem = format!("is {size}: experts on rows of another size are not supported by this version");
        return Err(keys.error("moe_latent_size", problem));
    }
    let normalize = keys.weights_are_normalized()?;
    spec_with(keys, |model, layer, _| {
        let size = keys.size_of(layer, "expert_feed_forward_length")?;
        let experts = keys.sigmoid_experts(model, size, ACTIVATION)?;
        let experts = ExpertSpec { gate: false, choice_bias: true, normalize, ..experts };
        let shared = keys.shared_expert(size, ACTIVATION)?;
        Ok(Ffn::Experts { experts, shared: shared.map(|shared| DenseSpec { gate: Gate::None, ..shared }) })
    })
}
