// Rotary embedding: the table of angles, and the rotation of q and k with their norms and the store into the KV cache.
#include "gpu.h"
#include "args.h"

// ------------------------------------------------------------------------------------------------ angles
// cos and sin of x, to the last bit of f32 for |x| < 2^27. Own code, because AMD's sin and cos instructions reduce no
// range and no device library is linked; no library function and no fma either, so that all platforms agree.
DEV void cos_sin(double x, float& cos, float& sin) {
  // Adding 1.5 * 2^52 rounds to an integer, which then lies in the low bits.
  const double shift = 6755399441055744.0;
  union { double d; u64 u; } shifted;
  shifted.d = x * 0.63661977236758134308 + shift;
  const double turns = shifted.d - shift;       // quarter turns
  // pi / 2 in three parts. The first two have 25 bits: their products with an integer below 2^28 are exact, fused or
  // not.
  double r = x - turns * 1.57079631090164184570;
  r -= turns * 1.58932547122958567343e-08;
  r -= turns * 6.12323399573676603587e-17;
  const double z = r * r;                       // |r| <= pi / 4: the Taylor series below are good to 1e-11
  const double s =
      r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z * (1.0 / 39916800)))));
  const double c = 1.0 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 +
                   z * (1.0 / 479001600))))));
  const u32 quadrant = (u32)shifted.u & 3;
  const double c_abs = quadrant & 1 ? s : c, s_abs = quadrant & 1 ? c : s;
  cos = (float)(quadrant == 1 || quadrant == 2 ? -c_abs : c_abs);
  sin = (float)(quadrant >= 2 ? -s_abs : s_abs);
}

KERNEL(256, rope_angles, RopeAnglesArgs) {
  pdl_launch(); pdl_wait();
  const u64 index = (u64)bid_x() * 256 + (u32)tid_x();
  if (index >= (u64)a.rows * a.num_pairs) return;
  const u32 row = (u32)(index / a.num_pairs), pair = (u32)(index % a.num_pairs);
  const float angle = (float)a.positions[row] * a.inv_freq[pair];  // rounded to f32, as the models were trained
  float cos, sin;
  cos_sin(angle, cos, sin);
  float* out = a.out + (u64)row * 2 * a.num_pairs;
  out[pair] = cos * a.magnitude;
  out[a.num_pairs + pair] = sin * a.magnitude;
}

// ------------------------------------------------------------------------------------------------ rotation and store
DEV void store_cache(f16* at, float value) { *at = f2h(value); }
DEV void store_cache(float* at, float value) { *at = value; }

// A group of 32 lanes owns one head of q, k or v. A lane owns pairs of its elements, 32 pairs apart: the rotated ones,
// then the neighbours (2p, 2p + 1) of the rest, the last of which lacks its second where head_dim is odd.
template <class T> DEV void rope_store(const RopeStoreArgs& a) {
  constexpr u32 PAIRS = 4;                                         // of a lane: heads of up to 256
  const u32 row = (u32)bid_x(), head = (u32)bid_y() * ROPE_STORE_HEADS + ((u32)tid_x() >> 5), lane = (u32)tid_x() & 31;
  const u32 num_heads = a.num_heads + 2 * a.num_kv_heads, head_dim = a.head_dim;
  const bool is_head = head < num_heads, is_q = head < a.num_heads, is_v = head >= a.num_heads + a.num_kv_heads;
  float* x = a.qkv + ((u64)row * num_heads + (is_head ? head : 0)) * head_dim;

  float first[PAIRS], second[PAIRS], squares = 0;
  u32 at_first[PAIRS], at_second[PAIRS];
  #pragma unroll
  for (u32 i = 0; i < PAIRS; i++) {
    const u32 pair = lane + 32 * i;
    const bool halves = a.neox && pair < a.num_pairs;
    at_first[i] = halves ? pair : 2 * pair;
    at_second[i] = halves ? pair + a.num_pairs : 2 * pair + 1;
    first[i] = is_head && at_first[i] < head_dim ? x[at_first[i]] : 0.f;
    second[i] = is_head && at_second[i] < head_dim ? x[at_second[i]] : 0.f;
    squares = fma_(first[i], first[i], fma_(second[i], second[i], squares));
  }
  // All lanes take part in the sum, also those of a missing head: a wave may hold two groups.
  for (int m = 16; m; m >>= 1) squares += shfl_xor(squares, m);
  if (!is_head) return;

  const float* norm = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
  const float scale = fast_rsqrt(squares / (float)head_dim + a.eps);
  const u32 slot = is_q ? ~0u : a.slot_mapping[row];
  const u32 kv_head = is_q ? 0 : (head - a.num_heads) % a.num_kv_heads;
  T* cache = (T*)(is_v ? a.v_cache : a.k_cache);
  if (slot != ~0u)
    cache += (((u64)(slot / a.block_size) * a.num_kv_heads + kv_head) * a.block_size + slot % a.block_size) * head_dim;
  const float* cos = a.angles + (u64)row * 2 * a.num_pairs;
  const float* sin = cos + a.num_pairs;
  #pragma unroll
  for (u32 i = 0; i < PAIRS; i++) {
    const u32 pair = lane + 32 * i, p = at_first[i], q = at_second[i];
    if (p >= head_dim) break;
    float u = first[i], v = second[i];
    if (norm) {
      u = u * scale * norm[p];
      if (q < head_dim) v = v * scale * norm[q];
    }
    if (pair < a.num_pairs && !is_v) {
      const float c = cos[pair], s = sin[pair], rotated = fma_(u, c, -(v * s));
      v = fma_(u, s, v * c);
      u = rotated;
    }
    if (!is_v) {
      x[p] = u;
      if (q < head_dim) x[q] = v;
    }
    if (slot == ~0u) continue;
    store_cache(cache + p, u);
    if (q < head_dim) store_cache(cache + q, v);
  }
}

KERNEL(32 * ROPE_STORE_HEADS, rope_store_f16, RopeStoreArgs) {
  pdl_launch(); pdl_wait();
  rope_store<f16>(a);
}
KERNEL(32 * ROPE_STORE_HEADS, rope_store_f32, RopeStoreArgs) {
  pdl_launch(); pdl_wait();
  rope_store<float>(a);
}
