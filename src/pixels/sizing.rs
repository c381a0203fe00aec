//! The sizes to which a model's preprocessing resizes a picture, and the tiles that it cuts of it.

use crate::{Error, Result};

/// The largest ratio of the longer side to the shorter one, if proportions are kept.
const MAX_RATIO: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizing {
    /// A square of this side, whatever the picture's proportions.
    Square { side: usize },
    /// Sides that are multiples of `of` and near those of the picture, with an area within these bounds. If it
    /// `enlarges`, a picture with a shorter side than `of` has this side first.
    Multiples { of: usize, min_pixels: usize, max_pixels: usize, enlarges: bool },
    /// Sides that are at most `side`, rounded up to multiples of `of`; smaller ones if the area exceeds `max_pixels`.
    /// `side` is a multiple of `of`, and at most `max_pixels / of`.
    Within { side: usize, of: usize, max_pixels: usize },
    /// The largest sides near the picture's proportions that are multiples of `of`, with an area of at most
    /// `max_pixels`. `max_pixels` must allow one square of `of` pixels.
    Largest { of: usize, max_pixels: usize },
    /// Square tiles of this side, from `least` to `most`, and then the whole picture as one more if there are several.
    Tiles { side: usize, least: usize, most: usize },
    /// `Multiples`, for pictures of at most twice `max_pixels`. Larger ones become tiles, which are as large as a
    /// square of `max_pixels`. The whole picture is one more, and has the sides of `Multiples`.
    MultiplesOrTiles { of: usize, min_pixels: usize, max_pixels: usize, least: usize, most: usize },
    /// Square tiles of `side` pixels, of which the encoder takes `kept`. The picture has a longer side of `longest`
    /// first, and is resized to whole tiles then. It is resized once more to be the whole one, if there are several.
    Twice { longest: usize, side: usize, kept: usize },
}

/// The parts that a picture becomes: tiles, row by row, and then the whole picture if there are several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// The numbers of columns and of rows of tiles.
    pub tiles: [usize; 2],
    /// The width and height of a tile.
    pub tile: [usize; 2],
    /// The sides that the picture is resized to before it is resized to tiles. The whole one is made of the tiles then.
    pub(super) first: Option<[usize; 2]>,
    /// The width and height of a tile before what exceeds `tile` at its right and bottom is left out.
    pub(super) pitch: [usize; 2],
    /// The width and height of the whole picture, if it is one more part.
    pub whole: Option<[usize; 2]>,
}

impl Parts {
    fn one(size: [usize; 2]) -> Self {
        Self { tiles: [1, 1], tile: size, first: None, pitch: size, whole: None }
    }

    fn tiles(tiles: [usize; 2], side: usize, whole: [usize; 2]) -> Self {
        Self { tiles, tile: [side; 2], first: None, pitch: [side; 2], whole: (tiles != [1, 1]).then_some(whole) }
    }

    /// Returns the width and height of each part.
    pub fn sizes(self) -> impl Iterator<Item = [usize; 2]> {
        std::iter::repeat_n(self.tile, self.tiles[0] * self.tiles[1]).chain(self.whole)
    }
}

impl Sizing {
    /// Returns the parts that a picture of this width and height becomes.
    ///
    /// # Errors
    /// `InvalidRequest` for a picture that is too narrow.
    pub fn parts(self, width: usize, height: usize) -> Result<Parts> {
        let sides = [width, height];
        Ok(match self {
            Self::Square { side } => Parts::one([side; 2]),
            Self::Multiples { of, min_pixels, max_pixels, enlarges } => {
                let (long, short) = (width.max(height), width.min(height));
                let factor = (of as f64 / width as f64).max(of as f64 / height as f64);
                let is_enlarged = enlarges && short < of;
                let sides = if is_enlarged { sides.map(|side| (side as f64 * factor) as usize) } else { sides };
                if long > short.saturating_mul(MAX_RATIO) {
                    return Err(too_narrow(sides, MAX_RATIO));
                }
                Parts::one(multiples(sides, of, nearest(sides, of, 0), [min_pixels, max_pixels]))
            }
            Self::Within { side, of, max_pixels } => Parts::one(within(sides, side, of, max_pixels)),
            Self::Largest { of, max_pixels } => Parts::one(largest(sides, of, max_pixels)),
            Self::Tiles { side, least, most } => Parts::tiles(tiles(sides, side, [least, most]), side, [side; 2]),
            Self::MultiplesOrTiles { of, min_pixels, max_pixels, least, most } => {
                let near = nearest(sides, of, of);
                let whole = multiples(sides, of, near, [min_pixels, max_pixels]);
                // The shorter side of a narrow picture is rounded up.
                if whole[0] * whole[1] > max_pixels {
                    return Err(too_narrow(sides, max_pixels / (of * of)));
                }
                if near[0] * near[1] <= 2 * max_pixels {
                    return Ok(Parts::one(whole));
                }
                let side = max_pixels.isqrt() / of * of;
                Parts::tiles(tiles(sides, side, [least, most]), side, whole)
            }
            Self::Twice { longest, side, kept } => {
                let first = with_longest(sides, longest);
                let parts = Parts::tiles(whole_tiles(first, side), kept, [kept; 2]);
                Parts { first: Some(first), pitch: [side; 2], ..parts }
            }
        })
    }

