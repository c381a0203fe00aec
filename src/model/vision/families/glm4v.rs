//! `glm4v`: GLM-4.1V, 4.5V and 4.6V. Positions are added after a norm of the patches. The projector makes one patch of
//! a square, and has a gated feed-forward.

use super::read;
use crate::Result;
use crate::keys::Keys;
use crate::pixels::Sizing;
use crate::spec::Presence;
use crate::vision::family::Family;
use crate::vision::spec::{FRAMES, FeedForward, Positions, RopeAxes, VisionSpec};

/// The areas of the smallest and the largest picture in pixels, if the file does not state them.
const PIXELS: [usize; 2] = [112 * 112 / 2, 28 * 28 * 6144];

pub(super) fn spec(keys: &Keys<'_>) -> Result<VisionSpec> {
    let mut spec = read::spec(keys, Family::Glm4, FeedForward::GatedSilu)?;
    // The file states the rows of the projector's feed-forward. Those of the layers are smaller.
    spec.inner_size = spec.ffn_size;
    spec.ffn_size = read::rows_of(keys, "v.blk.0.ffn_up.weight")?;
    spec.merge = read::merge(keys)?;
    spec.frames = FRAMES;
    spec.biases = Presence::Absent;
    spec.patch_bias = true;
    spec.first_norm = Some("v.norm_embd");
    spec.last_norm = Some("v.post_ln");
    spec.rope = Some(RopeAxes::IN_HALVES);
    spec.positions = Some(Positions::Bicubic { side: read::image_side(keys, spec.patch_size)? });
    let of = spec.row_side();
    let [min_pixels, max_pixels] = read::pixels(keys, of, PIXELS)?;
    spec.preparation.sizing = Sizing::Multiples { of, min_pixels, max_pixels, enlarges: true };
    Ok(spec)
}
