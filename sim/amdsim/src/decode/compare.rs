//! Comparisons, which give a lane mask, and selections by a mask.
// With a NaN, "not less" is true and "less or greater" is false, as the instructions are defined.
#![allow(clippy::neg_cmp_op_on_partial_ord, clippy::double_comparisons)]

use super::{Decoded, Decoder, Step, step};
use crate::lane::{Half, Kind, Lane};
use crate::operand::Source;
use crate::syntax::Register;
use crate::wave::{GROUP, Wave, sgpr};

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    if d.name == "cndmask_b32" {
        return select(d).map(Some);
    }
    if d.name == "cndmask_b16" {
        return select_as::<u16>(d).map(Some);
    }
    let (writes_exec, rest) = match (d.name.strip_prefix("cmp_"), d.name.strip_prefix("cmpx_")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return Ok(None),
    };
    let Some((relation, of)) = rest.rsplit_once('_') else { return Ok(None) };
    let outputs = Outputs::decode(d, writes_exec)?;
    let step = match (relation, of) {
        ("class", "f16") => class::<Half>(d, outputs, |a| (f64::from(a.f32()), 2f64.powi(-14), a.0 & 0x200 != 0)),
        ("class", "f32") => {
            class::<f32>(d, outputs, |a| (a.into(), f32::MIN_POSITIVE.into(), a.to_bits() & 0x40_0000 != 0))
        }
        ("class", "f64") => class::<f64>(d, outputs, |a| (a, f64::MIN_POSITIVE, a.to_bits() & 0x8_0000_0000_0000 != 0)),
        (_, "u16") => relate::<u16, u16>(d, relation, outputs, |a| a),
        (_, "i16") => relate::<i16, i16>(d, relation, outputs, |a| a),
        (_, "f16") => relate::<Half, f32>(d, relation, outputs, Half::f32),
        (_, "u32") => relate::<u32, u32>(d, relation, outputs, |a| a),
        (_, "i32") => relate::<i32, i32>(d, relation, outputs, |a| a),
        (_, "f32") => relate::<f32, f32>(d, relation, outputs, |a| a),
        (_, "u64") => relate::<u64, u64>(d, relation, outputs, |a| a),
        (_, "i64") => relate::<i64, i64>(d, relation, outputs, |a| a),
        (_, "f64") => relate::<f64, f64>(d, relation, outputs, |a| a),
        _ => return Ok(None),
    };
    step.map(Some)
}

/// The destination of the mask, and the index of the first source operand.
#[derive(Clone, Copy)]
struct Outputs {
    mask: Option<u16>,
    exec: bool,
    first_source: usize,
}

impl Outputs {
    /// `v_cmpx` writes EXEC; up to GFX9 it also writes a register.
    fn decode(d: &Decoder<'_>, exec: bool) -> Decoded<Self> {
        if exec && d.target.generation >= 10 {
            // The e64 form may print the destination, which is EXEC.
            let first_source = d.operand_count().saturating_sub(2);
            return Ok(Self { mask: None, exec, first_source });
        }
        Ok(Self { mask: Some(d.sgpr(0)?), exec, first_source: 1 })
    }

    fn write(self, wave: &mut Wave, lanes: u64) {
        let lanes = lanes & wave.exec;
        if let Some(register) = self.mask {
            wave.set_mask(register, lanes);
        }
        if self.exec {
            wave.set_mask(sgpr::EXEC, lanes);
        }
    }
}

fn source<T: Lane>(d: &Decoder<'_>, outputs: Outputs, index: usize) -> Decoded<Source> {
    let mut source = Source::parse::<T>(d.operand(outputs.first_source + index)?)?;
    if T::BITS == 16 {
        let select = d.text.bits("op_sel");
        source.high |= select.is_some_and(|select| select.get(index) == Some(&true));
    }
    Ok(source)
}

