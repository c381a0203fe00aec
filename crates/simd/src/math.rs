//! Elementary functions on 16 lanes, within a few units in the last place.

use super::Simd;

/// `e^x`. The relative error is below 3e-7 for x in -87.3..=88. Smaller x give 0, larger x give `e^88` (never
/// infinity), and NaN stays NaN.
///
/// `x = n ln 2 + r` with whole n and |r| <= ln 2 / 2. `e^r` is a Taylor series; its first dropped term, r^8 / 8!, is
/// below 6e-9.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    const LOWEST: f32 = -87.3;
    const HIGHEST: f32 = 88.0;
    /// ln 2 in two parts, so that `n * LN2_HIGH` is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// 1/7!, 1/6!, ... 1/0!
    const TAYLOR: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

    // `max` and `min` return their second argument for NaN, so NaN passes through.
    let clamped = s.min(s.splat(HIGHEST), s.max(s.splat(LOWEST), x));
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-LN2_HIGH), clamped);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut y = s.splat(TAYLOR[0]);
    for &c in &TAYLOR[1..] {
        y = s.fma(y, r, s.splat(c));
    }
    let y = s.mul(y, s.pow2(n));
    s.select_lt(x, LOWEST, s.splat(0.0), y)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(s.splat(1.0), s.add(s.splat(1.0), e))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.sub(s.splat(0.0), x));
    s.div(x, s.add(s.splat(1.0), e))
}

/// `x * 0.5 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, computed as `x / (1 + e^-2z)` with the argument `z` of
/// the tanh.
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::V) -> S::V {
    const CUBIC: f32 = 0.044_715;
    const MINUS_TWICE_ROOT: f32 = -1.595_769_2;
    let z = s.mul(x, s.fma(s.mul(x, x), s.splat(CUBIC), s.splat(1.0)));
    let e = exp(s, s.mul(z, s.splat(MINUS_TWICE_ROOT)));
    s.div(x, s.add(s.splat(1.0), e))
}

/// `x * Φ(x)` with the normal distribution Φ, by the error function: `Φ(-x) = erfc(x / sqrt 2) / 2`. The relative error
/// is below 1e-6 unless the result is below 1e-3. The approximation of erfc is `erfcc` of Numerical Recipes (second
/// edition, section 6.2).
#[inline(always)]
pub fn gelu_erf<S: Simd>(s: S, x: S::V) -> S::V {
    /// Coefficients of the exponent from the highest power of t. The last one is reduced by ln 2, which halves erfc.
    const EXPONENT: [f32; 10] = [
        0.170_872_77,
        -0.822_152_2,
        1.488_515_9,
        -1.135_204,
        0.278_868_08,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_7,
        -1.958_659_4,
    ];
    let z = s.mul(s.max(s.sub(s.splat(0.0), x), x), s.splat(std::f32::consts::FRAC_1_SQRT_2));
    let t = s.div(s.splat(1.0), s.fma(z, s.splat(0.5), s.splat(1.0)));
    let mut y = s.splat(EXPONENT[0]);
    for &coefficient in &EXPONENT[1..] {
        y = s.fma(y, t, s.splat(coefficient));
    }
    let below = s.mul(t, exp(s, s.sub(y, s.mul(z, z))));
    s.mul(x, s.select_lt(x, 0.0, below, s.sub(s.splat(1.0), below)))
}

/// gpt-oss: `(clamp(up, -7, 7) + 1) * g * sigmoid(1.702 g)` with `g = min(gate, 7)`.
#[inline(always)]
pub fn clamped_swiglu<S: Simd>(s: S, gate: S::V, up: S::V) -> S::V {
    const LIMIT: f32 = 7.0;
    const SLOPE: f32 = 1.702;
    // `max` and `min` return their second argument for NaN, so NaN passes through.
    let gate = s.min(s.splat(LIMIT), gate);
    let up = s.min(s.splat(LIMIT), s.max(s.splat(-LIMIT), up));
    let e = exp(s, s.mul(gate, s.splat(-SLOPE)));
    s.div(s.mul(s.add(up, s.splat(1.0)), gate), s.add(s.splat(1.0), e))
}

/// `min(silu(gate), limit) * clamp(up, -limit, limit)`.
#[inline(always)]
pub fn clamped_silu<S: Simd>(s: S, gate: S::V, up: S::V, limit: f32) -> S::V {
    // `max` and `min` return their second argument for NaN, so NaN passes through.
    let up = s.min(s.splat(limit), s.max(s.splat(-limit), up));
    s.mul(s.min(s.splat(limit), silu(s, gate)), up)
}

/// `max(x, 0)^2`.
#[inline(always)]
pub fn squared_relu<S: Simd>(s: S, x: S::V) -> S::V {
    // `max` returns its second argument for NaN, so NaN passes through.
    let x = s.max(s.splat(0.0), x);
    s.mul(x, x)
}

/// `tanh x = 1 - 2 / (e^2x + 1)`. The absolute error is below 3e-7.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.add(x, x));
    s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(e, s.splat(1.0))))
}
