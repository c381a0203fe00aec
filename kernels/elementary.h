// Elementary functions without a math library. exp and log are accurate to the last bits and use only additions,
// multiplications and fmas, so that every target computes the same bits. Other functions start from the device's
// estimates. The fast_* functions of gpu.h alone lose up to 1e-5 far from zero.
#pragma once
#include "gpu.h"
#include "args.h"

#define F32_INFINITY bits_f32(0x7f800000u)
#define F32_NAN bits_f32(0x7fc00000u)

// 2^n for n in -126 .. 127.
DEV float exp2_int(i32 n) { return bits_f32((u32)(n + 127) << 23); }

// e^x within 2 units in the last place; results below 2^-126 may be 0 (targets differ in their subnormals).
// e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2; the series of e^r ends where the rest is below 6e-9.
DEV float exp_accurate(float x) {
  // Outside of this range the result is 0 or infinite anyway, and n / 2 stays an exponent. A NaN becomes 0.
  const float clamped = x > -104.f ? (x < 89.f ? x : 89.f) : -104.f;
  const float n = rint_(clamped * LOG2E);
  // ln 2 in two parts: the first has so few bits that n times it is exact.
  const float r = fma_(n, 2.12194440e-4f, fma_(n, -0.693359375f, clamped));
  float p = 1.f / 5040.f;
  p = fma_(p, r, 1.f / 720.f);
  p = fma_(p, r, 1.f / 120.f);
  p = fma_(p, r, 1.f / 24.f);
  p = fma_(p, r, 1.f / 6.f);
  p = fma_(p, r, 0.5f);
  p = fma_(p, r, 1.f);
  p = fma_(p, r, 1.f);
  const i32 exponent = (i32)n, half = exponent >> 1;
  return p * exp2_int(half) * exp2_int(exponent - half);
}

// ln x within 2 units in the last place, for finite x >= 2^-126.
// x = 2^e m with m near 1; ln m = 2 atanh(s), s = (m - 1) / (m + 1), whose series is short because |s| < 0.172.
DEV float log_accurate(float x) {
  const u32 bits = f32_bits(x);
  i32 e = (i32)(bits >> 23) - 127;
  float m = bits_f32((bits & 0x007fffffu) | 0x3f800000u);
  if (m > 1.41421356f) { m *= 0.5f; e++; }
  const float s = (m - 1.f) / (m + 1.f), z = s * s;
  float series = 1.f / 9.f;
  series = fma_(series, z, 1.f / 7.f);
  series = fma_(series, z, 1.f / 5.f);
  series = fma_(series, z, 1.f / 3.f);
  const float ln_m = fma_(2.f * s * z, series, 2.f * s);
  return fma_((float)e, 0.693359375f, fma_((float)e, -2.12194440e-4f, ln_m));
}

// log(1 + e^x). Above 20, e^-x is less than a unit in the last place of the result.
DEV float softplus(float x) { return x > 20.f ? x : log_accurate(1.f + exp_accurate(x)); }

// x / (1 + e^-z) for z >= -87: below, e^-z would leave the range in which all devices have reciprocals. Uses the
// device's exp2 and reciprocal, accurate to 2 and 1 units in the last place, because there are millions of activations.
DEV float times_sigmoid(float x, float z) {
  const float y = z < 100.f ? -z : -100.f;
  // The rounding error of a large t matters: e^y = 2^t e^c with c = y - t ln 2, and ln 2 in two parts.
  const float t = y * LOG2E;
  const float c = fma_(t, 1.90465430e-9f, fma_(t, -0.693147182f, y));
  const float e = fast_exp2(t);
  return x * fast_rcp(1.f + fma_(e, c, e));
}

// 1 / (1 + e^-x) within a relative error of 1e-6.
DEV float sigmoid(float x) { return times_sigmoid(1.f, x < -87.f ? -87.f : x); }

// x / (1 + e^-x) within a relative error of 1e-6: 0 for very negative x, x for large x. NaN stays NaN, as in the other
// activations.
DEV float silu(float x) {
  const float above = x < -87.f ? -87.f : x;         // below, the result is less than 1e-35
  return times_sigmoid(above, above);
}

