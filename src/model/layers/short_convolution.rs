//! The tensors of short convolutions.

use super::{Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::backend::ShortConvolutionShape;
use crate::model::spec::{ModelSpec, Presence};

pub(in crate::model) struct ShortConvolutionWeights<T: Tensors> {
    pub(in crate::model) shape: ShortConvolutionShape,
    /// The rows are described in `ShortConvolutionShape`.
    pub(in crate::model) projections: T::Matrix,
    pub(in crate::model) taps: T::Vector,
    pub(in crate::model) output: T::Matrix,
}

impl<T: Tensors> ShortConvolutionWeights<T> {
    pub(in crate::model) fn visit<V: Visitor<Made = T>>(
        index: usize,
        shape: ShortConvolutionShape,
        model: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let hidden = model.hidden_size;
        let name = |name: &str| of_layer(index, &format!("shortconv.{name}"));
        Ok(Self {
            shape,
            projections: visitor.matrix(&[part(name("in_proj"), shape.cols(), hidden, Presence::Absent)])?,
            taps: visitor.taps(&name("conv.weight"), shape.taps, shape.channels)?,
            output: visitor.matrix(&[part(name("out_proj"), hidden, shape.channels, Presence::Absent)])?,
        })
    }
}
