//! Decodes picture files. The size is checked before any pixel is decoded.

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use super::{CHANNELS, Picture};
use crate::{Error, Result};

/// Maximum bytes of a decoded pixel: four channels of 16 bits, in two copies.
const MOST_BYTES_OF_PIXEL: u64 = 16;
const FORMATS: [ImageFormat; 4] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif];

/// Limits for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    pub max_bytes: usize,
    pub max_pixels: u64,
}

impl DecodeLimits {
    pub const MAX_BYTES: usize = 32 << 20;
    pub const MAX_PIXELS: u64 = 50_000_000;
}

impl Default for DecodeLimits {
    fn default() -> Self {
        Self { max_bytes: Self::MAX_BYTES, max_pixels: Self::MAX_PIXELS }
    }
}

impl Picture {
    /// Decodes a PNG, JPEG, WebP or GIF file. Animations give their first frame. The EXIF orientation is applied, and
    /// transparent pixels are blended with white.
    ///
    /// # Errors
    /// `InvalidRequest` for another format, a damaged file, or one beyond the limits.
    pub fn decode(bytes: &[u8], limits: DecodeLimits) -> Result<Self> {
        if bytes.len() > limits.max_bytes {
            let expected = format!("at most {} bytes; send a smaller picture", limits.max_bytes);
            return Err(Error::invalid("image", format!("a file of {} bytes", bytes.len()), expected));
        }
        let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(damaged)?;
        if !reader.format().is_some_and(|format| FORMATS.contains(&format)) {
            let got = format!("{} bytes that are none of these formats", bytes.len());
            return Err(Error::invalid("image", got, "a PNG, JPEG, WebP or GIF file"));
        }
        let mut room = Limits::default();
        room.max_alloc = Some(limits.max_pixels.saturating_mul(MOST_BYTES_OF_PIXEL));
        reader.limits(room);
        let mut decoder = reader.into_decoder().map_err(damaged)?;
        let (width, height) = decoder.dimensions();
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 || pixels > limits.max_pixels {
            let expected = format!("1 to {} pixels; send a smaller picture", limits.max_pixels);
            return Err(Error::invalid("image", format!("a picture of {width} x {height} pixels"), expected));
        }
        // Unreadable EXIF data is ignored.
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let mut image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
        image.apply_orientation(orientation);
        let (width, height) = (image.width() as usize, image.height() as usize);
        let rgb = if image.color().has_alpha() { on_white(&image) } else { image.into_rgb8().into_raw() };
        Self::from_rgb(width, height, rgb)
    }
}

fn damaged(error: impl std::fmt::Display) -> Error {
    Error::invalid("image", format!("a file that cannot be decoded ({error})"), "a whole PNG, JPEG, WebP or GIF file")
}

/// Returns the pixels blended with white.
fn on_white(image: &DynamicImage) -> Vec<u8> {
    let rgba = image.to_rgba8();
    let (pixels, _) = rgba.as_raw().as_chunks::<4>();
    let mut rgb = Vec::with_capacity(pixels.len() * CHANNELS);
    for &[red, green, blue, alpha] in pixels {
        let alpha = u32::from(alpha);
        let mix = |channel: u8| ((u32::from(channel) * alpha + 255 * (255 - alpha) + 127) / 255) as u8;
        rgb.extend([mix(red), mix(green), mix(blue)]);
    }
    rgb
}
