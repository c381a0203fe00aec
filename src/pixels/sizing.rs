//! The size to which a model's preprocessing resizes a picture.

use crate::{Error, Result};

/// The largest ratio of the longer side to the shorter one, if proportions are kept.
const MAX_RATIO: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizing {
    /// A square of this side, whatever the picture's proportions.
    Square { side: usize },
    /// Sides that are multiples of `of` and near those of the picture, with an area within these bounds.
    Multiples { of: usize, min_pixels: usize, max_pixels: usize },
}

impl Sizing {
    /// Returns the width and height of the resized picture.
    ///
    /// # Errors
    /// `InvalidRequest` for a picture that is too narrow.
    pub fn size(self, width: usize, height: usize) -> Result<[usize; 2]> {
        match self {
            Self::Square { side } => Ok([side; 2]),
            Self::Multiples { of, min_pixels, max_pixels } => multiples([width, height], of, [min_pixels, max_pixels]),
        }
    }

    /// Returns the area of the largest resized picture, in pixels.
    pub fn most_pixels(self) -> usize {
        match self {
            Self::Square { side } => side * side,
            Self::Multiples { max_pixels, .. } => max_pixels,
        }
    }
}

fn multiples(sides: [usize; 2], of: usize, [min_pixels, max_pixels]: [usize; 2]) -> Result<[usize; 2]> {
    let [width, height] = sides;
    let (long, short) = (width.max(height), width.min(height));
    if short == 0 || long > short.saturating_mul(MAX_RATIO) {
        let expected = format!("sides of which the longer is at most {MAX_RATIO} times the shorter");
        return Err(Error::invalid("image", format!("a picture of {width} x {height} pixels"), expected));
    }
    let step = of as f64;
    let nearest = sides.map(|side| (side as f64 / step).round_ties_even() as usize * of);
    let area = nearest[0] * nearest[1];
    let exact = width as f64 * height as f64;
    if area > max_pixels {
        let factor = (exact / max_pixels as f64).sqrt();
        return Ok(sides.map(|side| ((side as f64 / factor / step).floor() as usize * of).max(of)));
    }
    if area < min_pixels {
        let factor = (min_pixels as f64 / exact).sqrt();
        return Ok(sides.map(|side| (side as f64 * factor / step).ceil() as usize * of));
    }
    Ok(nearest)
}
