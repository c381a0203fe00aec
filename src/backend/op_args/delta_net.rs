//! Arguments of the op for gated delta nets.

use super::{check_room, check_vector};
use crate::Backend;
use crate::shapes::StateShape;
use crate::states::DeltaNetShape;
use crate::{Error, Result};

/// The weights of a gated delta net apart from its matrices.
pub struct DeltaNetWeights<'a, B: Backend> {
    /// Taps of the convolution, `[taps, channels]`. The last tap applies to the token itself.
    pub taps: &'a B::Vector,
    /// Negative factor on the softplus of the decay gate, one per head: `[value_heads]`.
    pub decay: &'a B::Vector,
    /// Added to the decay gate before the softplus: `[value_heads]`.
    pub decay_bias: &'a B::Vector,
    /// Weights of the norm of each head's output, `[value_size]`.
    pub norm: &'a B::Vector,
}

impl<B: Backend> Clone for DeltaNetWeights<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B: Backend> Copy for DeltaNetWeights<'_, B> {}

/// See `Ops::delta_net`.
pub struct DeltaNet<'a, B: Backend> {
    /// Projections of the step's tokens, `[tokens, shape.cols()]`.
    pub x: &'a B::Buffer,
    pub shape: DeltaNetShape,
    pub weights: DeltaNetWeights<'a, B>,
    /// Epsilon for the lengths of q and k and for the norm of the outputs.
    pub eps: f32,
    pub state: &'a mut B::StateLayer,
    /// Intermediate results, `[tokens, shape.channels()]`.
    pub convolved: &'a mut B::Buffer,
    /// `[tokens, shape.value_cols()]`.
    pub out: &'a mut B::Buffer,
}

impl<B: Backend> DeltaNet<'_, B> {
    pub fn validate(&self, tokens: usize) -> Result<()> {
        let (shape, spec) = (self.shape, self.state.spec());
        shape.validate()?;
        if *spec != shape.state_layer(spec.num_slots) {
            return Err(Error::internal(format!("{shape:?} with states of {spec:?}")));
        }
        let DeltaNetWeights { taps, decay, decay_bias, norm } = self.weights;
        check_vector("the taps", taps, shape.taps.saturating_mul(shape.channels()))?;
        check_vector("the decays", decay, shape.value_heads)?;
        check_vector("the biases of decays", decay_bias, shape.value_heads)?;
        check_vector("the norm of a head", norm, shape.value_size)?;
        check_room("the projections", self.x, tokens, shape.cols())?;
        check_room("the convolution's output", self.convolved, tokens, shape.channels())?;
        check_room("the delta net's output", self.out, tokens, shape.value_cols())
    }
}
