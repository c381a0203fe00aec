//! `qwen3vl`: the text part of Qwen 3 VL. Its RoPE gives each pair one of three positions. They are equal for text, so
//! the model equals `qwen3`.

use crate::Result;
use crate::keys::Keys;
use crate::spec::ModelSpec;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let model = super::qwen3::spec(keys)?;
    Ok(ModelSpec { sections: keys.sections(&model, true)?, ..model })
}
