//! Decoded operands: the source of a value, and the destination of a result.
#![allow(unsafe_code)]

use crate::lane::Lane;
use crate::syntax::{Constant, Register};
use crate::wave::{GROUP, Wave, sgpr};

/// The place of an operand's bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place {
    Vgpr(u16),
    Sgpr(u16),
    Bits(u64),
    Scc,
    /// True if VCC, or EXEC, is zero.
    IsZero(u16),
}

/// A source operand of a vector instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Source {
    pub place: Place,
    pub negate: bool,
    pub magnitude: bool,
    /// True if a 16-bit type is in the register's upper half.
    pub high: bool,
}

impl Source {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, negate: false, magnitude: false, high: false }
    }

    /// Parses an operand that must hold a `T`.
    pub(crate) fn parse<T: Lane>(text: &str) -> Result<Self, String> {
        let bad = || format!("operand {text}");
        let mut source = Self::new(Place::Bits(0));
        let mut rest = text;
        if Constant::parse(rest).is_none()
            && let Some(inner) = rest.strip_prefix('-')
        {
            (source.negate, rest) = (true, inner);
        }
        if let Some(inner) = rest.strip_prefix("neg(").and_then(|inner| inner.strip_suffix(')')) {
            (source.negate, rest) = (true, inner);
        }
        let bars = |rest: &'_ str| Some(rest.strip_prefix('|')?.strip_suffix('|')?.to_owned());
        let abs = |rest: &'_ str| Some(rest.strip_prefix("abs(")?.strip_suffix(')')?.to_owned());
        let inner = bars(rest).or_else(|| abs(rest));
        let rest = match &inner {
            Some(inner) => {
                source.magnitude = true;
                inner.as_str()
            }
            None => rest,
        };
        if (source.negate || source.magnitude) && T::KIND != crate::lane::Kind::Float {
            return Err(format!("a modifier on the integer operand {text}"));
        }
        let (rest, half) = split_half(rest);
        if half.is_some() && T::BITS != 16 {
            return Err(bad());
        }
        source.high = half == Some(true);
        source.place = place::<T>(rest).ok_or_else(bad)?;
        Ok(source)
    }

    /// Returns the values of one group of lanes.
    #[inline(always)]
    pub(crate) fn group<T: Lane>(&self, wave: &Wave, group: usize) -> [T; GROUP] {
        // SAFETY: a code object is loaded only where these instructions exist, and only loaded ones are executed.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            self.group_inner(wave, group)
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.group_inner(wave, group)
    }

    #[inline(never)]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    fn group_inner<T: Lane>(&self, wave: &Wave, group: usize) -> [T; GROUP] {
        // Loops instead of `map`, which the compiler does not vectorise here.
        let mut values = [T::ZERO; GROUP];
        match self.place {
            Place::Vgpr(register) => {
                let low = &wave.vgpr(register)[group];
                let lanes = values.iter_mut().zip(low);
                match T::BITS {
                    64 => {
                        let high = &wave.vgpr(register + 1)[group];
                        for ((value, low), high) in lanes.zip(high) {
                            *value = T::from_bits(u64::from(*low) | u64::from(*high) << 32);
                        }
                    }
                    16 if self.high => lanes.for_each(|(value, bits)| *value = T::from_bits(u64::from(bits >> 16))),
                    _ => lanes.for_each(|(value, bits)| *value = T::from_bits(u64::from(*bits))),
                }
            }
            _ => values = [T::from_bits(self.scalar_bits::<T>(wave)); GROUP],
        }
        if self.magnitude {
            values.iter_mut().for_each(|value| *value = value.magnitude());
        }
        if self.negate {
            values.iter_mut().for_each(|value| *value = value.negate());
        }
        values
    }

    /// Returns the value if it is the same in all lanes; else lane 0's bits.
    fn scalar_bits<T: Lane>(&self, wave: &Wave) -> u64 {
        let bits = match self.place {
            Place::Vgpr(register) => u64::from(wave.lane(register, 0)),
            Place::Sgpr(sgpr::NULL) => 0,
            Place::Sgpr(register) if T::BITS == 64 => wave.sgpr64(register),
            Place::Sgpr(register) => u64::from(wave.sgpr(register)),
            Place::Bits(bits) => bits,
            Place::Scc => u64::from(wave.scc),
            Place::IsZero(register) => u64::from(wave.mask(register) == 0),
        };
        if self.high { bits >> 16 } else { bits }
    }

    /// Returns the value of a scalar instruction's operand.
    pub(crate) fn scalar<T: Lane>(&self, wave: &Wave) -> T {
        let value = T::from_bits(self.scalar_bits::<T>(wave));
        let value = if self.magnitude { value.magnitude() } else { value };
        if self.negate { value.negate() } else { value }
    }
}

