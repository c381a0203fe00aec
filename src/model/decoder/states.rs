//! Mixers with recurrent states.

use super::{Input, Stream, Work, linear_of, mamba};
use crate::backend::{self, Backend, DeltaNet, Mamba2, Ops, ShortConvolution};
use crate::layers::{DeltaNetWeights, Mamba2Weights, MixerWeights, NormWeights, ShortConvolutionWeights};
use crate::{Error, Result};

/// `mixed = mixer(norm(residual))`, before its output projection.
pub(super) fn mix<B: Backend>(
    step: &mut B::Step<'_>,
    mixer: &MixerWeights<B>,
    norm: Option<&NormWeights<B>>,
    state: &mut B::StateLayer,
    Stream { residual, mixed: out, .. }: &mut Stream<B>,
    work: &mut Work<B>,
) -> Result<()> {
    let input = Input { x: residual, norm, rows: step.num_tokens() };
    match mixer {
        MixerWeights::Mamba(weights) => return mamba::mix(step, weights, input, state, out, work),
        MixerWeights::Mamba2(weights) => return mix_mamba2(step, weights, input, state, out, work),
        _ => {}
    }
    let Work { normed, projected: x, convolved, .. } = work;
    let projections = match mixer {
        MixerWeights::DeltaNet(delta_net) => &delta_net.projections,
        MixerWeights::ShortConvolution(convolution) => &convolution.projections,
        _ => return Err(Error::internal("a layer without a state")),
    };
    linear_of(step, input, projections, normed, x)?;
    match mixer {
        MixerWeights::DeltaNet(DeltaNetWeights { spec, eps, taps, decay, decay_bias, norm, .. }) => {
            let weights = backend::DeltaNetWeights { taps, decay, decay_bias, norm };
            let convolved = convolved.as_mut().ok_or_else(without_buffers)?;
            step.delta_net(DeltaNet { x, shape: spec.shape, weights, eps: *eps, state, convolved, out })
        }
        MixerWeights::ShortConvolution(ShortConvolutionWeights { shape, taps, .. }) => {
            step.short_convolution(ShortConvolution { x, shape: *shape, taps, state, out })
        }
        _ => Ok(()),
    }
}

/// Computes the second mixer, beside attention. It takes the same input.
pub(super) fn mix_beside<B: Backend>(
    step: &mut B::Step<'_>,
    weights: &Mamba2Weights<B>,
    norm: Option<&NormWeights<B>>,
    state: &mut B::StateLayer,
    Stream { residual, beside, .. }: &mut Stream<B>,
    work: &mut Work<B>,
) -> Result<()> {
    let input = Input { x: residual, norm, rows: step.num_tokens() };
    let out = beside.as_mut().ok_or_else(without_buffers)?;
    mix_mamba2(step, weights, input, state, out, work)
}

/// `out` = a Mamba-2 mixer of the input, before its output projection.
pub(super) fn mix_mamba2<B: Backend>(
    step: &mut B::Step<'_>,
    weights: &Mamba2Weights<B>,
    input: Input<'_, B>,
    state: &mut B::StateLayer,
    out: &mut B::Buffer,
    Work { normed, projected: x, convolved, .. }: &mut Work<B>,
) -> Result<()> {
    let Mamba2Weights { spec, projections, taps, taps_bias, decay, step_bias, skip, norm, .. } = weights;
    linear_of(step, input, projections, normed, x)?;
    let convolved = convolved.as_mut().ok_or_else(without_buffers)?;
    let (taps_bias, norm) = (taps_bias.as_ref(), norm.as_ref());
    let weights = backend::Mamba2Weights { taps, taps_bias, decay, step_bias, skip, norm };
    step.mamba2(Mamba2 { x, shape: spec.shape, weights, eps: spec.eps, state, convolved, out })
}

fn without_buffers() -> Error {
    Error::internal("a mixer without its buffers")
}
