//! `gemma4v`: Gemma 4. Its layers have norms before and after both parts, normed heads, and RoPE by column and row. Its
//! patches are averaged in squares, and one matrix makes rows of them.

use super::read;
use crate::Result;
use crate::images::Sight;
use crate::keys::Keys;
use crate::pixels::{Preparation, Sizing};
use crate::spec::Presence;
use crate::vision::family::Family;
use crate::vision::spec::{FeedForward, POSITIONS, Positions, RopeAxes, VisionSpec};

/// Side of a square of patches, if the file does not state it.
const MERGE: usize = 3;
/// The most rows of a picture, if the file does not state its most pixels.
const MOST_ROWS: usize = 280;
const ROPE_BASE: f32 = 100.0;

pub(super) fn spec(keys: &Keys<'_>) -> Result<VisionSpec> {
    let mut spec = read::spec(keys, Family::Gemma4, FeedForward::GatedGelu)?;
    spec.merge = keys.opt_size("vision.projector.scale_factor")?.unwrap_or(MERGE);
    spec.biases = Presence::Absent;
    spec.clips = keys.gguf.tensor("v.blk.0.attn_q.input_min").is_some();
    spec.post_norms = Some(spec.norm);
    spec.head_norms = true;
    spec.scale = 1.0;
    spec.rope = Some(RopeAxes { base: ROPE_BASE, is_column_first: true, ..RopeAxes::IN_HALVES });
    let of = spec.row_side();
    let max_pixels = keys.opt_size("vision.image_max_pixels")?.unwrap_or(MOST_ROWS * of * of);
    if max_pixels < of * of {
        return Err(keys.error("vision.image_max_pixels", format!("is {max_pixels}, less than {of} x {of}")));
    }
    let len = keys.gguf.tensor(POSITIONS).and_then(|table| table.shape.get(1).copied()).unwrap_or(0) as usize;
    let longest = max_pixels / (of * of) * spec.merge;
    if len < longest {
        let problem = format!("has {len} positions, expected at least {longest}, for pictures of {max_pixels} pixels");
        return Err(keys.metadata.error(POSITIONS, problem));
    }
    spec.positions = Some(Positions::Axes { len });
    // Text models with inputs for each layer are causal. See `VisionSpec::fitted`.
    spec.sight = Sight::InWindows;
    // The model computes 2x - 1 of the values.
    let Preparation { filter, mean, std, .. } = spec.preparation;
    let mean = std::array::from_fn(|channel| mean[channel] + 0.5 * std[channel]);
    let sizing = Sizing::Largest { of, max_pixels };
    spec.preparation = Preparation { sizing, filter, mean, std: std.map(|std| 0.5 * std) };
    Ok(spec)
}
