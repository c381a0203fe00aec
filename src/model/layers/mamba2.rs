//! The tensors of Mamba-2 mixers.

use super::{Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::spec::{Mamba2Spec, ModelSpec, Presence};

pub(crate) struct Mamba2Weights<T: Tensors> {
    pub(crate) spec: Mamba2Spec,
    /// The rows are described in `Mamba2Shape`.
    pub(crate) projections: T::Matrix,
    pub(crate) taps: T::Vector,
    pub(crate) taps_bias: Option<T::Vector>,
    pub(crate) decay: T::Vector,
    pub(crate) step_bias: T::Vector,
    pub(crate) skip: T::Vector,
    pub(crate) norm: Option<T::Vector>,
    pub(crate) output: T::Matrix,
}

impl<T: Tensors> Mamba2Weights<T> {
    pub(crate) fn visit<V: Visitor<Made = T>>(
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
