//! Scalar arithmetic.
// With a NaN, "not less" is true and "less or greater" is false, as the instructions are defined.
#![allow(clippy::neg_cmp_op_on_partial_ord, clippy::double_comparisons)]

use crate::decode::{Decoded, Decoder, Step, step};
use crate::lane::Lane;
use crate::operand::Source;
use crate::syntax::integer;
use crate::wave::{Wave, sgpr};

/// A result, and SCC if the instruction sets it.
type Result32 = (u32, Option<bool>);
type Result64 = (u64, Option<bool>);

pub(in crate::decode) fn decode(d: &Decoder<'_>, name: &str) -> Decoded<Option<Step>> {
    // Maps the spellings of GFX12 and GFX10 to the common ones.
    let name = name.replace("_co_ci_", "c_").replace("_co_", "_").replace("_nc_", "_");
    let name = name.replace("and_not1", "andn2").replace("or_not1", "orn2").replace("_num_", "_");
    let name = name.as_str();
    for class in [binary32, binary64, unary, constants, float] {
        if let Some(step) = class(d, name)? {
            return Ok(Some(step));
        }
    }
    if let Some(rest) = name.strip_prefix("cmp_").or_else(|| name.strip_prefix("cmpk_")) {
        return compare(d, rest, name.starts_with("cmpk_")).map(Some);
    }
    if let Some((operation, size)) = name.split_once("_saveexec_") {
        return save_exec(d, operation, size == "b64").map(Some);
    }
    Ok(None)
}

/// Sets SCC if the result is not zero.
fn flagged32(value: u32) -> Result32 {
    (value, Some(value != 0))
}

fn flagged64(value: u64) -> Result64 {
    (value, Some(value != 0))
}

fn carried((value, carry): (u32, bool)) -> Result32 {
    (value, Some(carry))
}

fn overflowed((value, overflow): (i32, bool)) -> Result32 {
    (value as u32, Some(overflow))
}

