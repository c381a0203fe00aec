//! Conversions between the types of a lane.

use super::{Decoded, Decoder, Step};
use crate::float::{Fp8, bf16_to_f32, f32_to_bf16, f32_to_f16_toward_zero};
use crate::lane::Half;

pub(super) fn decode(d: &Decoder<'_>) -> Decoded<Option<Step>> {
    // Rust's conversions from floats match the hardware's: towards zero, saturating, NaN to 0.
    let step = match d.name.as_str() {
        "cvt_f32_u32" => d.unary(|a: u32| a as f32),
        "cvt_f32_i32" => d.unary(|a: i32| a as f32),
        "cvt_u32_f32" => d.unary(|a: f32| a as u32),
        "cvt_i32_f32" => d.unary(|a: f32| a as i32),
        "cvt_flr_i32_f32" | "cvt_floor_i32_f32" => d.unary(|a: f32| a.floor() as i32),
        "cvt_rpi_i32_f32" | "cvt_nearest_i32_f32" => d.unary(|a: f32| (a + 0.5).floor() as i32),
        "cvt_f32_ubyte0" => d.unary(|a: u32| (a & 255) as f32),
        "cvt_f32_ubyte1" => d.unary(|a: u32| (a >> 8 & 255) as f32),
        "cvt_f32_ubyte2" => d.unary(|a: u32| (a >> 16 & 255) as f32),
        "cvt_f32_ubyte3" => d.unary(|a: u32| (a >> 24) as f32),
        "cvt_f64_u32" => d.unary(|a: u32| f64::from(a)),
        "cvt_f64_i32" => d.unary(|a: i32| f64::from(a)),
        "cvt_u32_f64" => d.unary(|a: f64| a as u32),
        "cvt_i32_f64" => d.unary(|a: f64| a as i32),
        "cvt_f64_f32" => d.unary(|a: f32| f64::from(a)),
        "cvt_f32_f64" => d.unary(|a: f64| a as f32),
        "cvt_f32_f16" => d.unary(Half::f32),
        "cvt_f16_f32" => d.unary(Half::new),
        "cvt_f16_u16" => d.unary(|a: u16| Half::new(a.into())),
        "cvt_f16_i16" => d.unary(|a: i16| Half::new(a.into())),
        "cvt_u16_f16" => d.unary(|a: Half| a.f32() as u16),
        "cvt_i16_f16" => d.unary(|a: Half| a.f32() as i16),
        "cvt_u32_u16" => d.unary(|a: u16| u32::from(a)),
        "cvt_i32_i16" => d.unary(|a: i16| i32::from(a)),
        "cvt_f32_bf16" => d.unary(bf16_to_f32),
        "pack_b32_f16" => d.binary(|a: Half, b: Half| pack(a.0, b.0)),
        "cvt_pk_f16_f32" => d.binary(|a: f32, b: f32| pack(Half::new(a).0, Half::new(b).0)),
        "cvt_pk_bf16_f32" => d.binary(|a: f32, b: f32| pack(f32_to_bf16(a), f32_to_bf16(b))),
        "cvt_pkrtz_f16_f32" | "cvt_pk_rtz_f16_f32" => {
            d.binary(|a: f32, b: f32| pack(f32_to_f16_toward_zero(a), f32_to_f16_toward_zero(b)))
        }
        "cvt_pk_u16_u32" => d.binary(|a: u32, b: u32| pack(saturate_unsigned(a), saturate_unsigned(b))),
        "cvt_pk_i16_i32" => d.binary(|a: i32, b: i32| pack(saturate_signed(a), saturate_signed(b))),
        "cvt_pk_u16_f32" => d.binary(|a: f32, b: f32| pack(a as u16, b as u16)),
        "cvt_pk_i16_f32" => d.binary(|a: f32, b: f32| pack(a as i16 as u16, b as i16 as u16)),
        "cvt_pk_u8_f32" => d.ternary(|a: f32, byte: u32, old: u32| {
            let shift = 8 * (byte & 3);
            old & !(255 << shift) | u32::from(a as u8) << shift
        }),
        "cvt_f32_fp8" => eight_bits(d, 3),
        "cvt_f32_bf8" => eight_bits(d, 2),
        _ => return Ok(None),
    };
    step.map(Some)
}

fn pack(low: u16, high: u16) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

fn saturate_unsigned(value: u32) -> u16 {
    value.min(0xffff) as u16
}

fn saturate_signed(value: i32) -> u16 {
    value.clamp(-0x8000, 0x7fff) as u16
}

/// Decodes a conversion of one 8-bit float, the lowest byte. SDWA or `byte_sel` selects other bytes.
fn eight_bits(d: &Decoder<'_>, mantissa_bits: u32) -> Decoded<Step> {
    let format = Fp8 { mantissa_bits, fnuz: d.target.has_fnuz() };
    let shift = match d.text.modifier("byte_sel") {
        Some(byte) => 8 * byte.parse::<u32>().map_err(|_| "byte_sel".to_owned())?,
        None => 0,
    };
    d.unary(move |a: u32| format.to_f32((a >> shift) as u8))
}
