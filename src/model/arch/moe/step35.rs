//! `step35`: Step 3.5 Flash. The layers of `laguna`, with sigmoid gates per head. Layers without a window rotate half
//! of each head. In some layers the two factors of a feed-forward are clamped.

use super::laguna::spec_with;
use crate::Result;
use crate::backend::{Activation, GateFunction};
use crate::keys::Keys;
use crate::keys::common::HeadKeys;
use crate::spec::ModelSpec;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let heads = [HeadKeys::HALF_ROTATED, HeadKeys::OF_FILE];
    let of_experts = |layer| activation(keys, layer, "swiglu_clamp_exp");
    let of_dense = |layer| activation(keys, layer, "swiglu_clamp_shexp");
    spec_with(keys, GateFunction::Sigmoid, heads, [&of_experts, &of_dense])
}

/// A limit of 0 means none.
fn activation(keys: &Keys<'_>, layer: usize, key: &str) -> Result<Activation> {
    match keys.opt_number_of(layer, &keys.full(key))? {
        None | Some(0.0) => Ok(Activation::Silu),
        Some(limit) if Activation::is_limit(limit) => Ok(Activation::ClampedSilu { limit }),
        Some(limit) => {
            let problem = format!("holds {limit}; this version takes limits above 0, of 16 bits of precision");
            Err(keys.error(key, problem))
        }
    }
}