fn relate<T: Lane, V: PartialOrd + Copy + 'static>(
    d: &Decoder<'_>,
    relation: &str,
    outputs: Outputs,
    value: impl Fn(T) -> V + Copy + Send + Sync + 'static,
) -> Decoded<Step> {
    let is_float = T::KIND == Kind::Float;
    match (relation, is_float) {
        ("lt", _) => compare(d, outputs, move |a: T, b: T| value(a) < value(b)),
        ("le", _) => compare(d, outputs, move |a: T, b: T| value(a) <= value(b)),
        ("gt", _) => compare(d, outputs, move |a: T, b: T| value(a) > value(b)),
        ("ge", _) => compare(d, outputs, move |a: T, b: T| value(a) >= value(b)),
        ("eq", _) => compare(d, outputs, move |a: T, b: T| value(a) == value(b)),
        ("ne", false) | ("neq", true) => compare(d, outputs, move |a: T, b: T| value(a) != value(b)),
        // Ordered and unequal: false if either is a NaN.
        ("lg", true) => compare(d, outputs, move |a: T, b: T| value(a) < value(b) || value(a) > value(b)),
        ("nlg", true) => compare(d, outputs, move |a: T, b: T| !(value(a) < value(b) || value(a) > value(b))),
        ("nlt", true) => compare(d, outputs, move |a: T, b: T| !(value(a) < value(b))),
        ("nle", true) => compare(d, outputs, move |a: T, b: T| !(value(a) <= value(b))),
        ("ngt", true) => compare(d, outputs, move |a: T, b: T| !(value(a) > value(b))),
        ("nge", true) => compare(d, outputs, move |a: T, b: T| !(value(a) >= value(b))),
        ("o", true) => compare(d, outputs, move |a: T, b: T| value(a).partial_cmp(&value(b)).is_some()),
        ("u", true) => compare(d, outputs, move |a: T, b: T| value(a).partial_cmp(&value(b)).is_none()),
        ("f", _) => compare(d, outputs, |_: T, _: T| false),
        ("t" | "tru", _) => compare(d, outputs, |_: T, _: T| true),
        _ => Err(format!("comparison {relation}")),
    }
}

fn compare<T: Lane>(
    d: &Decoder<'_>,
    outputs: Outputs,
    f: impl Fn(T, T) -> bool + Copy + Send + Sync + 'static,
) -> Decoded<Step> {
    let (a, b) = (source::<T>(d, outputs, 0)?, source::<T>(d, outputs, 1)?);
    Ok(step(move |wave| {
        let mut lanes = 0;
        for group in 0..wave.groups() {
            let bits =
                super::map::map2(&a.group::<T>(wave, group), &b.group::<T>(wave, group), |a, b| u32::from(f(a, b)));
            lanes |= pack(&bits) << (GROUP * group);
        }
        outputs.write(wave, lanes);
    }))
}

/// Packs one bit per lane.
pub(super) fn pack(bits: &[u32; GROUP]) -> u64 {
    bits.iter().enumerate().fold(0, |mask, (lane, bit)| mask | u64::from(*bit) << lane)
}

/// Decodes `v_cmp_class`: the bits of the second source select classes. `parts` gives the value, the smallest normal
/// number, and true for a quiet NaN.
fn class<T: Lane>(d: &Decoder<'_>, outputs: Outputs, parts: fn(T) -> (f64, f64, bool)) -> Decoded<Step> {
    let (value, classes) = (source::<T>(d, outputs, 0)?, source::<u32>(d, outputs, 1)?);
    Ok(step(move |wave| {
        let mut lanes = 0;
        for group in 0..wave.groups() {
            let (values, wanted) = (value.group::<T>(wave, group), classes.group::<u32>(wave, group));
            for lane in 0..GROUP {
                let (number, smallest, quiet) = parts(values[lane]);
                let magnitude = match number.abs() {
                    0.0 => 2,
                    size if size < smallest => 1,
                    size if size.is_infinite() => 3,
                    _ => 0,
                };
                // signalling NaN, quiet NaN, -inf, -normal, -subnormal, -0, +0, +subnormal, +normal, +inf
                let class = match (number.is_nan(), number.is_sign_negative()) {
                    (true, _) => usize::from(quiet),
                    (false, true) => [3, 4, 5, 2][magnitude],
                    (false, false) => [8, 7, 6, 9][magnitude],
                };
                lanes |= u64::from(wanted[lane] >> class & 1) << (GROUP * group + lane);
            }
        }
        outputs.write(wave, lanes);
    }))
}

/// Modifiers of a selected value are those of a float.
fn select(d: &Decoder<'_>) -> Decoded<Step> {
    let has_modifier = |index: usize| {
        d.operand(index).is_ok_and(|text| {
            let inner = text.trim_start_matches('-');
            inner.starts_with('|') || inner.len() < text.len() && Register::parse(inner).is_some()
        })
    };
    if has_modifier(1) || has_modifier(2) { select_as::<f32>(d) } else { select_as::<u32>(d) }
}

fn select_as<T: Lane>(d: &Decoder<'_>) -> Decoded<Step> {
    let mask = match d.operand_count() {
        3 => sgpr::VCC,
        4 => d.sgpr(3)?,
        count => return Err(format!("{count} operands")),
    };
    let (dest, zero, one) = (d.dest::<T>(0)?, d.source::<T>(1)?, d.source::<T>(2)?);
    Ok(step(move |wave| {
        let chosen = wave.mask(mask);
        for group in 0..wave.groups() {
            let mut values = zero.group::<T>(wave, group);
            let ones = one.group::<T>(wave, group);
            let bits = (chosen >> (GROUP * group)) as u32;
            for lane in 0..GROUP {
                values[lane] = if bits >> lane & 1 != 0 { ones[lane] } else { values[lane] };
            }
            dest.put(wave, group, values);
        }
    }))
}
