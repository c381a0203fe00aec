//! Arguments of the op for Mamba-2 mixers.

use super::{check_room, check_vector};
use crate::Backend;
use crate::shapes::StateShape;
use crate::states::Mamba2Shape;
use crate::{Error, Result};

/// The weights of a Mamba-2 mixer apart from its matrices.
pub struct Mamba2Weights<'a, B: Backend> {
    /// Taps of the convolution, `[taps, channels]`. The last tap applies to the token itself.
    pub taps: &'a B::Vector,
    /// Added to the sums of the convolution, `[channels]`; `None` if the model has no bias.
    pub taps_bias: Option<&'a B::Vector>,
    /// Negative factor on the time step in the exponent of the state's decay: `[heads]`.
    pub decay: &'a B::Vector,
    /// Added to the time step before the softplus: `[heads]`.
    pub step_bias: &'a B::Vector,
    /// Factor on x where it is added directly to a head's output: `[heads]`.
    pub skip: &'a B::Vector,
    /// Weights of the norm of each group's output, `[inner_cols]`; `None` if the model has no norm.
    pub norm: Option<&'a B::Vector>,
}

impl<B: Backend> Clone for Mamba2Weights<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for Mamba2Weights<'_, B> {}

/// See `Ops::mamba2`.
pub struct Mamba2<'a, B: Backend> {
    /// Projections of the step's tokens, `[tokens, shape.cols()]`.
    pub x: &'a B::Buffer,
    pub shape: Mamba2Shape,
    pub weights: Mamba2Weights<'a, B>,
    /// Epsilon of the norm of each group's output.
    pub eps: f32,
    pub state: &'a mut B::StateLayer,
    /// Intermediate results, `[tokens, shape.channels()]`.
    pub convolved: &'a mut B::Buffer,
    /// `[tokens, shape.inner_cols()]`.
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> Mamba2<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        let (shape, spec) = (self.shape, self.state.spec());
        shape.validate()?;
        if *spec != shape.state_layer(spec.num_slots) {
            return Err(Error::internal(format!("{shape:?} with states of {spec:?}")));
        }
        let Mamba2Weights { taps, taps_bias, decay, step_bias, skip, norm } = self.weights;
        check_vector("the taps", taps, shape.taps.saturating_mul(shape.channels()))?;
        taps_bias.map_or(Ok(()), |bias| check_vector("the convolution's bias", bias, shape.channels()))?;
        check_vector("the decays", decay, shape.heads)?;
        check_vector("the biases of time steps", step_bias, shape.heads)?;
        check_vector("the factors of x", skip, shape.heads)?;
        norm.map_or(Ok(()), |norm| check_vector("the norm of the output", norm, shape.inner_cols()))?;
        check_room("the projections", self.x, tokens, shape.cols())?;
        check_room("the convolution's output", self.convolved, tokens, shape.channels())?;
        check_room("the mixer's output", self.out, tokens, shape.inner_cols())
    }
}
