//! `gemma3`: SigLIP. Its patches are averaged in squares, and one matrix makes rows of them.

use super::read;
use crate::Result;
use crate::images::Sight;
use crate::keys::Keys;
use crate::pixels::{Filter, Sizing};
use crate::vision::family::Family;
use crate::vision::spec::{FeedForward, Positions, VisionSpec};

/// Side of a square of patches, if the file does not state it.
const MERGE: usize = 4;

pub(super) fn spec(keys: &Keys<'_>) -> Result<VisionSpec> {
    let mut spec = read::spec(keys, Family::Gemma3, FeedForward::Gelu)?;
    spec.merge = keys.opt_size("vision.projector.scale_factor")?.unwrap_or(MERGE);
    spec.positions = Some(Positions::Corners { side: read::image_side(keys, spec.patch_size)? });
    spec.patch_bias = true;
    spec.last_norm = Some("v.post_ln");
    spec.sight = Sight::All;
    spec.preparation.sizing = Sizing::Square { side: read::filled_side(keys, &spec)? };
    spec.preparation.filter = Filter::Bilinear;
    Ok(spec)
}