    /// Returns the most tiles beside each other or below each other.
    pub fn most_tiles_of_side(self) -> usize {
        match self {
            Self::Tiles { most, .. } | Self::MultiplesOrTiles { most, .. } => most,
            Self::Twice { longest, side, .. } => longest.div_ceil(side),
            Self::Square { .. } | Self::Multiples { .. } | Self::Within { .. } | Self::Largest { .. } => 1,
        }
    }

    /// Returns the area of the largest part of a picture, in pixels.
    pub fn most_pixels(self) -> usize {
        match self {
            Self::Square { side } | Self::Tiles { side, .. } | Self::Twice { kept: side, .. } => side * side,
            Self::Multiples { max_pixels, .. }
            | Self::Largest { max_pixels, .. }
            | Self::MultiplesOrTiles { max_pixels, .. } => max_pixels,
            Self::Within { side, max_pixels, .. } => side.saturating_mul(side).min(max_pixels),
        }
    }
}

fn too_narrow([width, height]: [usize; 2], most: usize) -> Error {
    let expected = format!("sides of which the longer is at most {most} times the shorter");
    Error::invalid("image", format!("a picture of {width} x {height} pixels"), expected)
}

/// Returns the multiples of `of` that are nearest to the sides, and at least `least`.
fn nearest(sides: [usize; 2], of: usize, least: usize) -> [usize; 2] {
    sides.map(|side| ((side as f64 / of as f64).round_ties_even() as usize * of).max(least))
}

/// Returns `nearest`, or multiples of `of` in the proportions of `sides` whose area is within the bounds.
fn multiples(sides: [usize; 2], of: usize, nearest: [usize; 2], [min_pixels, max_pixels]: [usize; 2]) -> [usize; 2] {
    let step = of as f64;
    let area = nearest[0] * nearest[1];
    let exact = sides[0] as f64 * sides[1] as f64;
    if area > max_pixels {
        let factor = (exact / max_pixels as f64).sqrt();
        return sides.map(|side| ((side as f64 / factor / step).floor() as usize * of).max(of));
    }
    if area < min_pixels {
        let factor = (min_pixels as f64 / exact).sqrt();
        return sides.map(|side| (side as f64 * factor / step).ceil() as usize * of);
    }
    nearest
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

/// Returns the grid of tiles (columns and rows) closest to the picture's proportions. Among equals, it is the largest
/// grid of which the picture fills at least half.
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

/// Returns sides in these proportions of which the longer one is `longest`, and the shorter one is even.
fn with_longest(sides: [usize; 2], longest: usize) -> [usize; 2] {
    let [width, height] = sides.map(|side| side as f64);
    let even = |side: f64| (side as usize).next_multiple_of(2).max(1);
    let ratio = width / height;
    if width >= height { [longest, even(longest as f64 / ratio)] } else { [even(longest as f64 * ratio), longest] }
}

/// Returns the columns and rows of tiles that a picture fills if its longer side is rounded up to whole tiles.
fn whole_tiles(sides: [usize; 2], side: usize) -> [usize; 2] {
    let ratio = sides[0] as f64 / sides[1] as f64;
    let longest = sides[0].max(sides[1]).next_multiple_of(side);
    let shorter = if ratio >= 1.0 { longest as f64 / ratio } else { longest as f64 * ratio };
    let counts = [longest / side, (shorter as usize).div_ceil(side).max(1)];
    if ratio >= 1.0 { counts } else { [counts[1], counts[0]] }
}
