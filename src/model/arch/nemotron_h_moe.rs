//! `nemotron_h_moe`: Nemotron 3 Nano: the layers of `nemotron_h`, with experts of squared ReLU without gates, chosen by
//! the sigmoid of their logits with a bias for the choice, beside a shared one.

use super::nemotron_h::spec_with;
use crate::Result;
use crate::backend::{Activation, ExpertSpec, Gating};
use crate::model::experts::SIGMOID;
use crate::model::keys::Keys;
use crate::model::spec::{DenseSpec, Ffn, Gate, ModelSpec};

const ACTIVATION: Activation = Activation::SquaredRelu;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    if let Some(size) = keys.opt_u32("moe_latent_size")?.filter(|&size| size > 0) {
        let problem = format!("is {size}: experts on rows of another size are not supported by this version");
        return Err(keys.error("moe_latent_size", problem));
    }
    // Files may leave it out, since there is no other in this architecture.
    if let Some(gating) = keys.opt_u32("expert_gating_func")?.filter(|gating| ![0, SIGMOID].contains(gating)) {
        let problem = format!("is {gating}, expected {SIGMOID}: experts of {} models have sigmoids", keys.architecture);
        return Err(keys.error("expert_gating_func", problem));
    }
    // Weights that are to add up to one are said to.
    let normalize = keys.opt_bool("expert_weights_norm")?.unwrap_or(false);
    spec_with(keys, |model, layer, _| {
        let size = keys.size_of(layer, "expert_feed_forward_length")?;
        let experts = keys.experts(model, size, ACTIVATION)?;
        let experts = ExpertSpec { gate: false, gating: Gating::Sigmoid, choice_bias: true, normalize, ..experts };
        let shared = keys.shared_expert(size, ACTIVATION)?;
        Ok(Ffn::Experts { experts, shared: shared.map(|shared| DenseSpec { gate: Gate::None, ..shared }) })
    })
}
