//! The matrix units: WMMA of GFX11 and GFX12, MFMA of CDNA.
//!
//! D = A * B + C, with the elements of a matrix spread over the lanes. The layouts are those of AMD's matrix
//! instruction calculator. Sums are exact in f64 and rounded once; the hardware's order of roundings is not documented.
//! EXEC is ignored, as on the hardware.
#![allow(unsafe_code)]

use super::dot::signs;
use super::{Decoded, Decoder, Step, step};
use crate::float::{Fp8, bf16_to_f32, f16_to_f32};
use crate::operand::Source;
use crate::syntax::Register;
use crate::wave::{GROUP, MAX_LANES, Vgpr, Wave};

/// The most products along K that one instruction sums.
const MAX_DEPTH: usize = 64;
/// The most registers of C, and of D.
const MAX_RESULTS: usize = 16;

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    let Some(shape) = Shape::parse(d)? else { return Ok(None) };
    d.expect_sources(3)?;
    let (a, b) = (Operand::decode(d, 1, &shape, 0)?, Operand::decode(d, 2, &shape, 1)?);
    let Some(Register::Vgpr { first: dest, count }) = Register::parse(d.operand(0)?) else {
        return Err("the destination is no VGPR".to_owned());
    };
    if usize::from(count) != shape.results() {
        return Err(format!("{count} registers for the result instead of {}", shape.results()));
    }
    let c = match Register::parse(d.operand(3)?) {
        Some(Register::Vgpr { first, .. }) => Accumulator::Registers(first),
        _ if shape.float => Accumulator::Constant(Source::parse::<f32>(d.operand(3)?)?),
        _ => Accumulator::Constant(Source::parse::<u32>(d.operand(3)?)?),
    };
    // Most shapes sum 16 products or fewer, so there is less to clear and read.
    Ok(Some(match (shape.side, shape.depth) {
        (16, ..=16) => step(move |wave| execute::<16, 16>(wave, &shape, [&a, &b], &c, dest)),
        (16, _) => step(move |wave| execute::<16, MAX_DEPTH>(wave, &shape, [&a, &b], &c, dest)),
        (_, ..=16) => step(move |wave| execute::<32, 16>(wave, &shape, [&a, &b], &c, dest)),
        _ => step(move |wave| execute::<32, MAX_DEPTH>(wave, &shape, [&a, &b], &c, dest)),
    }))
}

/// One operand, indexed by K, then by its row (A) or column (B).
type Matrix<const SIDE: usize, const DEPTH: usize> = [[f64; SIDE]; DEPTH];

fn execute<const SIDE: usize, const DEPTH: usize>(
    wave: &mut Wave,
    shape: &Shape,
    operands: [&Operand; 2],
    c: &Accumulator,
    dest: u16,
) {
    // SAFETY: a code object is loaded only where these instructions exist, and only loaded ones are executed.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        execute_inner::<SIDE, DEPTH>(wave, shape, operands, c, dest)
    }
    #[cfg(not(target_arch = "x86_64"))]
    execute_inner::<SIDE, DEPTH>(wave, shape, operands, c, dest)
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
fn execute_inner<const SIDE: usize, const DEPTH: usize>(
    wave: &mut Wave,
    shape: &Shape,
    [a, b]: [&Operand; 2],
    c: &Accumulator,
    dest: u16,
) {
    let (mut left, mut right) = ([[0.0; SIDE]; DEPTH], [[0.0; SIDE]; DEPTH]);
    a.read(wave, shape, &mut left);
    b.read(wave, shape, &mut right);
    let product = multiply(&left, &right, shape.depth);
    // C is read completely first: D may overlap it, if both have four registers.
    let mut results = [Vgpr::default(); MAX_RESULTS];
    let results = &mut results[..shape.results()];
    for (index, result) in results.iter_mut().enumerate() {
        *result = match c {
            Accumulator::Registers(first) => *wave.vgpr(first + index as u16),
            Accumulator::Constant(source) => [[source.scalar(wave); GROUP]; MAX_LANES / GROUP],
        };
        // Consecutive lanes hold a row of the result.
        let lanes = &mut result.as_flattened_mut()[..wave.lanes];
        for (part, values) in lanes.as_chunks_mut::<SIDE>().0.iter_mut().enumerate() {
            let row = &product[shape.result_row(part * SIDE, index) % SIDE];
            match shape.float {
                true => accumulate(values, row, |product, old| {
                    ((product + f64::from(f32::from_bits(old))) as f32).to_bits()
                }),
                // Integer products and sums are exact in f64.
                false => {
                    accumulate(values, row, |product, old| (product as i64).wrapping_add(i64::from(old as i32)) as u32)
                }
            }
        }
    }
    let dest = usize::from(dest);
    wave.vgprs[dest..dest + results.len()].copy_from_slice(results);
}

