//! Pictures for image encoders: from the bytes of a file to normalised values.
//!
//! - `decode` checks and decodes a file.
//! - `sizing` computes the size that the model expects.
//! - `resize` resizes like Pillow.
//!
//! `Preparation` is the preprocessing of a model, and says which of these steps it takes.
//!
//! Start with `Preparation` here, then `sizing`. Of the workspace, this crate knows only the errors of
//! `rocmforge_core`: no model and no device. The model's file decides the preparation, and `rocmforge_model` reads it.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod decode;
mod resize;
mod sizing;

#[cfg(test)]
mod tests;

// The crates below, by the names that the files of this one use.
use rocmforge_core::{Error, Result};
#[cfg(test)]
use rocmforge_testdata as testdata;

pub use decode::DecodeLimits;
pub use resize::Filter;
pub use sizing::{Parts, Sizing};

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
    /// Returns tiles of this width and height, row by row, each at the top left of a part that is as large as `pitch`.
    fn tiles(&self, pitch: [usize; 2], [width, height]: [usize; 2]) -> Vec<Self> {
        let (of_row, of_tile) = (self.width * CHANNELS, width * CHANNELS);
        let tile = |[top, left]: [usize; 2]| {
            let rows = (top..top + height).map(|row| &self.rgb[row * of_row + left * CHANNELS..][..of_tile]);
            Self { width, height, rgb: rows.collect::<Vec<_>>().concat() }
        };
        let of_tops = (0..self.height).step_by(pitch[1]);
        of_tops.flat_map(|top| (0..self.width).step_by(pitch[0]).map(move |left| tile([top, left]))).collect()
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

/// A preprocessed part of a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    pub width: usize,
    pub height: usize,
    /// `[channel][row][column]`.
    pub values: Vec<f32>,
}

impl Preparation {
    /// Preprocesses a picture. Returns its parts.
    ///
    /// # Errors
    /// `InvalidRequest` for a shape that the model does not support.
    pub fn prepare(&self, picture: &Picture) -> Result<Vec<Prepared>> {
        let of_byte = |channel: usize, byte: u8| (f32::from(byte) / 255.0 - self.mean[channel]) / self.std[channel];
        let of_bytes: [[f32; 256]; CHANNELS] =
            std::array::from_fn(|channel| std::array::from_fn(|byte| of_byte(channel, byte as u8)));
        let prepared = |Pixels { width, height, rgb }: Pixels| {
            let (pixels, _) = rgb.as_chunks::<CHANNELS>();
            let of_channel = |channel: usize| pixels.iter().map(move |pixel| usize::from(pixel[channel]));
            let planes = of_bytes.iter().enumerate();
            let values = planes.flat_map(|(channel, of_bytes)| of_channel(channel).map(|byte| of_bytes[byte]));
            Prepared { width, height, values: values.collect() }
        };
        Ok(self.resized(picture)?.into_iter().map(prepared).collect())
    }

    /// Returns the resized parts of a picture.
    fn resized(&self, picture: &Picture) -> Result<Vec<Pixels>> {
        let resize = |of: &Pixels, [width, height]: [usize; 2]| resize::resize(of, width, height, self.filter);
        let Parts { tiles, tile, first, pitch, whole } = self.sizing.parts(picture.width(), picture.height())?;
        let first = first.map(|size| resize(&picture.pixels, size));
        let tiled = resize(first.as_ref().unwrap_or(&picture.pixels), [tiles[0] * pitch[0], tiles[1] * pitch[1]]);
        let mut parts = tiled.tiles(pitch, tile);
        match (whole, first) {
            (None, _) => {}
            (Some(size), None) => parts.push(resize(&picture.pixels, size)),
            (Some(size), Some(_)) => parts.extend(resize(&tiled, pitch).tiles(pitch, size)),
        }
        Ok(parts)
    }
}
