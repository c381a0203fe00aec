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
// Two or four neighbours at a time, where all heads begin at a multiple of so many.
DEV void store_cache(f16* at, float x) { *at = f2h(x); }
DEV void store_cache(float* at, float x) { *at = x; }
DEV void store_cache(f16* at, float x, float y) { *(u32*)at = f2h(x) | (u32)f2h(y) << 16; }
DEV void store_cache(float* at, float x, float y) { *(v2*)at = {f32_bits(x), f32_bits(y)}; }
DEV void store_cache(f16* at, float x, float y, float z, float w) {
  *(v2*)at = {f2h(x) | (u32)f2h(y) << 16, f2h(z) | (u32)f2h(w) << 16};
}
DEV void store_cache(float* at, float x, float y, float z, float w) {
  *(v4*)at = {f32_bits(x), f32_bits(y), f32_bits(z), f32_bits(w)};
}

// How a head's elements make up pairs: the rotated ones, then the neighbours (2p, 2p + 1) of the rest, the last of them
// without its second where head_dim is odd.
struct PairLayout {
  u32 head_dim, num_pairs;
  bool neox;
  bool words;                // of pairs p and p + 1, p even, the elements lie together: two by two, or all four

  MEM bool halves(u32 pair) const { return neox && pair < num_pairs; }
  MEM u32 first(u32 pair) const { return halves(pair) ? pair : 2 * pair; }
  MEM u32 second(u32 pair) const { return halves(pair) ? pair + num_pairs : 2 * pair + 1; }
};

// Elements of pairs p and p + 1 of a head, p even; zeros where there are none.
struct TwoPairs {
  float first[2], second[2];

  MEM void load(const PairLayout& at, const float* x, u32 pair) {
    v2 low = {0, 0}, high = {0, 0};
    if (!at.words) {
      u32 w[4] = {};
      #pragma unroll
      for (u32 i = 0; i < 2; i++) {
        const u32 p = at.first(pair + i), q = at.second(pair + i);
        if (p < at.head_dim) w[2 * i] = f32_bits(x[p]);
        if (q < at.head_dim) w[2 * i + 1] = f32_bits(x[q]);
      }
      low = {w[0], w[1]};
      high = {w[2], w[3]};
    } else if (at.halves(pair)) {
      low = ld8(x + pair);
      high = ld8(x + pair + at.num_pairs);
    } else if (2 * pair < at.head_dim) {
      const v4 w = ld16(x + 2 * pair);
      low = {w.x, w.y};
      high = {w.z, w.w};
    }
    first[0] = bits_f32(low.x); second[0] = bits_f32(low.y);
    first[1] = bits_f32(high.x); second[1] = bits_f32(high.y);
  }
  // To be called once all loads are on their way, since it waits for them: of halves, the two firsts were loaded, then
  // the two seconds.
  MEM void arrange(const PairLayout& at, u32 pair) {
    if (!at.words || !at.halves(pair)) return;
    const float x = second[0];
    second[0] = first[1];
    first[1] = x;
  }
  template <class T> MEM void store(const PairLayout& at, T* x, u32 pair) const {
    if (!at.words) {
      #pragma unroll
      for (u32 i = 0; i < 2; i++) {
        const u32 p = at.first(pair + i), q = at.second(pair + i);
        if (p < at.head_dim) store_cache(x + p, first[i]);
        if (q < at.head_dim) store_cache(x + q, second[i]);
      }
    } else if (at.halves(pair)) {
      store_cache(x + pair, first[0], first[1]);
      store_cache(x + pair + at.num_pairs, second[0], second[1]);
    } else if (2 * pair < at.head_dim) {
      store_cache(x + 2 * pair, first[0], second[0], first[1], second[1]);
    }
  }
};

