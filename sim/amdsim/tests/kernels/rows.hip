// Kernels over rows: reductions by shuffles and LDS, 64-bit atomics, division, rounding.
#include "device.h"
#define THREADS 256

// y = x * w / rms(x), one row a workgroup
KERNEL(THREADS) rmsnorm(float* RESTRICT y, const float* RESTRICT x, const float* RESTRICT w, int n, float eps) {
  SHARED float part[THREADS / WARP];
  const int t = tid_x(), row = bid_x();
  const float* xr = x + (long)row * n;
  float sum = 0.f;
  for (int i = t; i < n; i += THREADS) sum = __builtin_fmaf(xr[i], xr[i], sum);
  sum = warp_sum(sum);
  if ((t & (WARP - 1)) == 0) part[t / WARP] = sum;
  barrier<1>();
  float total = 0.f;
  for (int i = 0; i < THREADS / WARP; i++) total += part[i];
  const float scale = fast_rsqrt(total / (float)n + eps);
  for (int i = t; i < n; i += THREADS) y[(long)row * n + i] = xr[i] * scale * w[i];
}

// Blocks of 32 values as int8: scale, scale times sum, values
struct Q8 { float d, s; u32 q[8]; };
KERNEL(THREADS) quantize(Q8* RESTRICT out, const float* RESTRICT x, int n) {
  const int i = bid_x() * THREADS + tid_x();
  float v = i < n ? x[i] : 0.f, largest = __builtin_fabsf(v);
  for (int m = 16; m; m >>= 1) largest = __builtin_fmaxf(largest, shuffle_xor(largest, m));
  const float d = largest / 127.f;
  const int q = d > 0.f ? (int)__builtin_rintf(v / d) : 0;
  int sum = q;
  for (int m = 16; m; m >>= 1) sum += shuffle_xor(sum, m);
  u32 packed = (u32)(q & 255) << (8 * (i & 3));
  packed |= shuffle_xor(packed, 1);
  packed |= shuffle_xor(packed, 2);
  if (i < n) {
    Q8* b = out + i / 32;
    if ((i & 31) == 0) { b->d = d; b->s = d * (float)sum; }
    if ((i & 3) == 0) b->q[(i & 31) / 4] = packed;
  }
}

// The index of the largest value in the low word, inverted: ties go to the lowest index
KERNEL(THREADS) argmax(u64* RESTRICT best, const float* RESTRICT x, int n) {
  u64 key = 0;
  for (int i = bid_x() * THREADS + tid_x(); i < n; i += THREADS * 4) {
    u32 bits = f32_bits(x[i]);
    bits = (bits & 0x80000000u) ? ~bits : (bits | 0x80000000u);
    u64 candidate = ((u64)bits << 32) | (u32)~i;
    if (candidate > key) key = candidate;
  }
  for (int m = WARP / 2; m; m >>= 1) {
    u64 other = ((u64)shuffle_xor((u32)(key >> 32), m) << 32) | shuffle_xor((u32)key, m);
    if (other > key) key = other;
  }
  if (lane_id() == 0) atomic_max(best, key);
}

KERNEL(THREADS) silu_mul(float* RESTRICT y, const float* RESTRICT g, const float* RESTRICT u, int n) {
  const int i = bid_x() * THREADS + tid_x();
  if (i < n) y[i] = g[i] * fast_rcp(1.f + fast_exp2(-g[i] * LOG2E)) * u[i];
}
