//! `internvl`: InternVL 2.5 to 3.5 with the encoder of 300M parameters. A picture becomes tiles, which are encoded one
//! after the other. A class token (CLS) goes with the patches of each.

use super::read;
use crate::Result;
use crate::backend::NormKind;
use crate::keys::Keys;
use crate::pixels::Sizing;
use crate::spec::NormSpec;
use crate::vision::family::Family;
use crate::vision::spec::{FeedForward, Positions, VisionSpec};

/// Side of a square of patches, if the file does not state it.
const MERGE: usize = 2;
/// The fewest and the most tiles of a picture, if the file does not state them.
const TILES: [usize; 2] = [1, 12];

pub(super) fn spec(keys: &Keys<'_>) -> Result<VisionSpec> {
    let mut spec = read::spec(keys, Family::InternVl, FeedForward::GeluErf)?;
    spec.merge = keys.opt_size("vision.projector.scale_factor")?.unwrap_or(MERGE);
    spec.patch_bias = true;
    spec.has_class = true;
    spec.post_norms = Some(NormSpec { kind: NormKind::Weights, eps: 0.0, weight: true, bias: false });
    spec.positions = Some(Positions::Corners { side: read::image_side(keys, spec.patch_size)? });
    let [least, most] = read::tiles(keys, TILES)?;
    spec.preparation.sizing = Sizing::Tiles { side: read::filled_side(keys, &spec)?, least, most };
    Ok(spec)
}