// A group of 32 lanes owns one head of q, k or v. A lane owns two pairs of every 64.
template <class T> DEV void rope_store(const RopeStoreArgs& a) {
  constexpr u32 TURNS = 2;                                         // heads of up to 256
  const u32 row = (u32)bid_x(), head = (u32)bid_y() * ROPE_STORE_HEADS + ((u32)tid_x() >> 5), lane = (u32)tid_x() & 31;
  const u32 num_heads = a.num_heads + 2 * a.num_kv_heads, head_dim = a.head_dim;
  const bool is_head = head < num_heads, is_q = head < a.num_heads, is_v = head >= a.num_heads + a.num_kv_heads;
  const PairLayout at = {head_dim, a.num_pairs, a.neox != 0, head_dim % 4 == 0 && a.num_pairs % 2 == 0};
  float* x = a.qkv + ((u64)row * num_heads + head) * head_dim;
  const float* row_angles = a.angles + (u64)row * 2 * a.num_pairs;
  const u32 slot = is_head && !is_q ? a.slot_mapping[row] : ~0u;

  // A row of angles lies like a head that is rotated as a whole: cos of a pair is its first element, sin the second.
  const PairLayout angle_at = {2 * a.num_pairs, a.num_pairs, true, at.words};
  TwoPairs pairs[TURNS], angles[TURNS];
  #pragma unroll
  for (u32 i = 0; i < TURNS; i++) {
    const u32 pair = is_head ? 2 * lane + 64 * i : head_dim;       // no pair of a head that is missing
    pairs[i].load(at, x, pair);
    angles[i].load(angle_at, row_angles, is_v ? a.num_pairs : pair);
  }
  loads_first();
  #pragma unroll
  for (u32 i = 0; i < TURNS; i++) {
    pairs[i].arrange(at, 2 * lane + 64 * i);
    angles[i].arrange(angle_at, 2 * lane + 64 * i);
  }
  if (a.q_norm || a.k_norm) {                                      // all lanes: a wave may hold two groups
    float squares = 0.f;
    #pragma unroll
    for (u32 i = 0; i < 2 * TURNS; i++) {
      const float u = pairs[i / 2].first[i % 2], v = pairs[i / 2].second[i % 2];
      squares = fma_(u, u, fma_(v, v, squares));
    }
    for (int m = 16; m; m >>= 1) squares += shfl_xor(squares, m);
    const float scale = fast_rsqrt(squares / (float)head_dim + a.eps);
    const float* norm = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
    #pragma unroll
    for (u32 i = 0; i < TURNS && norm; i++) {
      TwoPairs weights;
      weights.load(at, norm, 2 * lane + 64 * i);
      weights.arrange(at, 2 * lane + 64 * i);
      #pragma unroll
      for (u32 j = 0; j < 2; j++) {
        pairs[i].first[j] = pairs[i].first[j] * scale * weights.first[j];
        pairs[i].second[j] = pairs[i].second[j] * scale * weights.second[j];
      }
    }
  }
  if (!is_head) return;

  T* cache = nullptr;
  if (slot != ~0u) {
    const u32 kv_head = head - a.num_heads - (is_v ? a.num_kv_heads : 0);
    cache = (T*)(is_v ? a.v_cache : a.k_cache) +
            (((u64)(slot / a.block_size) * a.num_kv_heads + kv_head) * a.block_size + slot % a.block_size) * head_dim;
  }
  #pragma unroll
  for (u32 i = 0; i < TURNS; i++) {
    const u32 pair = 2 * lane + 64 * i;
    #pragma unroll
    for (u32 j = 0; j < 2; j++) {
      if (is_v || pair + j >= a.num_pairs) continue;
      const float u = pairs[i].first[j], v = pairs[i].second[j], c = angles[i].first[j], s = angles[i].second[j];
      pairs[i].first[j] = fma_(u, c, -(v * s));
      pairs[i].second[j] = fma_(u, s, v * c);
    }
    if (!is_v) pairs[i].store(at, x, pair);
    if (cache) pairs[i].store(at, cache, pair);
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
