//! What the metadata says of a layer's feed-forward: one, or experts of which a router chooses.

use super::keys::Keys;
use super::spec::{Ffn, ModelSpec};
use crate::Result;
use crate::backend::{Activation, ExpertSpec};

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

impl Keys<'_> {
    /// One feed-forward, of the width that the file gives.
    pub(super) fn dense(&self, layer: usize, activation: Activation) -> Result<Ffn> {
        Ok(Ffn::Dense { size: self.size_of(layer, "feed_forward_length")?, activation })
    }

    /// # Errors
    /// `Error::ModelFile` for a file with experts, whose architecture has none.
    pub(super) fn refuse_experts(&self) -> Result<()> {
        match self.opt_u32("expert_count")?.filter(|&count| count > 0) {
            None => Ok(()),
            Some(n) => {
                let problem =
                    format!("is {n}: {} models with experts are not supported by this version", self.architecture);
                Err(self.error("expert_count", problem))
            }
        }
    }

    /// Experts of `ffn_size` each.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key that is missing, contradictory or not supported.
    pub(super) fn experts(&self, model: &ModelSpec, ffn_size: usize, activation: Activation) -> Result<ExpertSpec> {
        for (key, most) in UNSUPPORTED {
            if let Some(n) = self.opt_u32(key)?.filter(|&n| n > most) {
                return Err(self.error(key, format!("is {n}, which this version does not support (at most {most})")));
            }
        }
        if let Some(function) = self.opt_u32("expert_gating_func")?.filter(|&function| function > SOFTMAX) {
            let problem = format!("is {function}; this version weighs experts by softmax ({SOFTMAX}) only");
            return Err(self.error("expert_gating_func", problem));
        }
        let (num, used) = (self.size("expert_count")?, self.size("expert_used_count")?);
        if used > num {
            return Err(self.error("expert_used_count", format!("is {used}, more than expert_count ({num})")));
        }
        Ok(ExpertSpec {
            num,
            used,
            hidden_size: model.hidden_size,
            ffn_size,
            activation,
            // These architectures weigh so unless the file says otherwise.
            normalize: self.opt_bool("expert_weights_norm")?.unwrap_or(true),
            scale: match self.opt_f32("expert_weights_scale")? {
                // The converter's way to say nothing.
                None | Some(0.0) => 1.0,
                Some(scale) => scale,
            },
        })
    }
}
