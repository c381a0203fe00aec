//! Mixers that carry states.

use super::{Input, Stream, Work, linear_of};
use crate::backend::{self, Backend, DeltaNet, Mamba2, Ops, ShortConvolution};
use crate::model::layers::{DeltaNetWeights, Mamba2Weights, MixerWeights, NormWeights, ShortConvolutionWeights};
use crate::{Error, Result};

/// `mixed = mixer(norm(residual))`, before its output projection.
pub(super) fn mix<B: Backend>(
    step: &mut B::Step<'_>,
    mixer: &MixerWeights<B>,
    norm: Option<&NormWeights<B>>,
    state: &mut B::StateLayer,
    Stream { residual, mixed: out, .. }: &mut Stream<B>,
    Work { normed, projected: x, convolved, .. }: &mut Work<B>,
) -> Result<()> {
    let projections = match mixer {
        MixerWeights::DeltaNet(delta_net) => &delta_net.projections,
        MixerWeights::Mamba2(mamba2) => &mamba2.projections,
        MixerWeights::ShortConvolution(convolution) => &convolution.projections,
        MixerWeights::Attention(_) | MixerWeights::Latent(_) | MixerWeights::None => {
            return Err(Error::internal("a layer without a state"));
        }
    };
    let input = Input { x: residual, norm, rows: step.num_tokens() };
    linear_of(step, input, projections, normed, x)?;
    let convolved = convolved.as_mut().ok_or_else(|| Error::internal("a mixer without its buffers"));
    match mixer {
        MixerWeights::DeltaNet(DeltaNetWeights { spec, eps, taps, decay, decay_bias, norm, .. }) => {
            let weights = backend::DeltaNetWeights { taps, decay, decay_bias, norm };
            let convolved = convolved?;
            step.delta_net(DeltaNet { x, shape: spec.shape, weights, eps: *eps, state, convolved, out })
        }
        MixerWeights::Mamba2(Mamba2Weights { spec, taps, taps_bias, decay, step_bias, skip, norm, .. }) => {
            let taps_bias = taps_bias.as_ref();
            let weights = backend::Mamba2Weights { taps, taps_bias, decay, step_bias, skip, norm };
            let convolved = convolved?;
            step.mamba2(Mamba2 { x, shape: spec.shape, weights, eps: spec.eps, state, convolved, out })
        }
        MixerWeights::ShortConvolution(ShortConvolutionWeights { shape, taps, .. }) => {
            step.short_convolution(ShortConvolution { x, shape: *shape, taps, state, out })
        }
        MixerWeights::Attention(_) | MixerWeights::Latent(_) | MixerWeights::None => Ok(()),
    }
}
