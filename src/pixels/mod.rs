//! Pictures for image encoders: from the bytes of a file to normalised values.
//!
//! - `decode` checks and decodes a file.
//! - `sizing` computes the size that the model expects.
//! - `resize` resizes like Pillow.
//!
//! `Preparation` is the preprocessing of a model.

mod decode;
mod resize;
mod sizing;

#[cfg(test)]
mod tests;

pub use decode::DecodeLimits;
pub use resize::Filter;
pub use sizing::Sizing;

use crate::{Error, Result};

/// The channels of a pixel: red, green, blue.
pub const CHANNELS: usize = 3;

/// A picture of 8-bit pixels, with a digest of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    pixels: Pixels,
    digest: [u8; 32],
}

/// 8-bit pixels, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pixels {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Pixels {
    /// Returns square parts of this side, row by row.
    fn tiles(&self, side: usize) -> Vec<Self> {
        let (of_row, of_tile) = (self.width * CHANNELS, side * CHANNELS);
        let tile = |[top, left]: [usize; 2]| {
            let rows = (top..top + side).map(|row| &self.rgb[row * of_row + left * CHANNELS..][..of_tile]);
            Self { width: side, height: side, rgb: rows.collect::<Vec<_>>().concat() }
        };
        let of_tops = (0..self.height).step_by(side);
        of_tops.flat_map(|top| (0..self.width).step_by(side).map(move |left| tile([top, left]))).collect()
    }
}

impl Picture {
    /// # Errors
    /// `InvalidRequest` unless there are three bytes for each pixel, and at least one pixel.
    pub fn from_rgb(width: usize, height: usize, rgb: Vec<u8>) -> Result<Self> {
        let expected = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(CHANNELS));
        if expected != Some(rgb.len()) || rgb.is_empty() {
            let got = format!("{} bytes for {width} x {height} pixels", rgb.len());
            return Err(Error::invalid("image", got, "three bytes per pixel, and at least one pixel"));
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(width as u64).to_le_bytes()).update(&rgb);
        let digest = *hasher.finalize().as_bytes();
        Ok(Self { pixels: Pixels { width, height, rgb }, digest })
    }

    pub fn width(&self) -> usize {
        self.pixels.width
    }

    pub fn height(&self) -> usize {
        self.pixels.height
    }

    /// Returns the bytes of all pixels.
    pub fn rgb(&self) -> &[u8] {
        &self.pixels.rgb
    }

    /// Returns a digest that only pictures with equal pixels have in common.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }
}

/// The preprocessing of a model: resizing and normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preparation {
    pub sizing: Sizing,
    pub filter: Filter,
    /// Subtracted from each channel, which is from 0 to 1, before the division by `std`.
    pub mean: [f32; CHANNELS],
    pub std: [f32; CHANNELS],
}

/// A preprocessed picture: one part, or several of the same size.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// The sides of a part.
    pub width: usize,
    pub height: usize,
    /// `[part][channel][row][column]`.
    pub values: Vec<f32>,
}

impl Preparation {
    /// Resizes and normalises a picture.
    ///
    /// # Errors
    /// `InvalidRequest` for a shape that the model does not support.
    pub fn prepare(&self, picture: &Picture) -> Result<Prepared> {
        let parts = self.resized(picture)?;
        let Some(&Pixels { width, height, .. }) = parts.first() else {
            return Err(Error::internal("a picture without parts"));
        };
        let of_byte = |channel: usize, byte: u8| (f32::from(byte) / 255.0 - self.mean[channel]) / self.std[channel];
        let of_bytes: [[f32; 256]; CHANNELS] =
            std::array::from_fn(|channel| std::array::from_fn(|byte| of_byte(channel, byte as u8)));
        let mut values = Vec::with_capacity(parts.len() * CHANNELS * width * height);
        for part in &parts {
            let (pixels, _) = part.rgb.as_chunks::<CHANNELS>();
            for (channel, of_bytes) in of_bytes.iter().enumerate() {
                values.extend(pixels.iter().map(|pixel| of_bytes[usize::from(pixel[channel])]));
            }
        }
        Ok(Prepared { width, height, values })
    }

    /// Returns the resized picture, or its tiles row by row, with the whole picture as the last one if there are
    /// several.
    fn resized(&self, picture: &Picture) -> Result<Vec<Pixels>> {
        let resize = |[width, height]: [usize; 2]| resize::resize(&picture.pixels, width, height, self.filter);
        let sides = [picture.width(), picture.height()];
        let Sizing::Tiles { side, least, most } = self.sizing else {
            return Ok(vec![resize(self.sizing.size(sides[0], sides[1])?)]);
        };
        let grid = sizing::tiles(sides, side, [least, most]);
        let mut tiles = resize(grid.map(|count| count * side)).tiles(side);
        if tiles.len() > 1 {
            tiles.push(resize([side; 2]));
        }
        Ok(tiles)
    }
}
