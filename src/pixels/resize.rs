//! Antialiased resizing with the arithmetic of Pillow: weights of 22 bits, and pixels rounded to 8 bits between the two
//! directions. Models were trained on pictures that were resized like this.

use super::{CHANNELS, Pixels};

/// Fractional bits of a weight. Sums of products with bytes fit in an `i32`.
const WEIGHT_BITS: u32 = 22;
const ONE: f64 = (1u32 << WEIGHT_BITS) as f64;
const HALF: i32 = 1 << (WEIGHT_BITS - 1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    Bilinear,
    /// Cubic convolution (Keys, 1981) with a = -0.5.
    Bicubic,
    /// A sine cardinal in a window of its first three lobes (Duchon, 1979).
    Lanczos,
}

impl Filter {
    /// Returns the distance from which the filter is zero.
    fn reach(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn at(self, distance: f64) -> f64 {
        const A: f64 = -0.5;
        let x = distance.abs();
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            Self::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            Self::Bicubic => 0.0,
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    let turn = x * std::f64::consts::PI;
    if turn == 0.0 { 1.0 } else { turn.sin() / turn }
}

/// The inputs of one output in one direction: the index of the first, and the weights from there on.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

impl Taps {
    fn sum(&self, byte: impl Fn(usize) -> u8) -> u8 {
        let inputs = (self.first..).zip(&self.weights);
        let sum = inputs.fold(HALF, |sum, (at, weight)| sum + i32::from(byte(at)) * weight);
        (sum >> WEIGHT_BITS).clamp(0, 255) as u8
    }
}

fn taps(input: usize, output: usize, filter: Filter) -> Vec<Taps> {
    let scale = input as f64 / output as f64;
    let width = scale.max(1.0);
    let reach = filter.reach() * width;
    let of_output = |index: usize| {
        let center = (index as f64 + 0.5) * scale;
        let first = (center - reach + 0.5).max(0.0) as usize;
        let end = ((center + reach + 0.5) as usize).min(input);
        let weights: Vec<f64> = (first..end).map(|at| filter.at((at as f64 - center + 0.5) * (1.0 / width))).collect();
        let total: f64 = weights.iter().sum();
        let fixed = |weight: &f64| (weight / total * ONE).round() as i32;
        Taps { first, weights: weights.iter().map(fixed).collect() }
    };
    (0..output).map(of_output).collect()
}

/// Returns resized pixels. The width is changed first, as in torchvision and in Pillow before 13.
pub(super) fn resize(pixels: &Pixels, width: usize, height: usize, filter: Filter) -> Pixels {
    let wide = if width == pixels.width { pixels.clone() } else { resize_rows(pixels, width, filter) };
    if height == pixels.height { wide } else { resize_columns(&wide, height, filter) }
}

fn resize_rows(pixels: &Pixels, width: usize, filter: Filter) -> Pixels {
    let taps = taps(pixels.width, width, filter);
    let mut rgb = Vec::with_capacity(width * pixels.height * CHANNELS);
    for row in pixels.rgb.chunks_exact(pixels.width * CHANNELS) {
        for taps in &taps {
            rgb.extend((0..CHANNELS).map(|channel| taps.sum(|at| row[at * CHANNELS + channel])));
        }
    }
    Pixels { width, height: pixels.height, rgb }
}

fn resize_columns(pixels: &Pixels, height: usize, filter: Filter) -> Pixels {
    let row = pixels.width * CHANNELS;
    let mut rgb = Vec::with_capacity(row * height);
    for taps in taps(pixels.height, height, filter) {
        rgb.extend((0..row).map(|column| taps.sum(|at| pixels.rgb[at * row + column])));
    }
    Pixels { width: pixels.width, height, rgb }
}
