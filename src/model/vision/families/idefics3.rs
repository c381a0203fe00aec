//! `idefics3`: SmolVLM. The encoder is SigLIP, whose patches are joined in squares, and one matrix makes rows of them.
//! A picture becomes tiles and the whole picture.

use super::read;
use crate::Result;
use crate::keys::Keys;
use crate::pixels::{Filter, Sizing};
use crate::vision::family::Family;
use crate::vision::spec::{FeedForward, Positions, VisionSpec};

/// Side of a square of patches, if the file does not state it.
const MERGE: usize = 2;
/// The tiles that the longer side of a picture has, if the file does not state how long it becomes. It is so in all of
/// these models, and their older files do not state it.
const TILES_OF_LONGEST: usize = 4;
/// A bound far above any real model.
const MOST_TILES_OF_LONGEST: usize = 16;
/// The largest side that the model's processor resizes a picture to.
const MOST_PIXELS_OF_SIDE: usize = 4096;

pub(super) fn spec(keys: &Keys<'_>) -> Result<VisionSpec> {
    let mut spec = read::spec(keys, Family::Idefics3, FeedForward::Gelu)?;
    spec.merge = keys.opt_size("vision.projector.scale_factor")?.unwrap_or(MERGE);
    spec.patch_bias = true;
    spec.last_norm = Some("v.post_ln");
    // Pixels that fill no patch are left out.
    let side = keys.size("vision.image_size")?;
    let patches = side / spec.patch_size;
    if patches == 0 || !patches.is_multiple_of(spec.merge) {
        let of = spec.row_side();
        let problem =
            format!("is {side}, which holds {patches} patches, expected squares of {of} x {of} pixels to fill it");
        return Err(keys.error("vision.image_size", problem));
    }
    spec.positions = Some(Positions::Corners { side: patches });
    let longest = keys.opt_size("vision.preproc_image_size")?.unwrap_or(TILES_OF_LONGEST * side);
    let most = MOST_PIXELS_OF_SIDE.min(MOST_TILES_OF_LONGEST * side);
    if longest > most {
        let problem = format!("is {longest}, expected 1 to {most}");
        return Err(keys.error("vision.preproc_image_size", problem));
    }
    spec.preparation.sizing = Sizing::Twice { longest, side, kept: patches * spec.patch_size };
    spec.preparation.filter = Filter::Lanczos;
    Ok(spec)
}
