//! `pixtral`: Pixtral and Mistral 3. Its feed-forward is gated, and RoPE turns every other pair with the column.

use super::read;
use crate::Result;
use crate::backend::RopeKind;
use crate::keys::Keys;
use crate::pixels::Sizing;
use crate::spec::Presence;
use crate::vision::family::Family;
use crate::vision::spec::{FeedForward, MOST_IMAGE_ROWS, RopeAxes, VisionSpec};

/// Side of a square of patches in Pixtral 12B, whose files do not state it.
const MERGE: usize = 1;

pub(super) fn spec(keys: &Keys<'_>) -> Result<VisionSpec> {
    let mut spec = read::spec(keys, Family::Pixtral, FeedForward::GatedSilu)?;
    spec.merge = keys.opt_size("vision.spatial_merge_size")?.unwrap_or(MERGE);
    spec.biases = Presence::Optional;
    spec.first_norm = Some("v.pre_ln");
    spec.last_norm = (spec.merge > 1).then_some("mm.input_norm");
    let base = read::rope_base(keys)?;
    spec.rope = Some(RopeAxes { base, kind: RopeKind::Norm, is_column_first: false, first_of_columns: 2 });
    let of = spec.row_side();
    let side = read::filled_side(keys, &spec)?.min(MOST_IMAGE_ROWS.saturating_mul(of));
    let max_pixels = MOST_IMAGE_ROWS.saturating_mul(of * of);
    spec.preparation.sizing = Sizing::Within { side, of, max_pixels };
    Ok(spec)
}