// x * Phi(x) in the form x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3). The error is within
// 1e-6 of the result; for very negative 2u it is within 1e-6 of x, which is 1e-5 of the result there.
DEV float gelu(float x) {
  const float above = x < -9.8f ? -9.8f : x;         // 2u is -82.8 there, the result below 1e-35
  return times_sigmoid(above, 1.5957691216f * above * fma_(0.044715f * above, above, 1.f));
}

// x * Phi(x) with the error function, within 1e-6 of results above 1e-3: Phi(-x) = erfc(x / sqrt 2) / 2. The
// approximation of erfc is erfcc of Numerical Recipes (second edition, section 6.2).
DEV float gelu_erf(float x) {
  const float size = x < 0.f ? -x : x, far = size < 13.f ? size : 13.f;   // beyond, the result is below 1e-36, or x
  const float z = 0.707106781f * far, t = fast_rcp(fma_(0.5f, z, 1.f));
  float y = 0.17087277f;
  y = fma_(y, t, -0.82215223f);
  y = fma_(y, t, 1.48851587f);
  y = fma_(y, t, -1.13520398f);
  y = fma_(y, t, 0.27886807f);
  y = fma_(y, t, -0.18628806f);
  y = fma_(y, t, 0.09678418f);
  y = fma_(y, t, 0.37409196f);
  y = fma_(y, t, 1.00002368f);
  y = fma_(y, t, -1.95865941f);                        // minus ln 2: half of erfc
  const float below = t * fast_exp2((y - z * z) * LOG2E);
  return x * (x < 0.f ? below : 1.f - below);
}

// gpt-oss: (clamp(up, -7, 7) + 1) * g * sigmoid(1.702 g), g = min(gate, 7).
DEV float clamped_swiglu(float gate, float up) {
  const float below = gate > 7.f ? 7.f : gate, g = below < -51.f ? -51.f : below;    // below, the result is under 1e-35
  const float u = up > 7.f ? 7.f : up < -7.f ? -7.f : up;
  return (u + 1.f) * times_sigmoid(g, 1.702f * g);
}

// min(silu(gate), limit) * clamp(up, -limit, limit); a NaN stays NaN.
DEV float clamped_silu(float gate, float up, float limit) {
  const float g = silu(gate), u = up > limit ? limit : up < -limit ? -limit : up;
  return (g > limit ? limit : g) * u;
}

// max(x, 0)^2; a NaN stays NaN.
DEV float squared_relu(float x) { return x < 0.f ? 0.f : x * x; }

// Applies `activation` (args.h) to a gate and `up`. The usual activation is inline in the code path: a kernel of
// microseconds waits for each line of instructions that it jumps to.
DEV float gated(u32 activation, float gate, float up) {
  if (__builtin_expect(activation == ACTIVATION_SILU, 1)) return silu(gate) * up;
  if (activation == ACTIVATION_SQUARED_RELU) return squared_relu(gate) * up;
  if (activation == ACTIVATION_GELU_ERF) return gelu_erf(gate) * up;
  if ((activation & ACTIVATION_KIND) == ACTIVATION_CLAMPED_SILU) {
    return clamped_silu(gate, up, bits_f32(activation & ~(u32)ACTIVATION_KIND));
  }
  return activation == ACTIVATION_GELU ? gelu(gate) * up : clamped_swiglu(gate, up);
}

// cap * tanh(x / cap), within 1e-6 of the cap. tanh uses exp2, whose infinity and zero give 1 and -1.
DEV float soft_cap(float x, float cap) {
  return cap - 2.f * cap * fast_rcp(1.f + fast_exp2(x * fast_rcp(cap) * (2.f * LOG2E)));
}

// 1 / sqrt(x) for normal x: the device's estimate and one Newton step.
DEV float rsqrt_accurate(float x) {
  const float y = fast_rsqrt(x);
  return fma_(0.5f * y, fma_(-(x * y), y, 1.f), y);
}
