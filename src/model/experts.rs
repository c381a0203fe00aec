//! A layer's feed-forward: one, or experts of which a router chooses, as the metadata says.

use super::arch::{Architecture, Presence};
use super::keys::Keys;
use crate::Result;
use crate::backend::ExpertSpec;

/// What follows attention in every layer.
#[derive(Debug, Clone, Copy)]
pub enum FeedForward {
    /// One, of this width.
    Dense(usize),
    Experts(ExpertSpec),
}

/// What this version does not compute, with the largest value that asks for nothing of it.
const UNSUPPORTED: [(&str, u32); 7] = [
    ("expert_shared_count", 0),
    ("expert_shared_feed_forward_length", 0),
    ("leading_dense_block_count", 0),
    ("expert_group_count", 1),
    ("expert_group_used_count", 1),
    ("interleave_moe_layer_step", 1),
    ("moe_every_n_layers", 1),
];

/// `expert_gating_func`: weights by softmax over all logits, which is also what its absence means.
const SOFTMAX: u32 = 1;

/// # Errors
/// `Error::ModelFile` naming the key that is missing, contradictory or not supported.
pub(super) fn feed_forward(keys: &Keys<'_>, arch: &Architecture, hidden_size: usize) -> Result<FeedForward> {
    let count = keys.opt_u32("expert_count")?.filter(|&count| count > 0);
    match (arch.experts, count) {
        (Presence::Absent | Presence::Optional, None) => Ok(FeedForward::Dense(keys.size("feed_forward_length")?)),
        (Presence::Absent, Some(n)) => {
            let problem = format!("is {n}: {} models with experts are not supported by this version", arch.name);
            Err(keys.error("expert_count", problem))
        }
        (Presence::Optional | Presence::Required, _) => experts(keys, arch, hidden_size).map(FeedForward::Experts),
    }
}

fn experts(keys: &Keys<'_>, arch: &Architecture, hidden_size: usize) -> Result<ExpertSpec> {
    for (key, most) in UNSUPPORTED {
        if let Some(n) = keys.opt_u32(key)?.filter(|&n| n > most) {
            return Err(keys.error(key, format!("is {n}, which this version does not support (at most {most})")));
        }
    }
    if let Some(function) = keys.opt_u32("expert_gating_func")?.filter(|&function| function > SOFTMAX) {
        let problem = format!("is {function}; this version weighs experts by softmax ({SOFTMAX}) only");
        return Err(keys.error("expert_gating_func", problem));
    }
    let (num, used) = (keys.size("expert_count")?, keys.size("expert_used_count")?);
    if used > num {
        return Err(keys.error("expert_used_count", format!("is {used}, more than expert_count ({num})")));
    }
    let ffn_size = match (keys.opt_size("expert_feed_forward_length")?, arch.experts) {
        (Some(size), _) => size,
        // Mixtral's experts are as wide as its key for dense models says.
        (None, Presence::Optional) => keys.size("feed_forward_length")?,
        (None, _) => keys.size("expert_feed_forward_length")?,
    };
    Ok(ExpertSpec {
        num,
        used,
        hidden_size,
        ffn_size,
        activation: arch.activation,
        // These architectures weigh so unless the file says otherwise.
        normalize: keys.opt_bool("expert_weights_norm")?.unwrap_or(true),
        scale: match keys.opt_f32("expert_weights_scale")? {
            // The converter's way to say nothing.
            None | Some(0.0) => 1.0,
            Some(scale) => scale,
        },
    })
}
