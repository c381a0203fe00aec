//! `qwen3vlmoe`: the text part of Qwen 3 VL with experts. For text it equals `qwen3moe`, for the reason in `qwen3vl`.

use crate::Result;
use crate::keys::Keys;
use crate::spec::ModelSpec;

pub(super) fn spec(keys: &Keys<'_>) -> Result<ModelSpec> {
    let model = super::qwen3moe::spec(keys)?;
    Ok(ModelSpec { sections: keys.sections(&model, true)?, ..model })
}
