//! Dot products within a lane.

use super::{Decoded, Decoder, Step};
use crate::float::{bf16_to_f32, f16_to_f32};

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    let Some(name) = d.name.strip_prefix("dot") else { return Ok(None) };
    // `dot4c`, `dot2acc`: the destination is the accumulator.
    let digits = name.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let (count, rest) = name.split_at(name.len() - digits.len());
    let (accumulates, types) = match rest.split_once('_') {
        Some(("", types)) => (false, types),
        Some(("c" | "acc", types)) => (true, types),
        _ => return Ok(None),
    };
    let step = match (count, types) {
        ("2", "f32_f16") => float(d, accumulates, f16_to_f32),
        ("2", "f32_bf16") => float(d, accumulates, bf16_to_f32),
        ("2", "i32_i16") => integer(d, accumulates, 16, [true; 2]),
        ("2", "u32_u16") => integer(d, accumulates, 16, [false; 2]),
        ("4", "i32_i8") => integer(d, accumulates, 8, [true; 2]),
        ("4", "u32_u8") => integer(d, accumulates, 8, [false; 2]),
        ("8", "i32_i4") => integer(d, accumulates, 4, [true; 2]),
        ("8", "u32_u4") => integer(d, accumulates, 4, [false; 2]),
        ("4", "i32_iu8") => integer(d, accumulates, 8, signs(d)),
        ("8", "i32_iu4") => integer(d, accumulates, 4, signs(d)),
        _ => return Ok(None),
    };
    step.map(Some)
}

/// Returns which operands are signed; for the `iu` forms `neg_lo` gives this.
pub(super) fn signs(d: &Decoder<'_>) -> [bool; 2] {
    let signed = d.text.bits("neg_lo").unwrap_or_default();
    [0, 1].map(|index| signed.get(index).copied().unwrap_or(false))
}

/// Refuses an `op_sel` that changes the plain order of elements.
fn check_selection(d: &Decoder<'_>) -> Decoded<()> {
    let plain = |name: &str, value: bool| d.text.bits(name).is_none_or(|bits| bits.iter().all(|bit| *bit == value));
    if plain("op_sel", false) && plain("op_sel_hi", true) { Ok(()) } else { Err("op_sel on a dot product".to_owned()) }
}

fn float(
    d: &Decoder<'_>,
    accumulates: bool,
    convert: impl Fn(u16) -> f32 + Copy + Send + Sync + 'static,
) -> Decoded<Step> {
    check_selection(d)?;
    // Rounded once, like the exact sum: the hardware's order of roundings is not documented.
    let f = move |a: u32, b: u32, c: f32| {
        let product = |shift: u32| {
            let half = |word: u32| f64::from(convert((word >> shift) as u16));
            half(a) * half(b)
        };
        (product(0) + product(16) + f64::from(c)) as f32
    };
    if accumulates { d.accumulate(f) } else { d.ternary(f) }
}

fn integer(d: &Decoder<'_>, accumulates: bool, bits: u32, signed: [bool; 2]) -> Decoded<Step> {
    check_selection(d)?;
    let f = move |a: u32, b: u32, c: i32| {
        let element = |word: u32, index: u32, signed: bool| {
            let top = word << (32 - bits - bits * index);
            if signed { top as i32 >> (32 - bits) } else { (top >> (32 - bits)) as i32 }
        };
        let product = |index| element(a, index, signed[0]).wrapping_mul(element(b, index, signed[1]));
        (0..32 / bits).fold(c, |sum, index| sum.wrapping_add(product(index)))
    };
    // The usual case, in a form that the compiler can vectorise.
    let bytes = |a: u32, b: u32, c: i32| {
        let byte = |word: u32, shift: u32| i32::from((word >> shift) as i8);
        let product = |shift| byte(a, shift) * byte(b, shift);
        c.wrapping_add(product(0) + product(8) + product(16) + product(24))
    };
    match (accumulates, bits == 8 && signed == [true; 2]) {
        (true, true) => d.accumulate(bytes),
        (false, true) => d.ternary(bytes),
        (true, false) => d.accumulate(f),
        (false, false) => d.ternary(f),
    }
}
