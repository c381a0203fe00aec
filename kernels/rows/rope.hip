// Rotary embedding: the table of angles; rotation of q and k with their norms, and the store into the KV cache.
#include "gpu.h"
#include "args.h"
#include "rope.h"

// ------------------------------------------------------------------------------------------------ angles
// cos and sin of x, accurate to the last bit of f32 for |x| < 2^27. Own code, because AMD's sin and cos instructions do
// no range reduction and no device library is linked. It uses no library function and no fma, so that all platforms
// agree.
DEV void cos_sin(double x, float& cos, float& sin) {
  // Adding 1.5 * 2^52 rounds to an integer, which is then in the low bits.
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
  const float angle = (float)ld_step(a.positions + row) * a.inv_freq[pair];  // rounded to f32, as in training
  float cos, sin;
  cos_sin(angle, cos, sin);
  float* out = a.out + (u64)row * 2 * a.num_pairs;
  out[pair] = cos * a.magnitude;
  out[a.num_pairs + pair] = sin * a.magnitude;
}

// ------------------------------------------------------------------------------------------------ rotation and store
// A group of LANES lanes has one head of q, k or v.
template <class T, u32 SIZE, u32 LANES> DEV void rope_store_heads(const RopeStoreArgs& a) {
  const u32 row = (u32)bid_x(), head = ((u32)bid_y() * ROPE_STORE_THREADS + (u32)tid_x()) / LANES;
  const u32 num_heads = a.num_heads + 2 * a.num_kv_heads;
  const bool is_head = head < num_heads, is_q = head < a.num_heads, is_v = head >= a.num_heads + a.num_kv_heads;
  // Heads of V are not rotated: their pairs are adjacent elements.
  const u32 dim = is_v ? a.value_dim : a.head_dim, v_head = head - a.num_heads - a.num_kv_heads;
  const u32 first = is_v ? (a.num_heads + a.num_kv_heads) * a.head_dim + v_head * dim : head * dim;
  float* x = a.qkv + (u64)row * a.row_cols + first;
  const RotationArgs& r = a.rotation;
  const u32 slot = is_head && !is_q ? ld_step(r.slot_mapping + row) : NO_SLOT;
  GroupHead<SIZE, LANES> mine;
  mine.load(x, is_head, dim, is_v ? 0 : r.num_pairs, (r.flags & ROTATION_NEOX) != 0);
  mine.load_angles(r.angles + (u64)row * 2 * r.num_pairs, !is_v);
  loads_first();
  mine.arrange();
  apply<false>(r, mine, row, is_q, !is_q && !is_v);
  const bool norms_v = (r.flags & ROTATION_NORM_V) != 0;
  if (norms_v) {
    const float scale = mine.scale_of_norm(r.eps);
    if (is_v) mine.multiply(scale);
  }
  if (is_head && (!is_v || norms_v)) mine.store(x);
  float scale = 0.f;
  if constexpr (HAS_SCALES<T>) scale = mine.round_to_levels(true);
  if (slot == NO_SLOT) return;
  const u32 kv_head = head - a.num_heads - (is_v ? a.num_kv_heads : 0);
  const u32 block = slot / a.block_size, token = slot % a.block_size;
  T* to = cache_head<T>(is_v ? a.v_cache : a.k_cache, block, kv_head, a.num_kv_heads, a.block_size, a.head_dim);
  mine.store(to + (u64)token * a.head_dim);
  if constexpr (HAS_SCALES<T>)
    if (((u32)tid_x() & (LANES - 1)) == 0) scales_of(to, a.block_size, a.head_dim)[token] = scale;
}

template <class T> DEV void rope_store(const RopeStoreArgs& a) {
  if (a.head_dim <= ROPE_STORE_SHORT) rope_store_heads<T, ROPE_STORE_SHORT, 16>(a);
  else if (a.head_dim <= 256) rope_store_heads<T, 256, 32>(a);
  else rope_store_heads<T, 512, 32>(a);
}

#define ROPE_STORE(type, suffix)                                     \
  KERNEL(ROPE_STORE_THREADS, rope_store_##suffix, RopeStoreArgs) {   \
    pdl_launch(); pdl_wait();                                        \
    rope_store<type>(a);                                             \
  }
ROPE_STORE(f16, f16)
ROPE_STORE(float, f32)
ROPE_STORE(i8, int8)
