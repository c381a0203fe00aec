//! Conversions of the small float formats, without branches if the compiler should vectorise them.

/// Converts `half` to a float, exactly.
#[inline(always)]
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    let half = u32::from(half);
    // 2^112 changes the exponent's bias from 15 to 127, and also converts subnormals correctly.
    let magnitude = (f32::from_bits((half & 0x7fff) << 13) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if half & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude | special | (half & 0x8000) << 16)
}

/// Rounds to the nearest half, ties to even.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let normal = magnitude.wrapping_sub(0x3800_0000).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    // At 0.5 a float's ulp is 2^-24, the same as that of a subnormal half: the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let special = if magnitude > 0x7f80_0000 { 0x7e00 | (magnitude >> 13 & 0x3ff) } else { 0x7c00 };
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let half = if magnitude >= 0x4780_0000 { special } else { finite };
    (half | bits >> 16 & 0x8000) as u16
}

/// Rounds towards zero; a finite value never becomes infinite.
#[inline(always)]
pub(crate) fn f32_to_f16_toward_zero(value: f32) -> u16 {
    let nearest = f32_to_f16(value);
    let too_far = f16_to_f32(nearest).abs() > value.abs();
    nearest - u16::from(too_far)
}

/// Rounds to the nearest half with one rounding.
pub(crate) fn f64_to_f16(value: f64) -> u16 {
    f32_to_f16(to_f32_odd(value))
}

/// Rounds to a float that can be rounded again without error: inexact results get an odd last bit.
fn to_f32_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    let away = back.abs() < value.abs();
    f32::from_bits(if away { nearest.to_bits() + 1 } else { nearest.to_bits() - 1 })
}

#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to the nearest bfloat16, ties to even.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    (if value.is_nan() { bits >> 16 | 0x40 } else { rounded }) as u16
}

/// An 8-bit float format: OCP, or the FNUZ variant of gfx942.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fp8 {
    pub mantissa_bits: u32,
    pub fnuz: bool,
}

impl Fp8 {
    pub(crate) fn to_f32(self, byte: u8) -> f32 {
        let exponent_bits = 7 - self.mantissa_bits;
        let ocp_bias = (1 << (exponent_bits - 1)) - 1;
        let bias = if self.fnuz { ocp_bias + 1 } else { ocp_bias };
        let magnitude = u32::from(byte & 0x7f);
        let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
        let exponent = (magnitude >> self.mantissa_bits) as i32;
        let scale = |power: i32| 2f32.powi(power - self.mantissa_bits as i32);
        let value = match (self.fnuz, self.mantissa_bits) {
            (true, _) if byte == 0x80 => f32::NAN,
            (false, 3) if magnitude == 0x7f => f32::NAN,
            (false, 2) if magnitude == 0x7c => f32::INFINITY,
            (false, 2) if magnitude > 0x7c => f32::NAN,
            _ if exponent == 0 => mantissa as f32 * scale(1 - bias),
            _ => (mantissa | 1 << self.mantissa_bits) as f32 * scale(exponent - bias),
        };
        if byte & 0x80 != 0 { -value } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_exact_and_returns() {
        for half in 0..=u16::MAX {
            let expected = half::f16::from_bits(half);
            let value = f16_to_f32(half);
            if expected.is_nan() {
                assert!(value.is_nan() && f16_to_f32(f32_to_f16(value)).is_nan());
            } else {
                assert_eq!(value, expected.to_f32());
                assert_eq!(f32_to_f16(value), half);
                assert_eq!(f32_to_f16_toward_zero(value), half);
                assert_eq!(f64_to_f16(f64::from(value)), half);
            }
        }
    }

    #[test]
    fn rounding_of_floats() {
        for step in 0..2_000_000u32 {
            let value = f32::from_bits(step.wrapping_mul(2_654_435_761));
            if value.is_nan() {
                continue;
            }
            assert_eq!(f32_to_f16(value), half::f16::from_f32(value).to_bits(), "{value:e}");
            assert_eq!(f64_to_f16(f64::from(value)), half::f16::from_f32(value).to_bits(), "{value:e}");
            assert_eq!(f32_to_bf16(value), half::bf16::from_f32(value).to_bits(), "{value:e}");
            let cut = f16_to_f32(f32_to_f16_toward_zero(value));
            assert!(cut.abs() <= value.abs() && (cut.is_finite() || value.is_infinite()), "{value:e}");
        }
        assert_eq!(f32_to_f16_toward_zero(1e9), 0x7bff);
        // Halfway between two halves except for a bit that a float cannot hold.
        assert_eq!(f64_to_f16(1.0 + 2f64.powi(-11)), 0x3c00);
        assert_eq!(f64_to_f16(1.0 + 2f64.powi(-11) + 2f64.powi(-40)), 0x3c01);
    }

    #[test]
    fn eight_bit_formats() {
        let e4m3 = Fp8 { mantissa_bits: 3, fnuz: false };
        assert_eq!((e4m3.to_f32(0x38), e4m3.to_f32(0x7e), e4m3.to_f32(0x81)), (1.0, 448.0, -(2f32.powi(-9))));
        assert!(e4m3.to_f32(0x7f).is_nan());
        let fnuz = Fp8 { fnuz: true, ..e4m3 };
        assert_eq!((fnuz.to_f32(0x40), fnuz.to_f32(0x7f)), (1.0, 240.0));
        assert!(fnuz.to_f32(0x80).is_nan());
        let e5m2 = Fp8 { mantissa_bits: 2, fnuz: false };
        assert_eq!((e5m2.to_f32(0x3c), e5m2.to_f32(0x7b), e5m2.to_f32(0x7c)), (1.0, 57344.0, f32::INFINITY));
    }
}
