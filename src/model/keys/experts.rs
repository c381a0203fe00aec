//! Reads a layer's feed-forward from the metadata: a dense one, or a mixture of experts.

use super::Keys;
use crate::Result;
use crate::backend::{Activation, ExpertGroups, ExpertSpec, Gating};
use crate::layers::of_layer;
use crate::spec::{CHOICE_BIAS, DenseSpec, Ffn, Gate, ModelSpec, Presence, RowGate};

/// Keys of features that this version does not compute, each with its largest neutral value.
const UNSUPPORTED: [(&str, u32); 2] = [("interleave_moe_layer_step", 1), ("moe_every_n_layers", 1)];

/// Keys of experts in groups.
const GROUPS: [&str; 2] = ["expert_group_count", "expert_group_used_count"];

/// Architectures that may have grouped experts.
const GROUPED: [&str; 2] = ["bailingmoe2", "deepseek2"];

/// Architectures that may have experts only in every n-th layer, according to a key.
const INTERLEAVED: [&str; 1] = ["llama4"];

/// Values of `expert_gating_func`. Weights come from the softmax over all logits, also in files without the key, or
/// from the sigmoid of each logit.
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;

impl Keys<'_> {
    /// Returns a gated feed-forward of the width in the file.
    pub(crate) fn dense(&self, layer: usize, activation: Activation) -> Result<Ffn> {
        self.dense_of(layer, activation, Gate::Own)
    }

    pub(crate) fn dense_of(&self, layer: usize, activation: Activation, gate: Gate) -> Result<Ffn> {
        let size = self.size_of(layer, "feed_forward_length")?;
        Ok(Ffn::Dense(DenseSpec {
            size,
            activation,
            gate,
            bias: Presence::Optional,
            row_gate: RowGate::None,
            sparsity: None,
        }))
    }

    /// # Errors
    /// `Error::ModelFile` for a file with experts. The architecture has none.
    pub(crate) fn refuse_experts(&self) -> Result<()> {
        match self.opt_u32("expert_count")?.filter(|&count| count > 0) {
            None => Ok(()),
            Some(n) => {
                let problem =
                    format!("is {n}: {} models with experts are not supported by this version", self.architecture);
                Err(self.error("expert_count", problem))
            }
        }
    }

    /// Returns experts of `ffn_size` each, without biases.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key that is missing, contradictory or not supported.
    pub(crate) fn experts(&self, model: &ModelSpec, ffn_size: usize, activation: Activation) -> Result<ExpertSpec> {
        let groups = GROUPS.into_iter().filter(|_| !GROUPED.contains(&self.architecture)).map(|key| (key, 1));
        let periods = UNSUPPORTED.into_iter().filter(|_| !INTERLEAVED.contains(&self.architecture));
        for (key, most) in periods.chain(groups) {
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
            // These architectures normalize the weights unless the file says otherwise.
            normalize: self.opt_bool("expert_weights_norm")?.unwrap_or(true),
            scale: match self.opt_f32("expert_weights_scale")? {
                // The converter writes 0 for an absent scale.
                None | Some(0.0) => 1.0,
                Some(scale) => scale,
            },
            router_scale: 1.0,
            output_scales: false,
            weighs_inputs: false,
        })
    }

    /// Returns the groups of these experts, if the file has more than one.
    fn expert_groups(&self, experts: ExpertSpec) -> Result<Option<ExpertGroups>> {
        let [count, used_count] = GROUPS;
        let used = self.opt_u32(used_count)?;
        let Some(num) = self.opt_u32(count)?.filter(|&num| num > 1) else { return Ok(None) };
        let (num, used) = (num as usize, used.map_or_else(|| self.size(used_count), |used| Ok(used as usize))?);
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

    /// Returns experts with sigmoid weights. Files may lack the key, since the architecture has no others.
    ///
    /// # Errors
    /// Errors of `experts`, and an error for a file with other weights.
    pub(crate) fn sigmoid_experts(
        &self,
        model: &ModelSpec,
        ffn_size: usize,
        activation: Activation,
    ) -> Result<ExpertSpec> {
        let key = "expert_gating_func";
        if let Some(gating) = self.opt_u32(key)?.filter(|gating| ![0, SIGMOID].contains(gating)) {
            let name = self.architecture;
            let problem = format!("is {gating}, expected {SIGMOID}: experts of {name} models have sigmoids");
            return Err(self.error(key, problem));
        }
        Ok(ExpertSpec { gating: Gating::Sigmoid, ..self.experts(model, ffn_size, activation)? })
    }

    /// True if the weights of a row's experts are normalized. For architectures that normalize only if the file says
    /// so.
    pub(crate) fn weights_are_normalized(&self) -> Result<bool> {
        Ok(self.opt_bool("expert_weights_norm")?.unwrap_or(false))
    }

    /// Returns the feed-forward of a layer in the form of DeepSeek V3. The first layers are dense, the others have
    /// experts and shared experts.
    pub(crate) fn dense_then_experts(&self, model: &ModelSpec, layer: usize) -> Result<Ffn> {
        match layer < self.leading_dense_layers()? {
            true => self.dense(layer, Activation::Silu),
            false => self.experts_beside_shared(model, layer),
        }
    }

    /// Returns experts and shared experts. Groups and a selection bias follow from the file.
    pub(crate) fn experts_beside_shared(&self, model: &ModelSpec, layer: usize) -> Result<Ffn> {
        let size = self.size("expert_feed_forward_length")?;
        let experts = self.experts(model, size, Activation::Silu)?;
        let experts = ExpertSpec {
            groups: self.expert_groups(experts)?,
            choice_bias: CHOICE_BIAS.iter().any(|name| self.gguf.tensor(&of_layer(layer, name)).is_some()),
            normalize: self.weights_are_normalized()?,
            ..experts
        };
        if experts.choice_bias && experts.gating == Gating::Softmax {
            let problem = format!(
                "asks for softmax, but layers have {}: weights by sigmoid are expected beside it",
                CHOICE_BIAS[0]
            );
            return Err(self.error("expert_gating_func", problem));
        }
        Ok(Ffn::Experts { experts, shared: self.shared_expert(size, Activation::Silu)? })
    }

    /// Returns the number of dense layers before the first layer with experts.
    pub(crate) fn leading_dense_layers(&self) -> Result<usize> {
        Ok(self.opt_u32("leading_dense_block_count")?.unwrap_or(0) as usize)
    }

    /// Returns the shared expert, which serves every row. Several shared experts form one that is as wide as all of
    /// them.
    pub(crate) fn shared_expert(&self, ffn_size: usize, activation: Activation) -> Result<Option<DenseSpec>> {
        let count = self.opt_u32("expert_shared_count")?.unwrap_or(0) as usize;
        let size = match self.opt_size("expert_shared_feed_forward_length")? {
            Some(size) => size,
            None => ffn_size.saturating_mul(count),
        };
        let bias = Presence::Absent;
        let shared = DenseSpec { size, activation, gate: Gate::Own, bias, row_gate: RowGate::None, sparsity: None };
        Ok((size > 0).then_some(shared))
    }

    /// # Errors
    /// `Error::ModelFile` for a file with shared experts or dense layers. The architecture has none.
    pub(crate) fn refuse_shared_experts(&self) -> Result<()> {
        for key in ["expert_shared_count", "expert_shared_feed_forward_length", "leading_dense_block_count"] {
            if let Some(n) = self.opt_u32(key)?.filter(|&n| n > 0) {
                let problem = format!("is {n}, which {} models do not have", self.architecture);
                return Err(self.error(key, problem));
            }
        }
        Ok(())
    }
}
