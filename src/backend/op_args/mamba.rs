//! Arguments of the ops for Mamba mixers of the first version.

use super::{check_room, check_vector};
use crate::Backend;
use crate::shapes::StateShape;
use crate::states::{MambaShape, StateLayerSpec};
use crate::{Error, Result};

/// See `Ops::mamba_convolution`.
pub struct MambaConvolution<'a, B: Backend> {
    /// Projections of the step's tokens, `[tokens, shape.cols()]`.
    pub x: &'a B::Buffer,
    pub shape: MambaShape,
    /// Taps of the convolution, `[taps, channels]`. The last tap applies to the token itself.
    pub taps: &'a B::Vector,
    /// Added to the sums of the convolution, `[channels]`; `None` if the model has no bias.
    pub taps_bias: Option<&'a B::Vector>,
    pub state: &'a B::StateLayer,
    /// `[tokens, shape.channels]`.
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> MambaConvolution<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        let (shape, channels) = (self.shape, self.shape.channels);
        check_states(shape, self.state.spec())?;
        check_vector("the taps", self.taps, shape.taps.saturating_mul(channels))?;
        self.taps_bias.map_or(Ok(()), |bias| check_vector("the convolution's bias", bias, channels))?;
        check_room("the projections", self.x, tokens, shape.cols())?;
        check_room("the convolution's output", self.out, tokens, channels)
    }
}

/// See `Ops::mamba`.
pub struct Mamba<'a, B: Backend> {
    /// Projections of the step's tokens, `[tokens, shape.cols()]`.
    pub x: &'a B::Buffer,
    pub shape: MambaShape,
    /// Outputs of the convolution, `[tokens, shape.channels]`; their contents are undefined afterwards.
    pub convolved: &'a mut B::Buffer,
    /// Time steps before the softplus, `[tokens, shape.channels]`.
    pub time_steps: &'a B::Buffer,
    /// B and C of each token, `[tokens, shape.state_size]`.
    pub b: &'a B::Buffer,
    pub c: &'a B::Buffer,
    /// Negative factors on the time step in the exponents of the state's decay: `[state_size, channels]`.
    pub decay: &'a B::Vector,
    /// Factor on x where it is added directly to the output: `[channels]`.
    pub skip: &'a B::Vector,
    pub state: &'a mut B::StateLayer,
    /// `[tokens, shape.channels]`.
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> Mamba<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        let (shape, MambaShape { channels, state_size, .. }) = (self.shape, self.shape);
        check_states(shape, self.state.spec())?;
        check_vector("the decays", self.decay, state_size.saturating_mul(channels))?;
        check_vector("the factors of x", self.skip, channels)?;
        check_room("the projections", self.x, tokens, shape.cols())?;
        check_room("the convolution's output", self.convolved, tokens, channels)?;
        check_room("the time steps", self.time_steps, tokens, channels)?;
        check_room("B", self.b, tokens, state_size)?;
        check_room("C", self.c, tokens, state_size)?;
        check_room("the mixer's output", self.out, tokens, channels)
    }
}

fn check_states(shape: MambaShape, spec: &StateLayerSpec) -> Result<()> {
    shape.validate()?;
    match *spec == shape.state_layer(spec.num_slots) {
        true => Ok(()),
        false => Err(Error::internal(format!("{shape:?} with states of {spec:?}"))),
    }
}
