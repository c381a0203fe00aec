//! The types that a lane of a register can hold.

use crate::float::{f16_to_f32, f32_to_f16};

/// The kind of a type determines its negation, absolute value and constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unsigned,
    Signed,
    Float,
}

/// A value of one lane. 64-bit types take two registers, 16-bit ones half a register.
pub(crate) trait Lane: Copy + Send + Sync + 'static {
    const BITS: u32;
    const KIND: Kind;
    const ZERO: Self;
    fn from_bits(bits: u64) -> Self;
    fn bits(self) -> u64;
    /// The modifier `-`.
    fn negate(self) -> Self;
    /// The modifier `|x|`.
    fn magnitude(self) -> Self;
    /// The modifier `clamp`; in this trait only for floats.
    fn saturate(self) -> Self;
    /// The modifiers `mul:2`, `mul:4`, `div:2`.
    fn scale(self, factor: f32) -> Self;
}

/// A half-precision float in its 16 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Half(pub u16);

impl Half {
    #[inline(always)]
    pub(crate) fn f32(self) -> f32 {
        f16_to_f32(self.0)
    }

    #[inline(always)]
    pub(crate) fn f64(self) -> f64 {
        f64::from(self.f32())
    }

    /// Rounds to a half. Exact for +, -, *, / and square roots of halves computed in f32: 24 bits suffice for double
    /// rounding.
    #[inline(always)]
    pub(crate) fn new(value: f32) -> Self {
        Self(f32_to_f16(value))
    }
}

macro_rules! integer_lane {
    ($type:ty, $unsigned:ty, $kind:expr) => {
        impl Lane for $type {
            const BITS: u32 = <$type>::BITS;
            const KIND: Kind = $kind;
            const ZERO: Self = 0;
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                bits as $type
            }
            #[inline(always)]
            fn bits(self) -> u64 {
                self as $unsigned as u64
            }
            // The decoder refuses these modifiers on integers.
            fn negate(self) -> Self {
                self
            }
            fn magnitude(self) -> Self {
                self
            }
            fn saturate(self) -> Self {
                self
            }
            fn scale(self, _factor: f32) -> Self {
                self
            }
        }
    };
}

integer_lane!(u16, u16, Kind::Unsigned);
integer_lane!(i16, u16, Kind::Signed);
integer_lane!(u32, u32, Kind::Unsigned);
integer_lane!(i32, u32, Kind::Signed);
integer_lane!(u64, u64, Kind::Unsigned);
integer_lane!(i64, u64, Kind::Signed);

macro_rules! float_lane {
    ($type:ty, $bits:ty) => {
        impl Lane for $type {
            const BITS: u32 = <$bits>::BITS;
            const KIND: Kind = Kind::Float;
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                <$type>::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            #[inline(always)]
            fn negate(self) -> Self {
                -self
            }
            #[inline(always)]
            fn magnitude(self) -> Self {
                self.abs()
            }
            // `f32::clamp` would keep a NaN, which becomes 0 here.
            #[inline(always)]
            fn saturate(self) -> Self {
                self.max(0.0).min(1.0)
            }
            #[inline(always)]
            fn scale(self, factor: f32) -> Self {
                self * <$type>::from(factor)
            }
        }
    };
}

float_lane!(f32, u32);
float_lane!(f64, u64);

impl Lane for Half {
    const BITS: u32 = 16;
    const KIND: Kind = Kind::Float;
    const ZERO: Self = Half(0);
    #[inline(always)]
    fn from_bits(bits: u64) -> Self {
        Half(bits as u16)
    }
    #[inline(always)]
    fn bits(self) -> u64 {
        self.0.into()
    }
    #[inline(always)]
    fn negate(self) -> Self {
        Half(self.0 ^ 0x8000)
    }
    #[inline(always)]
    fn magnitude(self) -> Self {
        Half(self.0 & 0x7fff)
    }
    #[inline(always)]
    fn saturate(self) -> Self {
        Half::new(self.f32().saturate())
    }
    #[inline(always)]
    fn scale(self, factor: f32) -> Self {
        Half::new(self.f32() * factor)
    }
}
