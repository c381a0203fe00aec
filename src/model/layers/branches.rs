//! The norms of a dense feed-forward and of experts that are two branches of a layer.

use super::{NormWeights, Tensors, Visitor, of_layer};
use crate::Result;
use crate::spec::ModelSpec;

pub(crate) struct BranchNorms<T: Tensors> {
    pub(crate) after_dense: NormWeights<T>,
    pub(crate) before_experts: NormWeights<T>,
    pub(crate) after_experts: NormWeights<T>,
    /// The norm of the router's input.
    pub(crate) before_router: NormWeights<T>,
}

impl<T: Tensors> BranchNorms<T> {
    pub(super) fn visit<V: Visitor<Made = T>>(index: usize, spec: &ModelSpec, visitor: &mut V) -> Result<Self> {
        let mut norm = |name: &str| NormWeights::visit(&of_layer(index, name), spec, visitor);
        let (after_dense, before_experts) = (norm("post_ffw_norm_1")?, norm("pre_ffw_norm_2")?);
        let after_experts = norm("post_ffw_norm_2")?;
        let weight = visitor.vector(&of_layer(index, "ffn_gate_inp.scale"), spec.hidden_size)?;
        let before_router = NormWeights { spec: spec.norm, weight, bias: None, sum_factor: 1.0 };
        Ok(Self { after_dense, before_experts, after_experts, before_router })
    }
}
