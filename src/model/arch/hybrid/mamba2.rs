//! `mamba2`: Mamba-2 and Codestral Mamba. Every layer is only a mixer.

use crate::Result;
use crate::keys::Keys;
use crate::spec::{Ffn, LayerSpec, Mixer, ModelSpec, Norms};

/// Keys of parts that the architecture lacks. Converters write 0.
const OTHER_PARTS: [&str; 2] = ["attention.head_count", "feed_forward_length"];

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    spec_with(keys, |layer, eps| Ok(Mixer::Mamba2(keys.mamba2(layer, eps)?)))
}

/// Returns the model with mixers from `mixer`, which takes a layer's index and the epsilon of norms.
pub(super) fn spec_with(keys: &Keys<'_>, mixer: impl Fn(usize, f32) -> Result<Mixer>) -> Result<ModelSpec> {
    keys.refuse_experts()?;
    for key in OTHER_PARTS {
        if let Some(count) = keys.opt_u32(key)?.filter(|&count| count > 0) {
            return Err(keys.error(key, format!("is {count}, expected 0: layers of {} are mixers", keys.architecture)));
        }
    }
    let mut model = keys.model()?;
    for layer in keys.layers_of(&model)? {
        let mixer = mixer(layer, model.norm.eps)?;
        let ffn_norms = Norms::NONE;
        model.layers.push(LayerSpec { ffn_norms, ..LayerSpec::with_mixer(mixer, Ffn::None) });
    }
    Ok(model)
}
