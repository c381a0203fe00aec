//! A matrix product of the simulated matrix library, computed in f64 when its stream reaches it.

use crate::memory::Memory;
use crate::status::{Result, Status};

/// Element types of a matrix, by hipDataType.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    Bf16,
    /// e4m3 of OCP, without infinities.
    E4m3,
    /// The e4m3 of gfx942: the exponent bias is 8, and the code of negative zero is NaN.
    E4m3Fnuz,
}

/// A matrix in device memory, column-major.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix {
    pub at: u64,
    pub element: Element,
    pub rows: usize,
    pub cols: usize,
    /// Elements from one column to the next.
    pub stride: usize,
}

/// `d = alpha · transposed a · b + beta · d + bias`. The bias is one number per row of `d`, with `d`'s element type.
/// Each column of `a` and of `b` has a factor (f32) in `scales`, if given.
#[derive(Debug, Clone)]
pub(crate) struct Product {
    pub a: Matrix,
    pub b: Matrix,
    pub d: Matrix,
    pub alpha: f32,
    pub beta: f32,
    pub scales: Option<[u64; 2]>,
    pub bias: Option<u64>,
    /// True if one element must be wrong.
    pub wrong: bool,
}

impl Element {
    pub(crate) fn of(number: i32) -> Option<Self> {
        let all = [(0, Self::F32), (2, Self::F16), (14, Self::Bf16), (28, Self::E4m3), (1000, Self::E4m3Fnuz)];
        all.into_iter().find(|(code, _)| *code == number).map(|(_, e)| e)
    }

    pub(crate) fn is_8_bit(self) -> bool {
        matches!(self, Self::E4m3 | Self::E4m3Fnuz)
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 | Self::E4m3Fnuz => 1,
        }
    }

    fn read(self, bytes: &[u8]) -> f64 {
        let half = || u16::from_le_bytes([bytes[0], bytes[1]]);
        match self {
            Self::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into(),
            Self::F16 => half::f16::from_bits(half()).into(),
            Self::Bf16 => half::bf16::from_bits(half()).into(),
            Self::E4m3 => e4m3(bytes[0], 7, 0x7f),
            Self::E4m3Fnuz if bytes[0] == 0x80 => f64::NAN,
            Self::E4m3Fnuz => e4m3(bytes[0], 8, 0x80),
        }
    }

    fn write(self, value: f64, bytes: &mut [u8]) {
        match self {
            Self::F32 => bytes.copy_from_slice(&(value as f32).to_le_bytes()),
            Self::F16 => bytes.copy_from_slice(&half::f16::from_f64(value).to_le_bytes()),
            Self::Bf16 => bytes.copy_from_slice(&half::bf16::from_f64(value).to_le_bytes()),
            Self::E4m3 | Self::E4m3Fnuz => unreachable!("no product has such an output"),
        }
    }
}

/// Decodes a number with 4 bits of exponent and 3 of mantissa; `nan` is the code of NaN, with either sign.
fn e4m3(code: u8, bias: i32, nan: u8) -> f64 {
    let (sign, size) = (if code & 0x80 == 0 { 1.0 } else { -1.0 }, code & 0x7f);
    let (exponent, mantissa) = (i32::from(size >> 3), f64::from(size & 7));
    match (size == nan, exponent) {
        (true, _) => f64::NAN,
        (false, 0) => sign * mantissa / 8.0 * 2f64.powi(1 - bias),
        (false, _) => sign * (1.0 + mantissa / 8.0) * 2f64.powi(exponent - bias),
    }
}

impl Matrix {
    pub(crate) fn bytes(&self) -> usize {
        self.element.bytes() * (self.stride * (self.cols - 1) + self.rows)
    }

    fn load(&self, memory: &Memory) -> Result<Vec<u8>> {
        load(memory, self.at, self.bytes())
    }

    fn column(&self, bytes: &[u8], col: usize) -> Vec<f64> {
        let size = self.element.bytes();
        let column = &bytes[size * self.stride * col..][..size * self.rows];
        column.chunks(size).map(|bytes| self.element.read(bytes)).collect()
    }
}

impl Product {
    pub(crate) fn run(&self, memory: &mut Memory) -> Result<()> {
        let (a, b, mut d) = (self.a.load(memory)?, self.b.load(memory)?, self.d.load(memory)?);
        let size = self.d.element.bytes();
        let bias = self.bias.map(|at| load(memory, at, size * self.d.rows)).transpose()?;
        let scales = self.scales.map(|at| [(at[0], self.a.cols), (at[1], self.b.cols)]);
        let scales = scales.map(|sides| sides.map(|(at, count)| load(memory, at, 4 * count)));
        let scales = match scales {
            Some([a, b]) => Some([a?, b?]),
            None => None,
        };
        let scale = |side: usize, i: usize| match &scales {
            Some(sides) => Element::F32.read(&sides[side][4 * i..]),
            None => 1.0,
        };
        let weights: Vec<Vec<f64>> = (0..self.a.cols).map(|col| self.a.column(&a, col)).collect();
        for col in 0..self.d.cols {
            let x = self.b.column(&b, col);
            for (row, weights) in weights.iter().enumerate() {
                let mut sum: f64 = weights.iter().zip(&x).map(|(w, x)| w * x).sum();
                sum *= f64::from(self.alpha) * scale(0, row) * scale(1, col);
                let at = &mut d[size * (self.d.stride * col + row)..][..size];
                // With a factor of zero the old content is not read: it may be NaN.
                if self.beta != 0.0 {
                    sum += f64::from(self.beta) * self.d.element.read(at);
                }
                if let Some(bias) = &bias {
                    sum += self.d.element.read(&bias[size * row..]);
                }
                if self.wrong && (col, row) == (self.d.cols - 1, self.d.rows / 2) {
                    sum += 1.0;
                }
                self.d.element.write(sum, at);
            }
        }
        // SAFETY: the vector has as many bytes as are written.
        unsafe { memory.write_from(self.d.at, d.as_ptr(), d.len()) }
    }
}

fn load(memory: &Memory, at: u64, bytes: usize) -> Result<Vec<u8>> {
    if !memory.contains(at, bytes as u64) {
        return Err(Status::ILLEGAL_ADDRESS);
    }
    let mut all = vec![0; bytes];
    // SAFETY: the vector has that many bytes.
    unsafe { memory.read_to(at, all.as_mut_ptr(), bytes)? };
    Ok(all)
}
