//! `qwen2.5vl_merger`: Qwen 2.5 VL. Most of its layers attend within windows.

use super::read;
use crate::Result;
use crate::keys::Keys;
use crate::vision::family::Family;
use crate::vision::spec::{FRAMES, FeedForward, RopeAxes, VisionSpec, Windows};

/// The side of an attention window in pixels, if the file does not state it.
const WINDOW_PIXELS: usize = 112;
/// The areas of the smallest and the largest picture in pixels, if the file does not state them.
const PIXELS: [usize; 2] = [56 * 56, 3584 * 3584];

pub(super) fn spec(keys: &Keys<'_>) -> Result<VisionSpec> {
    let mut spec = read::spec(keys, Family::Qwen25, FeedForward::GatedSilu)?;
    spec.merge = read::merge(keys)?;
    spec.inner_size = spec.joined_cols();
    spec.frames = FRAMES;
    spec.last_norm = Some("v.post_ln");
    spec.rope = Some(RopeAxes::IN_HALVES);
    let row_pixels = spec.row_side();
    spec.windows = Some(windows(keys, spec.num_layers, row_pixels)?);
    spec.preparation.sizing = read::multiples(keys, row_pixels, PIXELS)?;
    Ok(spec)
}

fn windows(keys: &Keys<'_>, num_layers: usize, row_pixels: usize) -> Result<Windows> {
    // The last layer of each period attends to the whole picture.
    let period = keys.size("vision.n_wa_pattern")?;
    let pixels = keys.opt_size("vision.window_size")?.unwrap_or(WINDOW_PIXELS);
    if !pixels.is_multiple_of(row_pixels) {
        let problem = format!("is {pixels} pixels, expected a multiple of {row_pixels}");
        return Err(keys.error("vision.window_size", problem));
    }
    let layers = (1..=num_layers).map(|layer| !layer.is_multiple_of(period)).collect();
    Ok(Windows { side: pixels / row_pixels, layers })
}