/// Splits off a half: `v3.h` is the upper half of v3.
pub(crate) fn split_half(text: &str) -> (&str, Option<bool>) {
    if let Some(rest) = text.strip_suffix(".l") {
        (rest, Some(false))
    } else if let Some(rest) = text.strip_suffix(".h") {
        (rest, Some(true))
    } else {
        (text, None)
    }
}

/// Upper halves of the flat addresses of LDS and scratch.
pub(crate) const SHARED_APERTURE: u64 = 0x6a80_0000_0000;
pub(crate) const PRIVATE_APERTURE: u64 = 0x6a90_0000_0000;

fn place<T: Lane>(text: &str) -> Option<Place> {
    match Register::parse(text) {
        Some(Register::Vgpr { first, count }) => return fits::<T>(count).then_some(Place::Vgpr(first)),
        Some(Register::Sgpr { first: sgpr::NULL, .. }) => return Some(Place::Bits(0)),
        Some(Register::Sgpr { first, count }) => return fits::<T>(count).then_some(Place::Sgpr(first)),
        None => {}
    }
    let aperture = |base: u64| Place::Bits(if T::BITS == 64 { base } else { base >> 32 });
    match text {
        "scc" | "src_scc" => return Some(Place::Scc),
        "vccz" | "src_vccz" => return Some(Place::IsZero(sgpr::VCC)),
        "execz" | "src_execz" => return Some(Place::IsZero(sgpr::EXEC)),
        "src_shared_base" => return Some(aperture(SHARED_APERTURE)),
        "src_private_base" => return Some(aperture(PRIVATE_APERTURE)),
        _ => {}
    }
    constant_bits::<T>(Constant::parse(text)?).map(Place::Bits)
}

/// True if the registers have at least the operand's size: instructions may read a part of a tuple.
fn fits<T: Lane>(count: u16) -> bool {
    u32::from(count) * 32 >= T::BITS
}

/// Returns the bits of a constant as an operand of type `T`.
pub(crate) fn constant_bits<T: Lane>(constant: Constant) -> Option<u64> {
    use crate::lane::Kind::{Float, Signed};
    Some(match (constant, T::BITS, T::KIND) {
        (Constant::Integer(value), ..) => value as u64,
        // A 32-bit literal is the upper half of a double.
        (Constant::Literal(bits), 64, Float) => u64::from(u32::try_from(bits).ok()?) << 32,
        // Instructions differ in whether they sign-extend it.
        (Constant::Literal(bits), 64, Signed) if bits > 0x7fff_ffff => return None,
        (Constant::Literal(bits), ..) => bits,
        (Constant::Float(value), 64, _) => value.to_bits(),
        (Constant::Float(value), 16, _) => u64::from(crate::float::f64_to_f16(value)),
        (Constant::Float(value), ..) => u64::from((value as f32).to_bits()),
    })
}

/// The destination of a vector instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Dest {
    pub register: u16,
    /// How a 16-bit result is written to its register.
    pub half: HalfWrite,
    pub clamp: bool,
    /// The factor of `mul:2` and similar modifiers.
    pub scale: Option<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HalfWrite {
    Low,
    High,
    /// The low half, with zeros above.
    Whole,
}

impl Dest {
    pub(crate) fn new(register: u16) -> Self {
        Self { register, half: HalfWrite::Low, clamp: false, scale: None }
    }

    /// Writes the active lanes of one group.
    #[inline(always)]
    pub(crate) fn put<T: Lane>(&self, wave: &mut Wave, group: usize, values: [T; GROUP]) {
        // SAFETY: a code object is loaded only where these instructions exist, and only loaded ones are executed.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            self.put_inner(wave, group, values);
        }
        #[cfg(not(target_arch = "x86_64"))]
        self.put_inner(wave, group, values);
    }

    #[inline(never)]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    fn put_inner<T: Lane>(&self, wave: &mut Wave, group: usize, mut values: [T; GROUP]) {
        if let Some(factor) = self.scale {
            values.iter_mut().for_each(|value| *value = value.scale(factor));
        }
        if self.clamp {
            values.iter_mut().for_each(|value| *value = value.saturate());
        }
        let mut low = [0; GROUP];
        low.iter_mut().zip(&values).for_each(|(low, value)| *low = value.bits() as u32);
        match (T::BITS, self.half) {
            (64, _) => {
                let mut high = [0; GROUP];
                high.iter_mut().zip(&values).for_each(|(high, value)| *high = (value.bits() >> 32) as u32);
                wave.set_group(self.register, group, &low);
                wave.set_group(self.register + 1, group, &high);
            }
            (16, HalfWrite::Low | HalfWrite::High) => {
                let old = &wave.vgpr(self.register)[group];
                for (low, old) in low.iter_mut().zip(old) {
                    *low = match self.half {
                        HalfWrite::High => old & 0xffff | *low << 16,
                        _ => old & 0xffff_0000 | *low,
                    };
                }
                wave.set_group(self.register, group, &low);
            }
            _ => wave.set_group(self.register, group, &low),
        }
    }
}