fn binary32(d: &Decoder<'_>, name: &str) -> Decoded<Option<Step>> {
    let f: fn(u32, u32, bool) -> Result32 = match name {
        "add_u32" => |a, b, _| carried(a.overflowing_add(b)),
        "sub_u32" => |a, b, _| carried(a.overflowing_sub(b)),
        "add_i32" => |a, b, _| overflowed((a as i32).overflowing_add(b as i32)),
        "sub_i32" => |a, b, _| overflowed((a as i32).overflowing_sub(b as i32)),
        "addc_u32" => |a, b, scc| carried(a.carrying_add(b, scc)),
        "subb_u32" | "subc_u32" => |a, b, scc| carried(a.borrowing_sub(b, scc)),
        "and_b32" => |a, b, _| flagged32(a & b),
        "or_b32" => |a, b, _| flagged32(a | b),
        "xor_b32" => |a, b, _| flagged32(a ^ b),
        "andn2_b32" => |a, b, _| flagged32(a & !b),
        "orn2_b32" => |a, b, _| flagged32(a | !b),
        "nand_b32" => |a, b, _| flagged32(!(a & b)),
        "nor_b32" => |a, b, _| flagged32(!(a | b)),
        "xnor_b32" => |a, b, _| flagged32(!(a ^ b)),
        "lshl_b32" => |a, b, _| flagged32(a << (b & 31)),
        "lshr_b32" => |a, b, _| flagged32(a >> (b & 31)),
        "ashr_i32" => |a, b, _| flagged32((a as i32 >> (b & 31)) as u32),
        "mul_i32" => |a, b, _| (a.wrapping_mul(b), None),
        "mul_hi_u32" => |a, b, _| (((u64::from(a) * u64::from(b)) >> 32) as u32, None),
        "mul_hi_i32" => |a, b, _| (((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32, None),
        "bfm_b32" => |a, b, _| (((1 << (a & 31)) - 1) << (b & 31), None),
        "bfe_u32" => |a, b, _| flagged32(field(a.into(), b & 31, b >> 16 & 127) as u32),
        "bfe_i32" => |a, b, _| {
            let width = (b >> 16 & 127).min(32 - (b & 31));
            let field = field(a.into(), b & 31, width) as u32;
            let unused = 32 - width;
            flagged32(if width == 0 { 0 } else { ((field << unused) as i32 >> unused) as u32 })
        },
        "min_u32" => |a, b, _| (a.min(b), Some(a < b)),
        "max_u32" => |a, b, _| (a.max(b), Some(a > b)),
        "min_i32" => |a, b, _| ((a as i32).min(b as i32) as u32, Some((a as i32) < b as i32)),
        "max_i32" => |a, b, _| ((a as i32).max(b as i32) as u32, Some(a as i32 > b as i32)),
        "cselect_b32" => |a, b, scc| (if scc { a } else { b }, None),
        "absdiff_i32" => |a, b, _| flagged32((a as i32).wrapping_sub(b as i32).unsigned_abs()),
        "pack_ll_b32_b16" => |a, b, _| (a & 0xffff | b << 16, None),
        "pack_lh_b32_b16" => |a, b, _| (a & 0xffff | b & 0xffff_0000, None),
        "pack_hh_b32_b16" => |a, b, _| (a >> 16 | b & 0xffff_0000, None),
        "pack_hl_b32_b16" => |a, b, _| (a >> 16 | b << 16, None),
        "lshl1_add_u32" => |a, b, _| shift_add(a, 1, b),
        "lshl2_add_u32" => |a, b, _| shift_add(a, 2, b),
        "lshl3_add_u32" => |a, b, _| shift_add(a, 3, b),
        "lshl4_add_u32" => |a, b, _| shift_add(a, 4, b),
        _ => return Ok(None),
    };
    d.expect_sources(2)?;
    let (dest, a, b) = (d.sgpr(0)?, d.source::<u32>(1)?, d.source::<u32>(2)?);
    Ok(Some(step(move |wave| {
        let (value, scc) = f(a.scalar(wave), b.scalar(wave), wave.scc);
        wave.set_sgpr(dest, value);
        wave.scc = scc.unwrap_or(wave.scc);
    })))
}

fn shift_add(a: u32, shift: u32, b: u32) -> Result32 {
    let sum = (u64::from(a) << shift) + u64::from(b);
    (sum as u32, Some(sum >> 32 != 0))
}

fn field(value: u64, offset: u32, width: u32) -> u64 {
    let mask = if width >= 64 { u64::MAX } else { (1 << width) - 1 };
    value >> offset & mask
}

fn binary64(d: &Decoder<'_>, name: &str) -> Decoded<Option<Step>> {
    let f: fn(u64, u64, bool) -> Result64 = match name {
        "add_u64" => |a, b, _| (a.wrapping_add(b), None),
        "sub_u64" => |a, b, _| (a.wrapping_sub(b), None),
        "mul_u64" => |a, b, _| (a.wrapping_mul(b), None),
        "and_b64" => |a, b, _| flagged64(a & b),
        "or_b64" => |a, b, _| flagged64(a | b),
        "xor_b64" => |a, b, _| flagged64(a ^ b),
        "andn2_b64" => |a, b, _| flagged64(a & !b),
        "orn2_b64" => |a, b, _| flagged64(a | !b),
        "nand_b64" => |a, b, _| flagged64(!(a & b)),
        "nor_b64" => |a, b, _| flagged64(!(a | b)),
        "xnor_b64" => |a, b, _| flagged64(!(a ^ b)),
        "cselect_b64" => |a, b, scc| (if scc { a } else { b }, None),
        // Their second operand has 32 bits.
        "lshl_b64" => |a, b, _| flagged64(a << (b & 63)),
        "lshr_b64" => |a, b, _| flagged64(a >> (b & 63)),
        "ashr_i64" => |a, b, _| flagged64((a as i64 >> (b & 63)) as u64),
        "bfe_u64" => |a, b, _| flagged64(field(a, b as u32 & 63, b as u32 >> 16 & 127)),
        "bfm_b64" => |a, b, _| (((1 << (a & 63)) - 1) << (b & 63), None),
        _ => return Ok(None),
    };
    d.expect_sources(2)?;
    let narrow = |shift: bool| if shift { d.source::<u32>(2) } else { d.source::<u64>(2) };
    let is_narrow = matches!(name, "lshl_b64" | "lshr_b64" | "ashr_i64" | "bfe_u64" | "bfm_b64");
    let first_narrow = name == "bfm_b64";
    let (dest, b) = (d.sgpr(0)?, narrow(is_narrow)?);
    let a = if first_narrow { d.source::<u32>(1)? } else { d.source::<u64>(1)? };
    let read = |source: Source, narrow: bool| {
        move |wave: &Wave| if narrow { source.scalar::<u32>(wave).into() } else { source.scalar::<u64>(wave) }
    };
    let (a, b) = (read(a, first_narrow), read(b, is_narrow));
    Ok(Some(step(move |wave| {
        let (value, scc) = f(a(wave), b(wave), wave.scc);
        wave.set_sgpr64(dest, value);
        wave.scc = scc.unwrap_or(wave.scc);
    })))
}

fn unary(d: &Decoder<'_>, name: &str) -> Decoded<Option<Step>> {
    /// Returns a position, or all bits set if no bit was found.
    fn found(position: u32, size: u32) -> u32 {
        if position == size { u32::MAX } else { position }
    }
    let step = match name {
        "mov_b32" => one::<u32, u32>(d, |a| (a, None)),
        "mov_b64" => one::<u64, u64>(d, |a| (a, None)),
        "not_b32" => one::<u32, u32>(d, |a| flagged32(!a)),
        "not_b64" => one::<u64, u64>(d, |a| flagged64(!a)),
        "abs_i32" => one::<u32, u32>(d, |a| flagged32((a as i32).unsigned_abs())),
        "brev_b32" => one::<u32, u32>(d, |a| (a.reverse_bits(), None)),
        "brev_b64" => one::<u64, u64>(d, |a| (a.reverse_bits(), None)),
        "ff1_i32_b32" | "ctz_i32_b32" => one::<u32, u32>(d, |a| (found(a.trailing_zeros(), 32), None)),
        "ff1_i32_b64" | "ctz_i32_b64" => one::<u64, u32>(d, |a| (found(a.trailing_zeros(), 64), None)),
        "flbit_i32_b32" | "clz_i32_u32" => one::<u32, u32>(d, |a| (found(a.leading_zeros(), 32), None)),
        "flbit_i32_b64" | "clz_i32_u64" => one::<u64, u32>(d, |a| (found(a.leading_zeros(), 64), None)),
        "bcnt1_i32_b32" => one::<u32, u32>(d, |a| flagged32(a.count_ones())),
        "bcnt1_i32_b64" => one::<u64, u32>(d, |a| flagged32(a.count_ones())),
        "sext_i32_i8" => one::<u32, u32>(d, |a| (a as i8 as u32, None)),
        "sext_i32_i16" => one::<u32, u32>(d, |a| (a as i16 as u32, None)),
        "bitcmp0_b32" => return bit_test(d, false).map(Some),
        "bitcmp1_b32" => return bit_test(d, true).map(Some),
        "bitset0_b32" => return bit_set(d, false).map(Some),
        "bitset1_b32" => return bit_set(d, true).map(Some),
        "cmov_b32" => return conditional_move(d).map(Some),
        _ => return Ok(None),
    };
    step.map(Some)
}

fn one<A: Lane, R: Lane>(d: &Decoder<'_>, f: fn(A) -> (R, Option<bool>)) -> Decoded<Step> {
    d.expect_sources(1)?;
    let (dest, a) = (d.sgpr(0)?, d.source::<A>(1)?);
    Ok(step(move |wave| {
        let (value, scc) = f(a.scalar(wave));
        match R::BITS {
            64 => wave.set_sgpr64(dest, value.bits()),
            _ => wave.set_sgpr(dest, value.bits() as u32),
        }
        wave.scc = scc.unwrap_or(wave.scc);
    }))
}

fn bit_test(d: &Decoder<'_>, wanted: bool) -> Decoded<Step> {
    let (a, b) = (d.source::<u32>(0)?, d.source::<u32>(1)?);
    Ok(step(move |wave| wave.scc = (a.scalar::<u32>(wave) >> (b.scalar::<u32>(wave) & 31) & 1 != 0) == wanted))
}

fn bit_set(d: &Decoder<'_>, value: bool) -> Decoded<Step> {
    let (dest, bit) = (d.sgpr(0)?, d.source::<u32>(1)?);
    Ok(step(move |wave| {
        let mask = 1 << (bit.scalar::<u32>(wave) & 31);
        let old = wave.sgpr(dest);
        wave.set_sgpr(dest, if value { old | mask } else { old & !mask });
    }))
}

fn conditional_move(d: &Decoder<'_>) -> Decoded<Step> {
    let (dest, a) = (d.sgpr(0)?, d.source::<u32>(1)?);
    Ok(step(move |wave| {
        if wave.scc {
            let value = a.scalar(wave);
            wave.set_sgpr(dest, value);
        }
    }))
}

/// Instructions with a 16-bit constant.
fn constants(d: &Decoder<'_>, name: &str) -> Decoded<Option<Step>> {
    if !matches!(name, "movk_i32" | "cmovk_i32" | "addk_i32" | "mulk_i32") {
        return Ok(None);
    }
    let dest = d.sgpr(0)?;
    let value = i32::from(integer(d.operand(1)?).ok_or("no constant")? as i16);
    let kind = name.to_owned();
    Ok(Some(match kind.as_str() {
        "movk_i32" => step(move |wave| wave.set_sgpr(dest, value as u32)),
        "cmovk_i32" => step(move |wave| {
            if wave.scc {
                wave.set_sgpr(dest, value as u32);
            }
        }),
        "addk_i32" => step(move |wave| {
            let (sum, overflow) = (wave.sgpr(dest) as i32).overflowing_add(value);
            wave.set_sgpr(dest, sum as u32);
            wave.scc = overflow;
        }),
        _ => step(move |wave| wave.set_sgpr(dest, wave.sgpr(dest).wrapping_mul(value as u32))),
    }))
}

/// The scalar floats of GFX11.5 and GFX12.
fn float(d: &Decoder<'_>, name: &str) -> Decoded<Option<Step>> {
    let two = |f: fn(f32, f32) -> f32| -> Decoded<Step> {
        d.expect_sources(2)?;
        let (dest, a, b) = (d.sgpr(0)?, d.source::<f32>(1)?, d.source::<f32>(2)?);
        Ok(step(move |wave| {
            let value = f(a.scalar(wave), b.scalar(wave));
            wave.set_sgpr(dest, value.to_bits());
        }))
    };
    let step = match name {
        "add_f32" => two(|a, b| a + b),
        "sub_f32" => two(|a, b| a - b),
        "mul_f32" => two(|a, b| a * b),
        "max_f32" => two(f32::max),
        "min_f32" => two(f32::min),
        "fmac_f32" => fmac(d),
        "fmaak_f32" | "fmamk_f32" => fma(d),
        "floor_f32" => one::<f32, f32>(d, |a| (a.floor(), None)),
        "ceil_f32" => one::<f32, f32>(d, |a| (a.ceil(), None)),
        "trunc_f32" => one::<f32, f32>(d, |a| (a.trunc(), None)),
        "rndne_f32" => one::<f32, f32>(d, |a| (a.round_ties_even(), None)),
        "cvt_f32_u32" => one::<u32, f32>(d, |a| (a as f32, None)),
        "cvt_f32_i32" => one::<i32, f32>(d, |a| (a as f32, None)),
        "cvt_u32_f32" => one::<f32, u32>(d, |a| (a as u32, None)),
        "cvt_i32_f32" => one::<f32, i32>(d, |a| (a as i32, None)),
        "cvt_f32_f16" => one::<u32, f32>(d, |a| (crate::float::f16_to_f32(a as u16), None)),
        "cvt_f16_f32" => one::<f32, u32>(d, |a| (crate::float::f32_to_f16(a).into(), None)),
        _ => return Ok(None),
    };
    step.map(Some)
}

fn fmac(d: &Decoder<'_>) -> Decoded<Step> {
    let (dest, a, b) = (d.sgpr(0)?, d.source::<f32>(1)?, d.source::<f32>(2)?);
    Ok(step(move |wave| {
        let sum = a.scalar::<f32>(wave).mul_add(b.scalar(wave), f32::from_bits(wave.sgpr(dest)));
        wave.set_sgpr(dest, sum.to_bits());
    }))
}

fn fma(d: &Decoder<'_>) -> Decoded<Step> {
    let (dest, a, b, c) = (d.sgpr(0)?, d.source::<f32>(1)?, d.source::<f32>(2)?, d.source::<f32>(3)?);
    Ok(step(move |wave| {
        let sum = a.scalar::<f32>(wave).mul_add(b.scalar(wave), c.scalar(wave));
        wave.set_sgpr(dest, sum.to_bits());
    }))
}

fn compare(d: &Decoder<'_>, rest: &str, constant: bool) -> Decoded<Step> {
    let (relation, of) = rest.split_once('_').ok_or("unknown comparison")?;
    if constant {
        let a = d.source::<u32>(0)?;
        let value = integer(d.operand(1)?).ok_or("no constant")?;
        // Sign-extended for signed comparisons, zero-extended for the others.
        let b = if of.starts_with('i') { i64::from(value as i16) } else { i64::from(value as u16) };
        return match of {
            "u32" => {
                relate(relation, a, Source::new(crate::operand::Place::Bits(b as u64)), |a: u32, b: u32| a.cmp(&b))
            }
            "i32" => {
                relate(relation, a, Source::new(crate::operand::Place::Bits(b as u64)), |a: i32, b: i32| a.cmp(&b))
            }
            _ => Err(format!("comparison of {of}")),
        };
    }
    match of {
        "u32" => relate(relation, d.source::<u32>(0)?, d.source::<u32>(1)?, |a: u32, b: u32| a.cmp(&b)),
        "i32" => relate(relation, d.source::<i32>(0)?, d.source::<i32>(1)?, |a: i32, b: i32| a.cmp(&b)),
        "u64" => relate(relation, d.source::<u64>(0)?, d.source::<u64>(1)?, |a: u64, b: u64| a.cmp(&b)),
        "f32" => float_compare(relation, d.source::<f32>(0)?, d.source::<f32>(1)?),
        _ => Err(format!("comparison of {of}")),
    }
}

fn relate<T: Lane>(relation: &str, a: Source, b: Source, order: fn(T, T) -> std::cmp::Ordering) -> Decoded<Step> {
    let holds: fn(std::cmp::Ordering) -> bool = match relation {
        "eq" => std::cmp::Ordering::is_eq,
        "lg" | "ne" => std::cmp::Ordering::is_ne,
        "lt" => std::cmp::Ordering::is_lt,
        "le" => std::cmp::Ordering::is_le,
        "gt" => std::cmp::Ordering::is_gt,
        "ge" => std::cmp::Ordering::is_ge,
        _ => return Err(format!("comparison {relation}")),
    };
    Ok(step(move |wave| wave.scc = holds(order(a.scalar(wave), b.scalar(wave)))))
}

fn float_compare(relation: &str, a: Source, b: Source) -> Decoded<Step> {
    let holds: fn(f32, f32) -> bool = match relation {
        "eq" => |a, b| a == b,
        "neq" => |a, b| a != b,
        "lg" => |a, b| a < b || a > b,
        "lt" => |a, b| a < b,
        "le" => |a, b| a <= b,
        "gt" => |a, b| a > b,
        "ge" => |a, b| a >= b,
        "nlt" => |a, b| !(a < b),
        "nle" => |a, b| !(a <= b),
        "ngt" => |a, b| !(a > b),
        "nge" => |a, b| !(a >= b),
        "o" => |a, b| !a.is_nan() && !b.is_nan(),
        "u" => |a, b| a.is_nan() || b.is_nan(),
        _ => return Err(format!("comparison {relation}")),
    };
    Ok(step(move |wave| wave.scc = holds(a.scalar(wave), b.scalar(wave))))
}

/// Saves EXEC and combines it with a mask, as divergent branches begin.
fn save_exec(d: &Decoder<'_>, operation: &str, wide: bool) -> Decoded<Step> {
    let f: fn(u64, u64) -> u64 = match operation {
        "and" => |mask, exec| mask & exec,
        "or" => |mask, exec| mask | exec,
        "xor" => |mask, exec| mask ^ exec,
        "andn2" => |mask, exec| mask & !exec,
        "orn2" => |mask, exec| mask | !exec,
        "andn1" | "and_not0" => |mask, exec| !mask & exec,
        "nand" => |mask, exec| !(mask & exec),
        "nor" => |mask, exec| !(mask | exec),
        "xnor" => |mask, exec| !(mask ^ exec),
        _ => return Err(format!("{operation}_saveexec")),
    };
    let dest = d.sgpr(0)?;
    let mask = if wide { d.source::<u64>(1)? } else { d.source::<u32>(1)? };
    if wide != (d.target.lanes == 64) {
        return Err("a mask of another wave size".to_owned());
    }
    Ok(step(move |wave| {
        let exec = wave.exec;
        let mask = if wide { mask.scalar::<u64>(wave) } else { mask.scalar::<u32>(wave).into() };
        let result = f(mask, exec) & wave.all_lanes();
        wave.set_mask(dest, exec);
        wave.set_mask(sgpr::EXEC, result);
        wave.scc = result != 0;
    }))
}