#[inline(always)]
fn accumulate<const SIDE: usize>(values: &mut [u32; SIDE], row: &[f64; SIDE], round: impl Fn(f64, u32) -> u32) {
    for (value, product) in values.iter_mut().zip(row) {
        *value = round(*product, *value);
    }
}

#[inline(always)]
fn multiply<const SIDE: usize, const DEPTH: usize>(
    a: &Matrix<SIDE, DEPTH>,
    b: &Matrix<SIDE, DEPTH>,
    depth: usize,
) -> [[f64; SIDE]; SIDE] {
    let mut product = [[0.0; SIDE]; SIDE];
    // Two rows at a time, 16 columns each: their sums stay in registers.
    for (pair, rows) in product.chunks_exact_mut(2).enumerate() {
        let [first, second] = rows else { continue };
        let columns = first.as_chunks_mut::<16>().0.iter_mut().zip(second.as_chunks_mut::<16>().0);
        for (piece, (first, second)) in columns.enumerate() {
            let (mut x, mut y) = ([0.0; 16], [0.0; 16]);
            for (left, right) in a.iter().zip(b).take(depth) {
                let (up, down) = (left[2 * pair], left[2 * pair + 1]);
                for column in 0..16 {
                    let value = right[16 * piece + column];
                    x[column] = f64::mul_add(up, value, x[column]);
                    y[column] = f64::mul_add(down, value, y[column]);
                }
            }
            (*first, *second) = (x, y);
        }
    }
    product
}

enum Accumulator {
    Registers(u16),
    Constant(Source),
}

/// The distribution of the elements of A and B over the lanes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// A lane holds a whole row; lanes 16 to 31 hold copies.
    Wmma11,
    /// Two lanes share a row.
    Wmma12,
    /// 64 / side lanes share a row.
    Mfma,
}

#[derive(Clone, Copy)]
enum Element {
    Integer,
    F16,
    Bf16,
    F32,
    Fp8([Fp8; 2]),
}

struct Shape {
    layout: Layout,
    side: usize,
    depth: usize,
    float: bool,
    element: Element,
    bits: usize,
    signed: [bool; 2],
}

impl Shape {
    /// Parses `wmma_f32_16x16x16_f16`, `mfma_f32_32x32x8f16`, `mfma_f32_16x16x32_fp8_bf8`.
    fn parse(d: &Decoder<'_>) -> Decoded<Option<Self>> {
        let (layout, rest) = match (d.name.strip_prefix("wmma_"), d.name.strip_prefix("mfma_")) {
            (Some(rest), _) if d.target.generation == 11 => (Layout::Wmma11, rest),
            (Some(rest), _) => (Layout::Wmma12, rest),
            (_, Some(rest)) => (Layout::Mfma, rest),
            _ => return Ok(None),
        };
        let unknown = || "this form of matrix instruction".to_owned();
        let (result, rest) = rest.split_once('_').ok_or_else(unknown)?;
        let (rows, rest) = rest.split_once('x').ok_or_else(unknown)?;
        let (columns, rest) = rest.split_once('x').ok_or_else(unknown)?;
        let digits = rest.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(unknown)?;
        let (depth, types) = rest.split_at(digits);
        let number = |text: &str| text.parse::<usize>().map_err(|_| unknown());
        let (side, depth) = (number(rows)?, number(depth)?);
        let format = |mantissa_bits| Fp8 { mantissa_bits, fnuz: d.target.has_fnuz() };
        let (fp8, bf8) = (format(3), format(2));
        let (element, bits, signed) = match types.trim_start_matches('_') {
            "f16" => (Element::F16, 16, [false; 2]),
            "bf16" | "bf16_1k" => (Element::Bf16, 16, [false; 2]),
            "f32" => (Element::F32, 32, [false; 2]),
            "i8" => (Element::Integer, 8, [true; 2]),
            "iu8" => (Element::Integer, 8, signs(d)),
            "iu4" => (Element::Integer, 4, signs(d)),
            "fp8_fp8" => (Element::Fp8([fp8, fp8]), 8, [false; 2]),
            "fp8_bf8" => (Element::Fp8([fp8, bf8]), 8, [false; 2]),
            "bf8_fp8" => (Element::Fp8([bf8, fp8]), 8, [false; 2]),
            "bf8_bf8" => (Element::Fp8([bf8, bf8]), 8, [false; 2]),
            _ => return Err(unknown()),
        };
        let float = match result {
            "f32" => true,
            "i32" => false,
            _ => return Err(unknown()),
        };
        let lanes = if layout == Layout::Mfma { 64 } else { 32 };
        let sides = if layout == Layout::Mfma { side == 16 || side == 32 } else { side == 16 };
        if rows != columns || !sides || depth > MAX_DEPTH || d.target.lanes != lanes {
            return Err(unknown());
        }
        Ok(Some(Self { layout, side, depth, float, element, bits, signed }))
    }

