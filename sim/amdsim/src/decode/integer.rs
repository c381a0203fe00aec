//! Vector arithmetic on integers of 32 and 64 bits, and moves.

use super::{Decoded, Decoder, Step, step};
use crate::wave::Wave;

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    let step = match d.name.as_str() {
        "mov_b32" | "accvgpr_read_b32" | "accvgpr_write_b32" | "accvgpr_mov_b32" | "accvgpr_read" | "accvgpr_write" => {
            d.unary(|a: u32| a)
        }
        "mov_b64" => d.unary(|a: u64| a),
        "not_b32" => d.unary(|a: u32| !a),
        "bfrev_b32" => d.unary(u32::reverse_bits),
        // With `clamp`, integers saturate.
        "add_u32" if d.operand_count() == 3 && d.text.has("clamp") => d.binary(u32::saturating_add),
        "sub_u32" if d.operand_count() == 3 && d.text.has("clamp") => d.binary(u32::saturating_sub),
        "subrev_u32" if d.operand_count() == 3 && d.text.has("clamp") => d.binary(|a: u32, b: u32| b.saturating_sub(a)),
        "add_i32" if d.text.has("clamp") => d.binary(i32::saturating_add),
        "sub_i32" if d.text.has("clamp") => d.binary(i32::saturating_sub),
        "add_u32" | "add_i32" if d.operand_count() == 3 => d.binary(u32::wrapping_add),
        "sub_u32" | "sub_i32" if d.operand_count() == 3 => d.binary(u32::wrapping_sub),
        "subrev_u32" if d.operand_count() == 3 => d.binary(|a: u32, b: u32| b.wrapping_sub(a)),
        "and_b32" => d.binary(|a: u32, b: u32| a & b),
        "or_b32" => d.binary(|a: u32, b: u32| a | b),
        "xor_b32" => d.binary(|a: u32, b: u32| a ^ b),
        "xnor_b32" => d.binary(|a: u32, b: u32| !(a ^ b)),
        "lshlrev_b32" => d.binary(|a: u32, b: u32| b << (a & 31)),
        "lshrrev_b32" => d.binary(|a: u32, b: u32| b >> (a & 31)),
        "ashrrev_i32" => d.binary(|a: u32, b: i32| b >> (a & 31)),
        "lshlrev_b64" => d.binary(|a: u32, b: u64| b << (a & 63)),
        "lshrrev_b64" => d.binary(|a: u32, b: u64| b >> (a & 63)),
        "ashrrev_i64" => d.binary(|a: u32, b: i64| b >> (a & 63)),
        "add3_u32" => d.ternary(|a: u32, b: u32, c: u32| a.wrapping_add(b).wrapping_add(c)),
        "lshl_add_u32" => d.ternary(|a: u32, b: u32, c: u32| (a << (b & 31)).wrapping_add(c)),
        "add_lshl_u32" => d.ternary(|a: u32, b: u32, c: u32| a.wrapping_add(b) << (c & 31)),
        "lshl_or_b32" => d.ternary(|a: u32, b: u32, c: u32| a << (b & 31) | c),
        "and_or_b32" => d.ternary(|a: u32, b: u32, c: u32| a & b | c),
        "or3_b32" => d.ternary(|a: u32, b: u32, c: u32| a | b | c),
        "xor3_b32" => d.ternary(|a: u32, b: u32, c: u32| a ^ b ^ c),
        "xad_u32" => d.ternary(|a: u32, b: u32, c: u32| (a ^ b).wrapping_add(c)),
        "lshl_add_u64" => d.ternary(|a: u64, b: u32, c: u64| (a << (b & 63)).wrapping_add(c)),
        "bfi_b32" => d.ternary(|a: u32, b: u32, c: u32| a & b | !a & c),
        "bfe_u32" => d.ternary(|a: u32, b: u32, c: u32| a >> (b & 31) & ((1 << (c & 31)) - 1)),
        "bfe_i32" => d.ternary(bit_field_signed),
        "bfm_b32" => d.binary(|a: u32, b: u32| ((1 << (a & 31)) - 1) << (b & 31)),
        "bitop3_b32" | "bitop3_b16" => bitop3(d),
        "mul_lo_u32" | "mul_lo_i32" => d.binary(u32::wrapping_mul),
        "mul_hi_u32" => d.binary(|a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        "mul_hi_i32" => d.binary(|a: i32, b: i32| ((i64::from(a) * i64::from(b)) >> 32) as i32),
        "mul_u32_u24" => d.binary(|a: u32, b: u32| low24(a).wrapping_mul(low24(b))),
        "mul_hi_u32_u24" => d.binary(|a: u32, b: u32| ((u64::from(low24(a)) * u64::from(low24(b))) >> 32) as u32),
        "mul_i32_i24" => d.binary(|a: i32, b: i32| signed24(a).wrapping_mul(signed24(b))),
        "mul_hi_i32_i24" => d.binary(|a: i32, b: i32| ((i64::from(signed24(a)) * i64::from(signed24(b))) >> 32) as i32),
        "mad_u32_u24" => d.ternary(|a: u32, b: u32, c: u32| low24(a).wrapping_mul(low24(b)).wrapping_add(c)),
        "mad_i32_i24" => d.ternary(|a: i32, b: i32, c: i32| signed24(a).wrapping_mul(signed24(b)).wrapping_add(c)),
        "mad_u32_u16" => d.ternary(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c)),
        "mad_i32_i16" => d.ternary(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c)),
        "min_u32" => d.binary(|a: u32, b: u32| a.min(b)),
        "max_u32" => d.binary(|a: u32, b: u32| a.max(b)),
        "min_i32" => d.binary(|a: i32, b: i32| a.min(b)),
        "max_i32" => d.binary(|a: i32, b: i32| a.max(b)),
        "min3_u32" => d.ternary(|a: u32, b: u32, c: u32| a.min(b).min(c)),
        "max3_u32" => d.ternary(|a: u32, b: u32, c: u32| a.max(b).max(c)),
        "min3_i32" => d.ternary(|a: i32, b: i32, c: i32| a.min(b).min(c)),
        "max3_i32" => d.ternary(|a: i32, b: i32, c: i32| a.max(b).max(c)),
        "med3_u32" => d.ternary(|a: u32, b: u32, c: u32| a.min(b).max(a.max(b).min(c))),
        "med3_i32" => d.ternary(|a: i32, b: i32, c: i32| a.min(b).max(a.max(b).min(c))),
        "minmax_u32" => d.ternary(|a: u32, b: u32, c: u32| a.min(b).max(c)),
        "maxmin_u32" => d.ternary(|a: u32, b: u32, c: u32| a.max(b).min(c)),
        "minmax_i32" => d.ternary(|a: i32, b: i32, c: i32| a.min(b).max(c)),
        "maxmin_i32" => d.ternary(|a: i32, b: i32, c: i32| a.max(b).min(c)),
        "sad_u32" => d.ternary(|a: u32, b: u32, c: u32| a.abs_diff(b).wrapping_add(c)),
        "bcnt_u32_b32" => d.binary(|a: u32, b: u32| a.count_ones().wrapping_add(b)),
        "ffbh_u32" | "clz_i32_u32" => d.unary(|a: u32| if a == 0 { u32::MAX } else { a.leading_zeros() }),
        "ffbl_b32" | "ctz_i32_b32" => d.unary(|a: u32| if a == 0 { u32::MAX } else { a.trailing_zeros() }),
        "ffbh_i32" | "cls_i32" => d.unary(leading_sign_bits),
        "alignbyte_b32" => d.ternary(|a: u32, b: u32, c: u16| (joined(a, b) >> (8 * (c & 3))) as u32),
        "alignbit_b32" => d.ternary(|a: u32, b: u32, c: u16| (joined(a, b) >> (c & 31)) as u32),
        "perm_b32" => d.ternary(permute_bytes),
        "add_u64" => d.binary(u64::wrapping_add),
        "mul_u64" => d.binary(u64::wrapping_mul),
        "mad_u64_u32" | "mad_co_u64_u32" => mad64(d, |a: u32, b: u32, c: u64| {
            let (sum, carry) = (u64::from(a) * u64::from(b)).overflowing_add(c);
            (sum, carry)
        }),
        "mad_i64_i32" | "mad_co_i64_i32" => mad64(d, |a: u32, b: u32, c: u64| {
            let product = i128::from(i64::from(a as i32) * i64::from(b as i32));
            let sum = product + i128::from(c as i64);
            (sum as u64, i64::try_from(sum).is_err())
        }),
        "swap_b32" => swap(d),
        "nop" => Ok(step(|_| {})),
        _ => return Ok(None),
    };
    step.map(Some)
}

