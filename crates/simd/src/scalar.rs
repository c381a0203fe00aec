//! The reference: arrays and plain arithmetic. On aarch64 the compiler turns them into NEON.

use std::array::from_fn;

use half::f16;

use super::{LANES, Simd};

#[derive(Debug, Clone, Copy)]
pub(super) struct Scalar;

type V = [f32; LANES];

#[inline(always)]
fn map(a: V, f: impl Fn(f32) -> f32) -> V {
    from_fn(|i| f(a[i]))
}

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Folds the upper half onto the lower half until one lane is left.
#[inline(always)]
fn fold(mut v: V, f: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            v[i] = f(v[i], v[i + half]);
        }
    }
    v[0]
}

impl Simd for Scalar {
    type V = V;
    const REGISTERS: usize = if cfg!(target_arch = "aarch64") { 8 } else { 4 };

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        *x
    }
    #[inline(always)]
    fn store(self, v: V, out: &mut [f32; LANES]) {
        *out = v;
    }
    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> V {
        from_fn(|i| x[i].to_f32())
    }
    #[inline(always)]
    fn to_f16(self, v: V) -> [f16; LANES] {
        from_fn(|i| f16::from_f32(v[i]))
    }
    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> V {
        from_fn(|i| f32::from(x[i]))
    }
    #[inline(always)]
    fn load_nibbles(self, x: &[i8; LANES]) -> [V; 2] {
        [from_fn(|i| f32::from(x[i] as u8 & 15)), from_fn(|i| f32::from(x[i] as u8 >> 4))]
    }
    #[inline(always)]
    fn to_i8(self, v: V) -> [i8; LANES] {
        from_fn(|i| v[i].round_ties_even() as i8)
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        zip(a, b, larger)
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self, v: V) -> V {
        map(v, f32::round_ties_even)
    }
    #[inline(always)]
    fn pow2(self, n: V) -> V {
        map(n, |n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    fn select_lt(self, x: V, limit: f32, a: V, b: V) -> V {
        from_fn(|i| if x[i] < limit { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn keep_lanes(self, v: V, keep: u16, other: f32) -> V {
        from_fn(|i| if keep >> i & 1 == 1 { v[i] } else { other })
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        fold(v, |a, b| a + b)
    }
    #[inline(always)]
    fn maximum(self, v: V) -> f32 {
        fold(v, larger)
    }
}
