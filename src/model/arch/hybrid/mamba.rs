//! `mamba`: Mamba 130M to 2.8B, and Falcon Mamba. Like `mamba2`, with mixers of the first version.

use super::mamba2;
use crate::Result;
use crate::keys::Keys;
use crate::spec::{MambaNorms, Mixer, ModelSpec};

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    // Falcon Mamba has norms of time steps, B and C.
    let norms = match keys.opt_bool("ssm.dt_b_c_rms")? {
        Some(true) => MambaNorms::Plain,
        _ => MambaNorms::None,
    };
    mamba2::spec_with(keys, |layer, eps| Ok(Mixer::Mamba(keys.mamba(layer, eps, norms)?)))
}
