//! `qwen2vl`: the text part of Qwen 2 VL and 2.5 VL. Its RoPE gives each pair one of three positions. They are equal
//! for text, so the model equals `qwen2`.

use crate::Result;
use crate::keys::Keys;
use crate::spec::ModelSpec;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let model = super::qwen2::spec(keys)?;
    Ok(ModelSpec { sections: keys.sections(&model, false)?, ..model })
}
