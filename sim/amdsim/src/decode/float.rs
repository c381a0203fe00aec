//! Vector arithmetic on 32- and 64-bit floats.
//!
//! The approximations (`exp`, `log`, `rcp`, `rsq`, `sin`, `cos`) are correctly rounded here; the hardware's are within
//! about an ulp of that. Subnormals are kept.

use super::{Decoded, Decoder, Step, step};
use crate::operand::Source;

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    let step = match d.name.as_str() {
        "add_f32" => d.binary(|a: f32, b: f32| a + b),
        "sub_f32" => d.binary(|a: f32, b: f32| a - b),
        "subrev_f32" => d.binary(|a: f32, b: f32| b - a),
        "mul_f32" => d.binary(|a: f32, b: f32| a * b),
        "mul_legacy_f32" | "mul_dx9_zero_f32" => {
            d.binary(|a: f32, b: f32| if a == 0.0 || b == 0.0 { 0.0 } else { a * b })
        }
        "max_f32" => d.binary(f32::max),
        "min_f32" => d.binary(f32::min),
        "maximum_f32" => d.binary(maximum),
        "minimum_f32" => d.binary(minimum),
        "max3_f32" => d.ternary(|a: f32, b: f32, c: f32| a.max(b).max(c)),
        "min3_f32" => d.ternary(|a: f32, b: f32, c: f32| a.min(b).min(c)),
        "maxmin_f32" => d.ternary(|a: f32, b: f32, c: f32| a.max(b).min(c)),
        "minmax_f32" => d.ternary(|a: f32, b: f32, c: f32| a.min(b).max(c)),
        "med3_f32" => d.ternary(|a: f32, b: f32, c: f32| a.min(b).max(a.max(b).min(c))),
        "fma_f32" | "fmaak_f32" | "fmamk_f32" | "div_fmas_f32" => d.ternary(f32::mul_add),
        "fmac_f32" => d.accumulate(f32::mul_add),
        "mad_f32" | "madak_f32" | "madmk_f32" => d.ternary(|a: f32, b: f32, c: f32| a * b + c),
        "mac_f32" => d.accumulate(|a: f32, b: f32, c: f32| a * b + c),
        "exp_f32" => d.unary(exp2),
        "log_f32" => d.unary(log2),
        "rcp_f32" | "rcp_iflag_f32" => d.unary(f32::recip),
        "rsq_f32" => d.unary(rsqrt),
        // GFX12 has these on scalar registers too.
        "s_exp_f32" => scalar(d, exp2),
        "s_log_f32" => scalar(d, log2),
        "s_rcp_f32" => scalar(d, f32::recip),
        "s_rsq_f32" => scalar(d, rsqrt),
        "s_sqrt_f32" => scalar(d, f32::sqrt),
        "sqrt_f32" => d.unary(f32::sqrt),
        "sin_f32" => d.unary(|a: f32| (f64::from(a).fract() * std::f64::consts::TAU).sin() as f32),
        "cos_f32" => d.unary(|a: f32| (f64::from(a).fract() * std::f64::consts::TAU).cos() as f32),
        "rndne_f32" => d.unary(f32::round_ties_even),
        "floor_f32" => d.unary(f32::floor),
        "ceil_f32" => d.unary(f32::ceil),
        "trunc_f32" => d.unary(f32::trunc),
        "fract_f32" => d.unary(|a: f32| (a - a.floor()).min(1.0f32.next_down())),
        "ldexp_f32" => d.binary(|a: f32, b: i32| ldexp(f64::from(a), b.clamp(-400, 400)) as f32),
        "frexp_exp_i32_f32" => d.unary(|a: f32| frexp(f64::from(a)).1),
        "frexp_mant_f32" => d.unary(|a: f32| frexp(f64::from(a)).0 as f32),
        // The exact quotient, to which the surrounding sequence converges.
        "div_fixup_f32" => d.ternary(|_: f32, denominator: f32, numerator: f32| numerator / denominator),
        "div_scale_f32" => div_scale::<f32>(d),
        "add_f64" => d.binary(|a: f64, b: f64| a + b),
        "mul_f64" => d.binary(|a: f64, b: f64| a * b),
        "max_f64" => d.binary(f64::max),
        "min_f64" => d.binary(f64::min),
        "fma_f64" | "div_fmas_f64" => d.ternary(f64::mul_add),
        "fmac_f64" => d.accumulate(f64::mul_add),
        "rcp_f64" => d.unary(|a: f64| 1.0 / a),
        "rsq_f64" => d.unary(|a: f64| 1.0 / a.sqrt()),
        "sqrt_f64" => d.unary(f64::sqrt),
        "rndne_f64" => d.unary(f64::round_ties_even),
        "floor_f64" => d.unary(f64::floor),
        "ceil_f64" => d.unary(f64::ceil),
        "trunc_f64" => d.unary(f64::trunc),
        "fract_f64" => d.unary(|a: f64| (a - a.floor()).min(1.0f64.next_down())),
        "ldexp_f64" => d.binary(ldexp),
        "frexp_exp_i32_f64" => d.unary(|a: f64| frexp(a).1),
        "frexp_mant_f64" => d.unary(|a: f64| frexp(a).0),
        "div_fixup_f64" => d.ternary(|_: f64, denominator: f64, numerator: f64| numerator / denominator),
        "div_scale_f64" => div_scale::<f64>(d),
        _ => return Ok(None),
    };
    step.map(Some)
}

