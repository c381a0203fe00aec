//! The tensors of Mamba-2 mixers.

use super::{Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::model::spec::{Mamba2Spec, ModelSpec, Presence};

pub(in crate::model) struct Mamba2Weights<T: Tensors> {
    pub(in crate::model) spec: Mamba2Spec,
    /// The rows are described in `Mamba2Shape`.
    pub(in crate::model) projections: T::Matrix,
    pub(in crate::model) taps: T::Vector,
    pub(in crate::model) taps_bias: Option<T::Vector>,
    pub(in crate::model) decay: T::Vector,
    pub(in crate::model) step_bias: T::Vector,
    pub(in crate::model) skip: T::Vector,
    pub(in crate::model) norm: Option<T::Vector>,
    pub(in crate::model) output: T::Matrix,
}

impl<T: Tensors> Mamba2Weights<T> {
    pub(in crate::model) fn visit<V: Visitor<Made = T>>(
        index: usize,
        spec: &Mamba2Spec,
        model: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let (shape, hidden) = (spec.shape, model.hidden_size);
        let name = |name: &str| of_layer(index, name);
        let norm_shape = [shape.inner_cols() / shape.groups, shape.groups];
        let norm = spec.norm.then(|| visitor.vector_of(&name("ssm_norm.weight"), norm_shape)).transpose()?;
        let bias = spec.taps_bias.then(|| visitor.vector(&name("ssm_conv1d.bias"), shape.channels()));
        Ok(Self {
            spec: *spec,
            taps_bias: bias.transpose()?,
            projections: visitor.matrix(&[part(name("ssm_in"), shape.cols(), hidden, Presence::Absent)])?,
            taps: visitor.taps(&name("ssm_conv1d.weight"), shape.taps, shape.channels())?,
            decay: visitor.vector_of(&name("ssm_a"), [1, shape.heads])?,
            step_bias: visitor.vector(&name("ssm_dt.bias"), shape.heads)?,
            skip: visitor.vector_of(&name("ssm_d"), [1, shape.heads])?,
            norm,
            output: visitor.matrix(&[part(name("ssm_out"), hidden, shape.inner_cols(), Presence::Absent)])?,
        })
    }
}
