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

/// A preprocessed picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    pub width: usize,
    pub height: usize,
    /// `[channel][row][column]`.
    pub values: Vec<f32>,
}

impl Preparation {
    /// Resizes and normalises a picture.
    ///
    /// # Errors
    /// `InvalidRequest` for a shape that the model does not support.
    pub fn prepare(&self, picture: &Picture) -> Result<Prepared> {
        let [width, height] = self.sizing.size(picture.width(), picture.height())?;
        let resized = resize::resize(&picture.pixels, width, height, self.filter);
        let mut values = vec![0.0; CHANNELS * width * height];
        for (channel, plane) in values.chunks_exact_mut(width * height).enumerate() {
            let of_byte = |byte: u8| (f32::from(byte) / 255.0 - self.mean[channel]) / self.std[channel];
            let of_bytes: [f32; 256] = std::array::from_fn(|byte| of_byte(byte as u8));
            let (pixels, _) = resized.rgb.as_chunks::<CHANNELS>();
            plane.iter_mut().zip(pixels).for_each(|(value, pixel)| *value = of_bytes[usize::from(pixel[channel])]);
        }
        Ok(Prepared { width, height, values })
    }
}
