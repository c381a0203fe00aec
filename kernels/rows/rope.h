// A head of q, k or v in the registers of a group of lanes: loads, RMSNorm, rotation, stores.
#pragma once
#include "args.h"
#include "elementary.h"
#include "kv_cache.h"

// The pairs of a head's elements: the rotated ones, then adjacent elements (2p, 2p + 1) of the rest. If head_dim is
// odd, the last pair has no second element.
struct PairLayout {
  u32 head_dim, num_pairs;
  bool neox;
  bool words;                // the elements of pairs p and p + 1, p even, are contiguous: two by two, or all four

  MEM bool halves(u32 pair) const { return neox && pair < num_pairs; }
  MEM u32 first(u32 pair) const { return halves(pair) ? pair : 2 * pair; }
  MEM u32 second(u32 pair) const { return halves(pair) ? pair + num_pairs : 2 * pair + 1; }
};

// Elements of pairs p and p + 1 of a head, p even; zeros for missing elements.
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
  // Called after all loads were issued, since it waits for them. In NEOX order, two first elements were loaded, then
  // two second ones.
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

// A lane of LANES owns two pairs of every 2 * LANES of its group's head, which has up to SIZE elements.
template <u32 SIZE, u32 LANES = 32> struct GroupHead {
  static constexpr u32 TURNS = SIZE <= 8 * LANES ? 2 : SIZE / (4 * LANES);
  PairLayout at, angle_at;
  TwoPairs pairs[TURNS], angles[TURNS];
  u32 first_pair;

  MEM u32 pair(u32 turn) const { return first_pair + 2 * LANES * turn; }

  // Neither `load` nor `load_angles` waits for its loads. `exists`: false if there is no such head; x is then not read.
  MEM void load(const float* x, bool exists, u32 head_dim, u32 num_pairs, bool neox) {
    at = {head_dim, num_pairs, neox, head_dim % 4 == 0 && num_pairs % 2 == 0};
    first_pair = 2 * (recomputed(tid_x()) & (LANES - 1));
    #pragma unroll
    for (u32 i = 0; i < TURNS; i++) pairs[i].load(at, x, exists ? pair(i) : head_dim);
  }
  // Loads cos and sin of a row, [2 * num_pairs]; nothing if the head is not rotated.
  MEM void load_angles(const float* row, bool rotates) {
    // A row of angles has the layout of a fully rotated head: cos of a pair is its first element, sin the second.
    angle_at = {2 * at.num_pairs, at.num_pairs, true, at.words};
    #pragma unroll
    for (u32 i = 0; i < TURNS; i++) angles[i].load(angle_at, row, rotates ? pair(i) : at.num_pairs);
  }
  // Waits for the head.
  MEM void arrange() {
    #pragma unroll
    for (u32 i = 0; i < TURNS; i++) pairs[i].arrange(at, pair(i));
  }
  // Returns 1 / rms of the head. All lanes of a wave call it, which may hold several groups.
  MEM float scale_of_norm(float eps) const {
    float squares = 0.f;
    #pragma unroll
    for (u32 i = 0; i < 2 * TURNS; i++) {
      const float u = pairs[i / 2].first[i % 2], v = pairs[i / 2].second[i % 2];
      squares = fma_(u, u, fma_(v, v, squares));
    }
    squares = sum_lanes<LANES>(squares);
    return fast_rsqrt(squares / (float)at.head_dim + eps);
  }
  // All lanes of a wave call it. With `weights` null this group's head is unchanged.
  MEM void normalize(const float* weights, float eps) {
    const float scale = scale_of_norm(eps);
    #pragma unroll
    for (u32 i = 0; i < TURNS && weights; i++) {
      TwoPairs w;
      w.load(at, weights, pair(i));
      w.arrange(at, pair(i));
      #pragma unroll
      for (u32 j = 0; j < 2; j++) {
        pairs[i].first[j] = pairs[i].first[j] * scale * w.first[j];
        pairs[i].second[j] = pairs[i].second[j] * scale * w.second[j];
      }
    }
  }
  MEM void rotate() {
    #pragma unroll
    for (u32 i = 0; i < TURNS; i++) {
      angles[i].arrange(angle_at, pair(i));
      #pragma unroll
      for (u32 j = 0; j < 2; j++) {
        if (pair(i) + j >= at.num_pairs) continue;
        const float u = pairs[i].first[j], v = pairs[i].second[j], c = angles[i].first[j], s = angles[i].second[j];
        pairs[i].first[j] = fma_(u, c, -(v * s));
        pairs[i].second[j] = fma_(u, s, v * c);
      }
    }
  }
  MEM void multiply(float factor) {
    #pragma unroll
    for (u32 i = 0; i < 2 * TURNS; i++) {
      pairs[i / 2].first[i % 2] *= factor;
      pairs[i / 2].second[i % 2] *= factor;
    }
  }
  // Rounds the elements to integers up to LEVELS and returns their scale: NaN if an element is NaN. All lanes of a wave
  // call it. If not `rounds`, this group's head is unchanged.
  MEM float round_to_levels(bool rounds) {
    u32 largest = 0;         // bits of magnitudes have the order of the magnitudes, with NaN above all
    const auto see = [&](float x) {
      const u32 bits = f32_bits(x) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    };
    #pragma unroll
    for (u32 i = 0; i < 2 * TURNS; i++) { see(pairs[i / 2].first[i % 2]); see(pairs[i / 2].second[i % 2]); }
    const float top = bits_f32(max_lanes<LANES>(largest)), levels = top > 0.f ? LEVELS / top : 0.f;
    #pragma unroll
    for (u32 i = 0; i < 2 * TURNS && rounds; i++) {
      pairs[i / 2].first[i % 2] = rint_(pairs[i / 2].first[i % 2] * levels);
      pairs[i / 2].second[i % 2] = rint_(pairs[i / 2].second[i % 2] * levels);
    }
    return top / LEVELS;
  }
  template <class T> MEM void store(T* to) const {
    #pragma unroll
    for (u32 i = 0; i < TURNS; i++) pairs[i].store(at, to, pair(i));
  }
};

// Turns the projected values of row `row` into q or k. V is unchanged, as is a head that is neither. All lanes of a
// wave call it. PLAIN: no norms after RoPE and no temperature. It is for a kernel of microseconds, where even
// instructions that are not executed cost time: they separate those that are.
template <bool PLAIN, u32 SIZE, u32 LANES>
DEV void apply(const RotationArgs& r, GroupHead<SIZE, LANES>& head, u32 row, bool is_q, bool is_k) {
  const bool norms = r.q_norm || r.k_norm, norms_last = !PLAIN && (r.flags & ROTATION_NORMS_LAST) != 0;
  const float* weights = is_q ? r.q_norm : is_k ? r.k_norm : nullptr;
  if (norms && !norms_last) head.normalize(weights, r.eps);
  if (is_q || is_k) head.rotate();
  if (PLAIN) return;
  if (norms && norms_last) head.normalize(weights, r.eps);
  if (r.temperature != 0.f && is_q) {
    const u32 contexts = (ld_step(r.positions + row) + r.temperature_offset) / r.temperature_context;
    head.multiply(1.f + r.temperature * log_accurate(1.f + (float)contexts));
  }
}
