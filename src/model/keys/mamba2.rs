//! The keys of Mamba mixers and of short convolutions.

use super::Keys;
use crate::Result;
use crate::backend::{Mamba2Shape, MambaShape, ShortConvolutionShape};
use crate::layers::of_layer;
use crate::spec::{Mamba2Spec, MambaNorms, MambaSpec};

/// No real model has a number of taps near this.
const MAX_TAPS: usize = 64;

impl Keys<'_> {
    /// Returns the number of taps of a convolution.
    pub(crate) fn taps(&self, key: &str) -> Result<usize> {
        match self.size(key)? {
            taps if taps > MAX_TAPS => Err(self.error(key, format!("is {taps}, expected at most {MAX_TAPS}"))),
            taps => Ok(taps),
        }
    }

    /// Returns the Mamba mixer of layer `layer`, of the first version.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key that is missing or not supported.
    pub(crate) fn mamba(&self, layer: usize, eps: f32, norms: MambaNorms) -> Result<MambaSpec> {
        let (channels, rank) = (self.size("ssm.inner_size")?, self.size("ssm.time_step_rank")?);
        let state_size = self.state_size(MambaShape::MAX_STATE_SIZE)?;
        let shape = MambaShape { channels, state_size, taps: self.taps("ssm.conv_kernel")? };
        Ok(MambaSpec { shape, rank, eps, taps_bias: self.has_taps_bias(layer), norms })
    }

    /// Returns the rows of a state.
    fn state_size(&self, most: usize) -> Result<usize> {
        match self.size("ssm.state_size")? {
            size if size > most => {
                Err(self.error("ssm.state_size", format!("is {size}; this version supports at most {most}")))
            }
            size => Ok(size),
        }
    }

    /// True if the convolution of a layer has biases.
    fn has_taps_bias(&self, layer: usize) -> bool {
        self.gguf.tensor(&of_layer(layer, "ssm_conv1d.bias")).is_some()
    }

    /// Returns the Mamba-2 mixer of layer `layer`. `eps` is the epsilon of its output norm.
    ///
    /// # Errors
    /// `Error::ModelFile` naming the key that is missing, contradictory or not supported.
    pub(crate) fn mamba2(&self, layer: usize, eps: f32) -> Result<Mamba2Spec> {
        let (heads, groups) = (self.size("ssm.time_step_rank")?, self.size("ssm.group_count")?);
        let (state_size, inner) = (self.state_size(Mamba2Shape::MAX_STATE_SIZE)?, self.size("ssm.inner_size")?);
        if !heads.is_multiple_of(groups) {
            let problem = format!("is {heads}, expected a multiple of ssm.group_count ({groups})");
            return Err(self.error("ssm.time_step_rank", problem));
        }
        if !inner.is_multiple_of(heads) {
            let problem = format!("is {inner}, expected a multiple of ssm.time_step_rank ({heads})");
            return Err(self.error("ssm.inner_size", problem));
        }
        let taps = self.taps("ssm.conv_kernel")?;
        let shape = Mamba2Shape { heads, head_size: inner / heads, groups, state_size, taps };
        Ok(Mamba2Spec { shape, eps, taps_bias: self.has_taps_bias(layer), norm: true })
    }

    /// Returns the short convolutions of a model, which cover its whole hidden state.
    pub(crate) fn short_convolution(&self, hidden_size: usize) -> Result<ShortConvolutionShape> {
        Ok(ShortConvolutionShape { channels: hidden_size, taps: self.taps("shortconv.l_cache")? })
    }
}
