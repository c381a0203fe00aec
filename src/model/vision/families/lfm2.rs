//! `lfm2`: LFM2-VL and LFM2.5-VL. The encoder is SigLIP 2, which resizes its table of positions to each grid. A large
//! picture becomes tiles, and the whole picture follows with sides of its own.

use super::read;
use crate::Result;
use crate::keys::Keys;
use crate::pixels::{Filter, Sizing};
use crate::vision::family::Family;
use crate::vision::spec::{FeedForward, Positions, VisionSpec};

/// Side of a square of patches, if the file does not state it.
const MERGE: usize = 2;
/// The fewest and the most rows of a part, and tiles of a picture, if the file does not state them.
const ROWS: [usize; 2] = [64, 256];
const TILES: [usize; 2] = [2, 10];

pub(super) fn spec(keys: &Keys<'_>) -> Result<VisionSpec> {
    let mut spec = read::spec(keys, Family::Lfm2, FeedForward::Gelu)?;
    spec.merge = keys.opt_size("vision.projector.scale_factor")?.unwrap_or(MERGE);
    spec.inner_size = read::rows_of(keys, "mm.1.weight")?;
    spec.patch_bias = true;
    spec.positions = Some(Positions::Antialiased { side: read::image_side(keys, spec.patch_size)? });
    spec.last_norm = Some("v.post_ln");
    let (of, [least, most]) = (spec.row_side(), read::tiles(keys, TILES)?);
    let [min_pixels, max_pixels] = read::pixels(keys, of, ROWS.map(|rows| rows * of * of))?;
    spec.preparation.sizing = Sizing::MultiplesOrTiles { of, min_pixels, max_pixels, least, most };
    spec.preparation.filter = Filter::Bilinear;
    Ok(spec)
}
