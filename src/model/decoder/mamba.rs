//! Mamba mixers of the first version.

use super::{Input, Work, linear_of};
use crate::backend::{Backend, Linear, Mamba, MambaConvolution, Norm, NormInPlace, Ops};
use crate::buffers::MambaWork;
use crate::layers::MambaWeights;
use crate::{Error, Result};

/// `out` = the mixer of the input, before its output projection.
pub(super) fn mix<B: Backend>(
    step: &mut B::Step<'_>,
    weights: &MambaWeights<B>,
    input: Input<'_, B>,
    state: &mut B::StateLayer,
    out: &mut B::Buffer,
    Work { normed, projected: x, convolved, mamba, .. }: &mut Work<B>,
) -> Result<()> {
    let MambaWeights { spec, projections, taps, taps_bias, inputs, norms, decay, skip, .. } = weights;
    let (Some(convolved), Some(MambaWork { inputs: buffers, time_steps })) = (convolved, mamba) else {
        return Err(Error::internal("a Mamba mixer without its buffers"));
    };
    let (rows, shape) = (input.rows, spec.shape);
    linear_of(step, input, projections, normed, x)?;
    let taps_bias = taps_bias.as_ref();
    step.mamba_convolution(MambaConvolution { x, shape, taps, taps_bias, state, out: convolved })?;
    for (matrix, out) in inputs.iter().zip(&mut *buffers) {
        step.linear(Linear { x: convolved, matrix, rows, out, add: false })?;
    }
    for (norm, x) in norms.iter().flatten().zip(&mut *buffers) {
        step.norm_in_place(NormInPlace { x, norm: Norm::rms(norm, spec.eps), rows })?;
    }
    let [short, b, c] = buffers;
    step.linear(Linear { x: short, matrix: &weights.time_steps, rows, out: time_steps, add: false })?;
    step.mamba(Mamba { x, shape, convolved, time_steps, b, c, decay, skip, state, out })
}
