//! `lfm2moe`: LFM2 with experts (8B-A1B). The layers of `lfm2`, dense ones first. The others have sigmoid routing with
//! a selection bias.

use super::lfm2::spec_with;
use crate::Result;
use crate::backend::{Activation, ExpertSpec};
use crate::keys::Keys;
use crate::spec::{Ffn, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let dense_layers = keys.leading_dense_layers()?;
    let size = keys.size("expert_feed_forward_length")?;
    spec_with(keys, |model, layer| match layer < dense_layers {
        true => keys.dense(layer, Activation::Silu),
        false => {
            let experts = keys.experts(model, size, Activation::Silu)?;
            Ok(Ffn::Experts { experts: ExpertSpec { choice_bias: true, ..experts }, shared: None })
        }
    })
}
