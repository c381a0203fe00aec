//! Vector arithmetic on 16-bit integers and floats, and floats of mixed sizes.

use super::map::ternary;
use super::{Decoded, Decoder, Step};
use crate::float::f64_to_f16;
use crate::lane::{Half, Lane};
use crate::operand::{HalfWrite, Source};

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    let step = match d.name.as_str() {
        "mov_b16" => d.unary(|a: u16| a),
        "not_b16" => d.unary(|a: u16| !a),
        "and_b16" => d.binary(|a: u16, b: u16| a & b),
        "or_b16" => d.binary(|a: u16, b: u16| a | b),
        "xor_b16" => d.binary(|a: u16, b: u16| a ^ b),
        "add_u16" if d.text.has("clamp") => d.binary(u16::saturating_add),
        "sub_u16" if d.text.has("clamp") => d.binary(u16::saturating_sub),
        "subrev_u16" if d.text.has("clamp") => d.binary(|a: u16, b: u16| b.saturating_sub(a)),
        "add_i16" if d.text.has("clamp") => d.binary(i16::saturating_add),
        "sub_i16" if d.text.has("clamp") => d.binary(i16::saturating_sub),
        "add_u16" | "add_i16" => d.binary(u16::wrapping_add),
        "sub_u16" | "sub_i16" => d.binary(u16::wrapping_sub),
        "subrev_u16" => d.binary(|a: u16, b: u16| b.wrapping_sub(a)),
        "mul_lo_u16" => d.binary(u16::wrapping_mul),
        "mad_u16" | "mad_i16" => d.ternary(|a: u16, b: u16, c: u16| a.wrapping_mul(b).wrapping_add(c)),
        "lshlrev_b16" => d.binary(|a: u16, b: u16| b << (a & 15)),
        "lshrrev_b16" => d.binary(|a: u16, b: u16| b >> (a & 15)),
        "ashrrev_i16" => d.binary(|a: u16, b: i16| b >> (a & 15)),
        "max_u16" => d.binary(|a: u16, b: u16| a.max(b)),
        "min_u16" => d.binary(|a: u16, b: u16| a.min(b)),
        "max_i16" => d.binary(|a: i16, b: i16| a.max(b)),
        "min_i16" => d.binary(|a: i16, b: i16| a.min(b)),
        "max3_u16" => d.ternary(|a: u16, b: u16, c: u16| a.max(b).max(c)),
        "min3_u16" => d.ternary(|a: u16, b: u16, c: u16| a.min(b).min(c)),
        "max3_i16" => d.ternary(|a: i16, b: i16, c: i16| a.max(b).max(c)),
        "min3_i16" => d.ternary(|a: i16, b: i16, c: i16| a.min(b).min(c)),
        "add_f16" => d.binary(|a: Half, b: Half| Half::new(a.f32() + b.f32())),
        "sub_f16" => d.binary(|a: Half, b: Half| Half::new(a.f32() - b.f32())),
        "subrev_f16" => d.binary(|a: Half, b: Half| Half::new(b.f32() - a.f32())),
        "mul_f16" => d.binary(|a: Half, b: Half| Half::new(a.f32() * b.f32())),
        "max_f16" => d.binary(|a: Half, b: Half| Half::new(a.f32().max(b.f32()))),
        "min_f16" => d.binary(|a: Half, b: Half| Half::new(a.f32().min(b.f32()))),
        "max3_f16" => d.ternary(|a: Half, b: Half, c: Half| Half::new(a.f32().max(b.f32()).max(c.f32()))),
        "min3_f16" => d.ternary(|a: Half, b: Half, c: Half| Half::new(a.f32().min(b.f32()).min(c.f32()))),
        "med3_f16" => d.ternary(|a: Half, b: Half, c: Half| {
            let (a, b, c) = (a.f32(), b.f32(), c.f32());
            Half::new(a.min(b).max(a.max(b).min(c)))
        }),
        "fma_f16" | "fmaak_f16" | "fmamk_f16" => d.ternary(fma),
        "fmac_f16" => d.accumulate(fma),
        "rcp_f16" => d.unary(|a: Half| Half(f64_to_f16(1.0 / a.f64()))),
        "rsq_f16" => d.unary(|a: Half| Half(f64_to_f16(1.0 / a.f64().sqrt()))),
        "sqrt_f16" => d.unary(|a: Half| Half(f64_to_f16(a.f64().sqrt()))),
        "exp_f16" => d.unary(|a: Half| Half(f64_to_f16(a.f64().exp2()))),
        "log_f16" => d.unary(|a: Half| Half(f64_to_f16(a.f64().log2()))),
        "rndne_f16" => d.unary(|a: Half| Half::new(a.f32().round_ties_even())),
        "floor_f16" => d.unary(|a: Half| Half::new(a.f32().floor())),
        "ceil_f16" => d.unary(|a: Half| Half::new(a.f32().ceil())),
        "trunc_f16" => d.unary(|a: Half| Half::new(a.f32().trunc())),
        "ldexp_f16" => d.binary(|a: Half, b: i16| Half(f64_to_f16(a.f64() * 2f64.powi(b.clamp(-100, 100).into())))),
        "div_fixup_f16" => d.ternary(|_: Half, denominator: Half, numerator: Half| {
            Half(f64_to_f16(numerator.f64() / denominator.f64()))
        }),
        "fma_mix_f32" | "mad_mix_f32" => mix::<f32>(d, HalfWrite::Low, |value| value),
        "fma_mixlo_f16" | "mad_mixlo_f16" => mix(d, HalfWrite::Low, Half::new),
        "fma_mixhi_f16" | "mad_mixhi_f16" => mix(d, HalfWrite::High, Half::new),
        _ => return Ok(None),
    };
    step.map(Some)
}