    /// Returns the elements of A, and of B, in a lane.
    fn elements(&self) -> usize {
        match self.layout {
            Layout::Wmma11 => self.depth,
            Layout::Wmma12 => self.depth / 2,
            Layout::Mfma => self.depth * self.side / 64,
        }
    }

    /// Returns the registers of C, and of D.
    fn results(&self) -> usize {
        self.side * self.side / if self.layout == Layout::Mfma { 64 } else { 32 }
    }

    /// Returns the number of parts into which lanes divide a row of A, or a column of B.
    fn parts(&self) -> usize {
        match self.layout {
            Layout::Wmma11 => 1,
            Layout::Wmma12 => 2,
            Layout::Mfma => 64 / self.side,
        }
    }

    /// Returns the position along K of an element in the lanes of a part.
    fn place(&self, part: usize, element: usize) -> usize {
        match self.layout {
            Layout::Wmma12 if self.bits == 16 => element & 3 | (element & 4) << 1 | part << 2,
            _ => part * self.elements() + element,
        }
    }

    /// Returns the row of D for a register of a lane; the column is the lane's position in its part.
    fn result_row(&self, lane: usize, index: usize) -> usize {
        match (self.layout, self.side) {
            (Layout::Wmma11, _) => 2 * index + lane / 16,
            (Layout::Wmma12, _) => 8 * (lane / 16) + index,
            (Layout::Mfma, 16) => 4 * (lane / 16) + index,
            (Layout::Mfma, _) => 8 * (index / 4) + 4 * (lane / 32) + index % 4,
        }
    }
}

/// The registers of A or B.
struct Operand {
    first: u16,
    element: Element,
    fp8: Fp8,
    signed: bool,
}

impl Operand {
    fn decode(d: &Decoder<'_>, index: usize, shape: &Shape, which: usize) -> Decoded<Self> {
        let text = d.operand(index)?;
        let Some(Register::Vgpr { first, count }) = Register::parse(text) else {
            return Err(format!("matrix operand {text}"));
        };
        // Older assemblers use the same names for forms with several blocks, whose sizes differ.
        if usize::from(count) * 32 != shape.elements() * shape.bits {
            return Err(format!("{count} registers for {} elements of {} bits", shape.elements(), shape.bits));
        }
        let fp8 = match shape.element {
            Element::Fp8(formats) => formats[which],
            _ => Fp8 { mantissa_bits: 3, fnuz: false },
        };
        Ok(Self { first, element: shape.element, fp8, signed: shape.signed[which] })
    }

    #[inline(always)]
    fn read<const SIDE: usize, const DEPTH: usize>(
        &self,
        wave: &Wave,
        shape: &Shape,
        matrix: &mut Matrix<SIDE, DEPTH>,
    ) {
        let unused = 32 - shape.bits as u32;
        match self.element {
            Element::F16 => self.convert(wave, shape, matrix, |word| f16_to_f32(word as u16)),
            Element::Bf16 => self.convert(wave, shape, matrix, |word| bf16_to_f32(word as u16)),
            Element::F32 => self.convert(wave, shape, matrix, f32::from_bits),
            Element::Fp8(_) => self.convert(wave, shape, matrix, |word| self.fp8.to_f32(word as u8)),
            Element::Integer if self.signed => {
                self.convert(wave, shape, matrix, |word| ((word << unused) as i32 >> unused) as f32)
            }
            Element::Integer => self.convert(wave, shape, matrix, |word| (word << unused >> unused) as f32),
        }
    }

    /// Converts all elements; `value` gets each element in the low bits of a word.
    #[inline(always)]
    fn convert<const SIDE: usize, const DEPTH: usize>(
        &self,
        wave: &Wave,
        shape: &Shape,
        matrix: &mut Matrix<SIDE, DEPTH>,
        value: impl Fn(u32) -> f32,
    ) {
        let per_register = 32 / shape.bits;
        for element in 0..shape.elements() {
            let lanes = wave.vgpr(self.first + (element / per_register) as u16).as_flattened();
            let shift = shape.bits * (element % per_register);
            for (part, lanes) in lanes.as_chunks::<SIDE>().0.iter().enumerate().take(shape.parts()) {
                let row = &mut matrix[shape.place(part, element) % DEPTH];
                for (result, word) in row.iter_mut().zip(lanes) {
                    *result = value(word >> shift).into();
                }
            }
        }
    }
}