fn exp2(a: f32) -> f32 {
    f64::from(a).exp2() as f32
}

fn log2(a: f32) -> f32 {
    f64::from(a).log2() as f32
}

fn rsqrt(a: f32) -> f32 {
    (1.0 / f64::from(a).sqrt()) as f32
}

fn scalar(d: &Decoder<'_>, f: fn(f32) -> f32) -> Decoded<Step> {
    d.expect_sources(1)?;
    let (dest, a) = (d.sgpr(0)?, d.source::<f32>(1)?);
    Ok(step(move |wave| wave.set_sgpr(dest, f(a.scalar(wave)).to_bits())))
}

/// IEEE 754-2019 maximum: NaN wins, and +0 is above -0.
fn maximum(a: f32, b: f32) -> f32 {
    match a == b {
        _ if a.is_nan() || b.is_nan() => f32::NAN,
        true if a.is_sign_negative() => b,
        true => a,
        false => a.max(b),
    }
}

fn minimum(a: f32, b: f32) -> f32 {
    -maximum(-a, -b)
}

/// Returns `value` times 2^`exponent`, rounded once unless the result is subnormal.
fn ldexp(value: f64, exponent: i32) -> f64 {
    let exponent = exponent.clamp(-2200, 2200);
    let step = exponent / 3;
    value * 2f64.powi(step) * 2f64.powi(step) * 2f64.powi(exponent - 2 * step)
}

/// Returns the mantissa in [0.5, 1) and the exponent; (x, 0) for zero, infinity and NaN.
fn frexp(value: f64) -> (f64, i32) {
    if value == 0.0 || !value.is_finite() {
        return (value, 0);
    }
    // Subnormals are normalised first.
    let (value, offset) = if value.abs() < f64::MIN_POSITIVE { (value * 2f64.powi(64), -64) } else { (value, 0) };
    let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1022;
    let mantissa = f64::from_bits(value.to_bits() & !(0x7ff << 52) | 1022 << 52);
    (mantissa, exponent + offset)
}

/// Scaling matters only if the quotient's steps would overflow, and `div_fixup` gives the exact quotient anyway.
fn div_scale<T: crate::lane::Lane>(d: &Decoder<'_>) -> Decoded<Step> {
    d.expect_sources(4)?;
    let (dest, flags) = (d.dest::<T>(0)?, d.sgpr(1)?);
    let value = Source::parse::<T>(d.operand(2)?)?;
    Ok(step(move |wave| {
        for group in 0..wave.groups() {
            let values = value.group::<T>(wave, group);
            dest.put(wave, group, values);
        }
        wave.set_mask(flags, 0);
    }))
}