/// A fused product and sum, rounded once. 53 bits hold the product, and every sum near a rounding boundary of a half.
pub(super) fn fma(a: Half, b: Half, c: Half) -> Half {
    Half(f64_to_f16(a.f64() * b.f64() + c.f64()))
}

/// A float FMA whose sources are floats, or halves if `op_sel_hi` says so.
fn mix<R: Lane>(
    d: &Decoder<'_>,
    half: HalfWrite,
    round: impl Fn(f32) -> R + Copy + Send + Sync + 'static,
) -> Decoded<Step> {
    d.expect_sources(3)?;
    let is_half = d.text.bits("op_sel_hi").unwrap_or_else(|| vec![false; 3]);
    let upper = d.text.bits("op_sel").unwrap_or_else(|| vec![false; 3]);
    let source = |index: usize| -> Decoded<Mixed> {
        let text = d.operand(index + 1)?;
        if is_half.get(index) != Some(&true) {
            return Ok(Mixed { source: Source::parse::<f32>(text)?, half: false });
        }
        let mut source = Source::parse::<Half>(text)?;
        source.high = upper.get(index) == Some(&true);
        Ok(Mixed { source, half: true })
    };
    let sources = [source(0)?, source(1)?, source(2)?];
    let mut dest = d.dest::<R>(0)?;
    dest.half = half;
    // The common case with only floats is a plain FMA.
    if R::BITS == 32 && sources.iter().all(|source| !source.half) {
        let [a, b, c] = sources.map(|mixed| mixed.source);
        return Ok(ternary(dest, (a, b, c), f32::mul_add));
    }
    Ok(super::step(move |wave| {
        for group in 0..wave.groups() {
            let [a, b, c] = sources.each_ref().map(|source| source.group(wave, group));
            let result = super::map::map3(&a, &b, &c, move |a: f32, b: f32, c: f32| round(a.mul_add(b, c)));
            dest.put(wave, group, result);
        }
    }))
}

struct Mixed {
    source: Source,
    half: bool,
}

impl Mixed {
    fn group(&self, wave: &crate::wave::Wave, group: usize) -> [f32; crate::wave::GROUP] {
        if self.half { self.source.group::<Half>(wave, group).map(Half::f32) } else { self.source.group(wave, group) }
    }
}