fn low24(value: u32) -> u32 {
    value & 0xff_ffff
}

fn signed24(value: i32) -> i32 {
    value << 8 >> 8
}

fn joined(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn bit_field_signed(value: i32, offset: u32, width: u32) -> i32 {
    let (offset, width) = (offset & 31, width & 31);
    if width == 0 {
        return 0;
    }
    let field = value >> offset;
    // A field that extends past bit 31 already has its sign bits.
    if offset + width >= 32 { field } else { field << (32 - width) >> (32 - width) }
}

/// Returns the number of leading bits equal to the sign, or -1 if all are.
fn leading_sign_bits(value: i32) -> i32 {
    let differing = value ^ (value >> 31);
    if differing == 0 { -1 } else { differing.leading_zeros() as i32 }
}

/// Selects each byte of the result from eight bytes, their signs, or a constant.
fn permute_bytes(high: u32, low: u32, selectors: u32) -> u32 {
    let bytes = joined(high, low);
    let byte = |selector: u32| match selector {
        0..=7 => (bytes >> (8 * selector)) as u32 & 255,
        // The sign of the second, fourth, sixth or eighth byte, in every bit.
        8..=11 => 255 * ((bytes >> (16 * (selector - 8) + 15)) as u32 & 1),
        12 => 0,
        _ => 255,
    };
    (0..4).fold(0, |result, at| result | byte(selectors >> (8 * at) & 255) << (8 * at))
}

fn bitop3(d: &Decoder<'_>) -> Decoded<Step> {
    let table = d.text.modifier("bitop3").and_then(crate::syntax::integer).ok_or("bitop3 without a table")?;
    let f = move |a: u32, b: u32, c: u32| {
        let term = |index: u32| {
            let chosen = 0u32.wrapping_sub((table >> index) as u32 & 1);
            let of = |value: u32, bit: u32| if index & bit != 0 { value } else { !value };
            chosen & of(a, 4) & of(b, 2) & of(c, 1)
        };
        (0..8).fold(0, |result, index| result | term(index))
    };
    match d.name.as_str() {
        "bitop3_b16" => d.ternary(move |a: u16, b: u16, c: u16| f(a.into(), b.into(), c.into()) as u16),
        _ => d.ternary(f),
    }
}

/// 32 times 32 plus 64 bits, with the carry in a lane mask.
fn mad64(d: &Decoder<'_>, f: impl Fn(u32, u32, u64) -> (u64, bool) + Send + Sync + 'static) -> Decoded<Step> {
    d.expect_sources(4)?;
    let (dest, carry) = (d.dest::<u64>(0)?, d.sgpr(1)?);
    let (a, b, c) = (d.source::<u32>(2)?, d.source::<u32>(3)?, d.source::<u64>(4)?);
    Ok(step(move |wave: &mut Wave| {
        let mut carries = 0;
        for group in 0..wave.groups() {
            let (x, y) = (a.group::<u32>(wave, group), b.group::<u32>(wave, group));
            let mut sums = c.group::<u64>(wave, group);
            for (lane, sum) in sums.iter_mut().enumerate() {
                let (value, overflow) = f(x[lane], y[lane], *sum);
                *sum = value;
                carries |= u64::from(overflow) << (32 * group + lane);
            }
            dest.put(wave, group, sums);
        }
        wave.set_mask(carry, carries & wave.exec);
    }))
}

fn swap(d: &Decoder<'_>) -> Decoded<Step> {
    let (a, b) = (d.vgpr(0)?, d.vgpr(1)?);
    Ok(step(move |wave: &mut Wave| {
        for group in 0..wave.groups() {
            let (x, y) = (wave.vgpr(a)[group], wave.vgpr(b)[group]);
            wave.set_group(a, group, &y);
            wave.set_group(b, group, &x);
        }
    }))
}
