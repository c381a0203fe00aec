//! The tensors of short convolutions.

use super::{Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::backend::ShortConvolutionShape;
use crate::spec::{ModelSpec, Presence};

pub(crate) struct ShortConvolutionWeights<T: Tensors> {
    pub(crate) shape: ShortConvolutionShape,
    /// The rows are described in `ShortConvolutionShape`.
    pub(crate) projections: T::Matrix,
    pub(crate) taps: T::Vector,
    pub(crate) output: T::Matrix,
}

impl<T: Tensors> ShortConvolutionWeights<T> {
    pub(crate) fn visit<V: Visitor<Made = T>>(
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
