//! `qwen3vl_merger`: Qwen 3 VL and 3.5. Layers in the middle give rows for the first layers of the text model.

use super::read;
use crate::Result;
use crate::keys::Keys;
use crate::vision::family::Family;
use crate::vision::spec::{FRAMES, FeedForward, Positions, RopeAxes, VisionSpec};

/// The areas of the smallest and the largest picture in pixels, if the file does not state them.
const PIXELS: [usize; 2] = [256 * 256, 4096 * 4096];

pub(super) fn spec(keys: &Keys<'_>) -> Result<VisionSpec> {
    let mut spec = read::spec(keys, Family::Qwen3, FeedForward::Gelu)?;
    spec.merge = read::merge(keys)?;
    spec.inner_size = spec.joined_cols();
    spec.frames = FRAMES;
    spec.patch_bias = true;
    spec.last_norm = Some("v.post_ln");
    spec.rope = Some(RopeAxes::IN_HALVES);
    spec.positions = Some(Positions::Corners { side: read::image_side(keys, spec.patch_size)? });
    spec.deepstack = deepstack(keys, spec.num_layers)?;
    spec.preparation.sizing = read::multiples(keys, spec.row_side(), PIXELS)?;
    Ok(spec)
}

fn deepstack(keys: &Keys<'_>, num_layers: usize) -> Result<Vec<usize>> {
    let key = keys.full("vision.is_deepstack_layers");
    let flags = keys.metadata.opt_bools(&key)?.unwrap_or_default();
    if !flags.is_empty() && flags.len() != num_layers {
        let problem = format!("has {} entries, expected one per layer ({num_layers})", flags.len());
        return Err(keys.metadata.error(key, problem));
    }
    Ok((0..flags.len()).filter(|&layer| flags[layer]).collect())
}
