// A head of q or k as attention wants it, straight from the projection: RMSNorm where given, then rotation. For lanes
// that own eight neighbouring columns each. The sums are those of rope_store (rope.hip) up to rounding.
#pragma once
#include "attention.h"

// cos and sin for a lane's columns, negative where the column is the first of its pair; 1 and 0 where nothing is
// rotated. So every column is x * cos + partner * sin.
struct Angles {
  float cos[8], sin[8];

  MEMBER void load(const AttentionArgs& a, u32 row, u32 column) {
    const float* angles = a.angles + (u64)row * 2 * a.num_pairs;
    #pragma unroll
    for (u32 j = 0; j < 8; j++) {
      const u32 c = column + j;
      const bool rotated = c < 2 * a.num_pairs, first = a.neox ? c < a.num_pairs : c % 2 == 0;
      const u32 pair = !a.neox ? c / 2 : first ? c : c - a.num_pairs;
      const float s = rotated ? angles[a.num_pairs + pair] : 0.f;
      cos[j] = rotated ? angles[pair] : 1.f;
      sin[j] = first ? -s : s;
    }
  }
};

// The columns that eight columns are rotated with.
DEV void load_partners(const AttentionArgs& a, const float* head, u32 column, const float* x, float* partner) {
  const bool aligned = is_aligned(head, 16);
  if (!a.neox) {
    #pragma unroll
    for (u32 j = 0; j < 8; j++) partner[j] = x[j ^ 1];
    return;
  }
  #pragma unroll
  for (u32 i = 0; i < 8; i += 4) {
    // Of unrotated columns anything will do, times 0: but it must be a number, so it is one of the head's.
    const u32 c = column + i, other = c < a.num_pairs ? c + a.num_pairs : c < 2 * a.num_pairs ? c - a.num_pairs : c;
    if (a.num_pairs % 4 == 0) {
      const Four four = load_four(head, aligned, other, a.head_dim);
      #pragma unroll
      for (u32 j = 0; j < 4; j++) partner[i + j] = four.v[j];
    } else {
      #pragma unroll
      for (u32 j = 0; j < 4; j++) {
        const u32 at = c + j, p = at < a.num_pairs ? at + a.num_pairs : at < 2 * a.num_pairs ? at - a.num_pairs : at;
        partner[i + j] = p < a.head_dim ? head[p] : 0.f;
      }
    }
  }
}

// `head` normed with `norm`, where given, and rotated. LANES lanes have the whole of it.
template <u32 LANES>
DEV void load_rotated(const AttentionArgs& a, const float* head, const float* norm, const Angles& angles, u32 column,
                      float* x) {
  float partner[8];
  load_eight(head, column, a.head_dim, x);
  load_partners(a, head, column, x, partner);
  if (norm) {
    float squares = 0.f, weight[8], partner_weight[8];
    load_eight(norm, column, a.head_dim, weight);
    load_partners(a, norm, column, weight, partner_weight);
    #pragma unroll
    for (u32 j = 0; j < 8; j++) squares = fma_(x[j], x[j], squares);
    for (u32 m = LANES / 2; m; m >>= 1) squares += shfl_xor(squares, (int)m);
    const float scale = fast_rsqrt(squares / (float)a.head_dim + a.eps);
    #pragma unroll
    for (u32 j = 0; j < 8; j++) { x[j] = x[j] * scale * weight[j]; partner[j] = partner[j] * scale * partner_weight[j]; }
  }
  #pragma unroll
  for (u32 j = 0; j < 8; j++) x[j] = fma_(x[j], angles.cos[j], partner[j] * angles.sin[j]);
}

// K and V of a new token, rounded as the cache holds them.
template <class T> struct NewKey {
  Eight<T> k, v;
  u32 slot;                // ~0: nowhere

  template <u32 LANES>
  MEMBER void load(const AttentionArgs& a, u32 row, u32 kv_head, const Angles& angles, u32 column) {
    const float* k_head = a.qkv + ((u64)row * (a.num_heads + 2 * a.num_kv_heads) + a.num_heads + kv_head) * a.head_dim;
    const float* v_head = k_head + (u64)a.num_kv_heads * a.head_dim;
    float x[8];
    slot = a.slot_mapping[row];
    load_rotated<LANES>(a, k_head, a.k_norm, angles, column, x);
    k.round(x);
    load_eight(v_head, column, a.head_dim, x);
    v.round(x);
  }

  // Into the cache, by the lanes that have the columns.
  MEMBER void store(const AttentionArgs& a, u32 kv_head, u32 column) const {
    if (slot == ~0u || column >= a.head_dim) return;
    const u64 at = (((u64)(slot / a.block_size) * a.num_kv_heads + kv_head) * a.block_size + slot % a.block_size) *
                       a.head_dim + column;
    k.store((T*)a.k_cache + at, a.head_dim, column);
    v.store((T*)a.v_cache + at, a.head_dim, column);
  }
};
