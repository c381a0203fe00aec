//! The tensors of Mamba mixers of the first version.

use super::{Part, Runs, Tensors, Visitor, of_layer, part};
use crate::Result;
use crate::spec::{MambaNorms, MambaSpec, ModelSpec, Presence};

pub(crate) struct MambaWeights<T: Tensors> {
    pub(crate) spec: MambaSpec,
    /// The rows are described in `MambaShape`.
    pub(crate) projections: T::Matrix,
    pub(crate) taps: T::Vector,
    pub(crate) taps_bias: Option<T::Vector>,
    /// The matrices that turn the convolved x into short time steps, B and C, and the norms of their results.
    pub(crate) inputs: [T::Matrix; 3],
    pub(crate) norms: Option<[T::Vector; 3]>,
    /// The matrix, with biases, that turns short time steps into those of all channels.
    pub(crate) time_steps: T::Matrix,
    pub(crate) decay: T::Vector,
    pub(crate) skip: T::Vector,
    pub(crate) output: T::Matrix,
}

impl<T: Tensors> MambaWeights<T> {
    pub(super) fn visit<V: Visitor<Made = T>>(
        index: usize,
        spec: &MambaSpec,
        model: &ModelSpec,
        visitor: &mut V,
    ) -> Result<Self> {
        let (shape, rank, hidden) = (spec.shape, spec.rank, model.hidden_size);
        let (channels, state_size) = (shape.channels, shape.state_size);
        let name = |name: &str| of_layer(index, name);
        let rows = rank + 2 * state_size;
        let mut input = |first: usize, len: usize| {
            let runs = Some(Runs { period: rows, first, len, count: 1 });
            visitor.matrix(&[Part { runs, ..part(name("ssm_x"), rows, channels, Presence::Absent) }])
        };
        let inputs = [input(0, rank)?, input(rank, state_size)?, input(rank + state_size, state_size)?];
        let norms = match spec.norms {
            MambaNorms::None => None,
            MambaNorms::Plain => Some([
                visitor.constant(1.0, rank)?,
                visitor.constant(1.0, state_size)?,
                visitor.constant(1.0, state_size)?,
            ]),
            MambaNorms::Weighted => Some([
                visitor.vector(&name("ssm_dt_norm.weight"), rank)?,
                visitor.vector(&name("ssm_b_norm.weight"), state_size)?,
                visitor.vector(&name("ssm_c_norm.weight"), state_size)?,
            ]),
        };
        let bias = spec.taps_bias.then(|| visitor.vector(&name("ssm_conv1d.bias"), channels));
        Ok(Self {
            spec: *spec,
            inputs,
            norms,
            taps_bias: bias.transpose()?,
            projections: visitor.matrix(&[part(name("ssm_in"), shape.cols(), hidden, Presence::Absent)])?,
            taps: visitor.taps(&name("ssm_conv1d.weight"), shape.taps, channels)?,
            time_steps: visitor.matrix(&[part(name("ssm_dt"), channels, rank, Presence::Required)])?,
            // A channel's decays are transposed like the taps of a convolution.
            decay: visitor.taps(&name("ssm_a"), state_size, channels)?,
            skip: visitor.vector(&name("ssm_d"), channels)?,
            output: visitor.matrix(&[part(name("ssm_out"), hidden, channels, Presence::Absent)])?,
        })
    }
}
