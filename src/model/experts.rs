//! A layer's feed-forward as the metadata describes it: a dense one, or experts of which a router chooses.

use super::keys::Keys;
use super::spec::{DenseSpec, Ffn, Gate, ModelSpec, Presence};
use crate::Result;
use crate::backend::{Activation, ExpertGroups, ExpertSpec, Gating};

/// Keys that ask for something that this version does not compute, each with the largest value that asks for nothing.
const UNSUPPORTED: [(&str, u32); 2] = [("interleave_moe_layer_step", 1), ("moe_every_n_layers", 1)];

/// Keys of experts in groups.
const GROUPS: [&str; 2] = ["expert_group_count", "expert_group_used_count"];

/// Architectures whose experts may be in groups.
const GROUPED: [&str; 1] = ["deepseek2"];

/// Values of `expert_gating_func`: weights by softmax over all logits, also where the key is absent, or by the sigmoid
/// of each logit.
const SOFTMAX: u32 = 1;
pub(super) const SIGMOID: u32 = 2;

impl Keys<'_> {
    /// A feed-forward with a gate, of the width that the file gives.
    pub(super) fn dense(&self, layer: usize, activation: Activation) -> Result<Ffn> {
        self.dense_of(layer, activation, Gate::Own)
    }

    pub(super) fn dense_of(&self, layer: usize, activation: Activation, gate: Gate) -> Result<Ffn> {
        let size = self.size_of(layer, "feed_forward_length")?;
        Ok(Ffn::Dense(DenseSpec { size, activation, gate, bias: Presence::Absent, row_gate: false }))
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

    /// Experts of `ffn_size` each, without biases.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key that is missing, contradictory or not supported.
    pub(super) fn experts(&self, model: &ModelSpec, ffn_size: usize, activation: Activation) -> Result<ExpertSpec> {
        let groups = GROUPS.into_iter().filter(|_| !GROUPED.contains(&self.architecture)).map(|key| (key, 1));
        for (key, most) in UNSUPPORTED.into_iter().chain(groups) {
            if let Some(n) = self.opt_u32(key)?.filter(|&n| n > most) {
                return Err(self.error(key, format!("is {n}, which this version does not support (at most {most})")));
            }
        }
        let gating = match self.opt_u32("expert_gating_func")? {
            None | Some(0 | SOFTMAX) => Gating::Softmax,
            Some(SIGMOID) => Gating::Sigmoid,
            Some(function) => {
                let problem =
                    format!("is {function}; this version weighs by softmax ({SOFTMAX}) and sigmoid ({SIGMOID}) only");
                return Err(self.error("expert_gating_func", problem));
            }
        };
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
            gate: true,
            gating,
            groups: None,
            router_bias: false,
            choice_bias: false,
            biases: false,
            // These architectures weigh so unless the file says otherwise.
            normalize: self.opt_bool("expert_weights_norm")?.unwrap_or(true),
            scale: match self.opt_f32("expert_weights_scale")? {
                // The converter's way to say nothing.
                None | Some(0.0) => 1.0,
                Some(scale) => scale,
            },
            router_scale: 1.0,
            output_scales: false,
        })
    }

    /// The groups of these experts, where the file has more than one.
    pub(super) fn expert_groups(&self, experts: ExpertSpec) -> Result<Option<ExpertGroups>> {
        let [count, used_count] = GROUPS;
        let Some(num) = self.opt_size(count)?.filter(|&num| num > 1) else { return Ok(None) };
        let used = self.size(used_count)?;
        if experts.gating != Gating::Sigmoid {
            let problem = format!("is {num}: groups of experts that are weighed by softmax are not supported");
            return Err(self.error(count, problem));
        }
        let groups = Some(ExpertGroups { num, used });
        match (ExpertSpec { groups, ..experts }).validate() {
            Ok(()) => Ok(groups),
            Err(_) => {
                let ExpertSpec { num: experts, used: chosen, .. } = experts;
                let problem = format!(
                    "is {num}, of which {used} are used: groups of two or more of the {experts} experts are expected, with \
                     {chosen} in those that are used"
                );
                Err(self.error(count, problem))
            }
        }
    }

    /// Layers at the start that have one feed-forward in place of experts.
    pub(super) fn leading_dense_layers(&self) -> Result<usize> {
        Ok(self.opt_u32("leading_dense_block_count")?.unwrap_or(0) as usize)
    }

    /// The feed-forward that serves every row beside the experts: as wide as all that the file counts as shared.
    pub(super) fn shared_expert(&self, ffn_size: usize, activation: Activation) -> Result<Option<DenseSpec>> {
        let count = self.opt_u32("expert_shared_count")?.unwrap_or(0) as usize;
        let size = match self.opt_size("expert_shared_feed_forward_length")? {
            Some(size) => size,
            None => ffn_size.saturating_mul(count),
        };
        let bias = Presence::Absent;
        let shared = DenseSpec { size, activation, gate: Gate::Own, bias, row_gate: false };
        Ok((size > 0).then_some(shared))
    }

    /// # Errors
    /// `Error::ModelFile` for a file with shared experts or dense layers, whose architecture has none.
    pub(super) fn refuse_shared_experts(&self) -> Result<()> {
        for key in ["expert_shared_count", "expert_shared_feed_forward_length", "leading_dense_block_count"] {
            if let Some(n) = self.opt_u32(key)?.filter(|&n| n > 0) {
                let problem = format!("is {n}, which {} models do not have", self.architecture);
                return Err(self.error(key, problem));
            }
        }
        Ok(())
    }
}
