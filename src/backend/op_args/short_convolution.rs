//! Arguments of the op for short convolutions.

use super::{check_room, check_vector};
use crate::Backend;
use crate::shapes::StateShape;
use crate::states::ShortConvolutionShape;
use crate::{Error, Result};

/// See `Ops::short_convolution`.
pub struct ShortConvolution<'a, B: Backend> {
    /// Projections of the step's tokens, `[tokens, shape.cols()]`.
    pub x: &'a B::Buffer,
    pub shape: ShortConvolutionShape,
    /// Taps of the convolution, `[taps, channels]`. The last tap applies to the token itself.
    pub taps: &'a B::Vector,
    pub state: &'a mut B::StateLayer,
    /// `[tokens, shape.channels]`.
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> ShortConvolution<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        let (shape, spec) = (self.shape, self.state.spec());
        shape.validate()?;
        if *spec != shape.state_layer(spec.num_slots) {
            return Err(Error::internal(format!("{shape:?} with states of {spec:?}")));
        }
        check_vector("the taps", self.taps, shape.taps.saturating_mul(shape.channels))?;
        check_room("the projections", self.x, tokens, shape.cols())?;
        check_room("the convolution's output", self.out, tokens, shape.channels)
    }
}
