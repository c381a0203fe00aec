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
    /// Sides that are at most `side`, rounded up to multiples of `of`; smaller ones if the area exceeds `max_pixels`.
    /// `side` is a multiple of `of`, and at most `max_pixels / of`.
    Within { side: usize, of: usize, max_pixels: usize },
    /// The largest sides near the picture's proportions that are multiples of `of`, with an area of at most
    /// `max_pixels`, which is at least that of one square of `of` pixels.
    Largest { of: usize, max_pixels: usize },
    /// Square tiles of this side, from `least` to `most`, and then the whole picture as one more if there are several.
    Tiles { side: usize, least: usize, most: usize },
}

impl Sizing {
    /// Returns the width and height of the resized picture. Tiles lie below each other.
    ///
    /// # Errors
    /// `InvalidRequest` for a picture that is too narrow.
    pub fn size(self, width: usize, height: usize) -> Result<[usize; 2]> {
        match self {
            Self::Square { side } => Ok([side; 2]),
            Self::Multiples { of, min_pixels, max_pixels } => multiples([width, height], of, [min_pixels, max_pixels]),
            Self::Within { side, of, max_pixels } => Ok(within([width, height], side, of, max_pixels)),
            Self::Largest { of, max_pixels } => Ok(largest([width, height], of, max_pixels)),
            Self::Tiles { side, least, most } => {
                let [columns, rows] = tiles([width, height], side, [least, most]);
                Ok([side, side * with_whole(columns * rows)])
            }
        }
    }

    /// Returns the most parts of a picture, all of one size.
    pub fn most_parts(self) -> usize {
        match self {
            Self::Tiles { most, .. } => with_whole(most),
            Self::Square { .. } | Self::Multiples { .. } | Self::Within { .. } | Self::Largest { .. } => 1,
        }
    }

    /// Returns the area of the largest resized picture, or of one tile, in pixels.
    pub fn most_pixels(self) -> usize {
        match self {
            Self::Square { side } | Self::Tiles { side, .. } => side * side,
            Self::Multiples { max_pixels, .. } | Self::Largest { max_pixels, .. } => max_pixels,
            Self::Within { side, max_pixels, .. } => side.saturating_mul(side).min(max_pixels),
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

fn within(sides: [usize; 2], most: usize, of: usize, max_pixels: usize) -> [usize; 2] {
    let ratios = sides.map(|side| side as f64 / most as f64);
    let ratio = ratios[0].max(ratios[1]).max(1.0);
    let sides = sides.map(|side| (side as f64 / ratio).floor().max(1.0));
    let rounded = sides.map(|side| (side as usize).next_multiple_of(of));
    if rounded[0] * rounded[1] <= max_pixels {
        return rounded;
    }
    let factor = (sides[0] * sides[1] / max_pixels as f64).sqrt();
    sides.map(|side| ((side / factor / of as f64).floor() as usize * of).max(of))
}

fn largest(sides: [usize; 2], of: usize, max_pixels: usize) -> [usize; 2] {
    let [width, height] = sides.map(|side| side as f64);
    let factor = (max_pixels as f64 / (width * height)).sqrt();
    let most = max_pixels / (of * of);
    let counts = match [width, height].map(|side| (factor * side / of as f64).floor() as usize) {
        // A narrow picture becomes a row or a column of squares.
        [_, 0] => [((width / height).floor() as usize).clamp(1, most), 1],
        [0, _] => [1, ((height / width).floor() as usize).clamp(1, most)],
        counts => counts,
    };
    counts.map(|count| count * of)
}

/// Returns the number of tiles, with the whole picture as one more if there are several.
fn with_whole(tiles: usize) -> usize {
    if tiles == 1 { 1 } else { tiles + 1 }
}

/// Returns the columns and rows of tiles whose proportions are nearest to those of the picture. Of several, it is the
/// one with most tiles that the picture fills by half.
pub(super) fn tiles(sides: [usize; 2], side: usize, [least, most]: [usize; 2]) -> [usize; 2] {
    let [width, height] = sides.map(|side| side as f64);
    let of_count = |count: usize| (1..=count).filter(move |columns| count.is_multiple_of(*columns));
    let grids = (least..=most).flat_map(|count| of_count(count).map(move |columns| [columns, count / columns]));
    let (mut best, mut least_distance) = ([1, 1], f64::INFINITY);
    for [columns, rows] in grids {
        let distance = (width / height - columns as f64 / rows as f64).abs();
        let is_filled = width * height > 0.5 * (side * side * columns * rows) as f64;
        if distance < least_distance || (distance == least_distance && is_filled) {
            (best, least_distance) = ([columns, rows], distance);
        }
    }
    best
}
