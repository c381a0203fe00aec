// Draws a random token of a row of logits, without sorting the row.
//
// A token's weight is exp((logit - largest) * per_logit). The drawn token is the one at which the weights, added up
// from the best token on, reach a random share of their sum. top_p is an earlier cut of the same kind. top_k is a cut
// before these two, in which every token counts as one.
//
// Weights are integer multiples of 2^-DRAW_FRACTION_BITS here. A sum is therefore the same in any order of additions.
// Sums are kept by bucket, an interval of logits. In the one bucket where the sum reaches the share, all pairs of
// tokens are compared.
//
// The host verifies the token with the same weights in double precision, so a weight must have the host's bits.
#pragma once
#include "logits.h"

// A token, and the sum of the weights of all better ones, in units of 2^-DRAW_FRACTION_BITS. Its id is ~0 if it was not
// found.
struct Cut {
  u32 token;
  float logit;
  u64 before;
};
struct Drawn {
  float largest;          // NaN if the row holds one
  u64 total;              // the sum of all weights; 0 if the cut by top_k was not found
  Cut last_kept;          // by top_p, if that is below 1
  Cut drawn;
};

constexpr u32 BUCKETS = 2 * THREADS;
constexpr Cut NO_CUT{~0u, 0.f, 0};
constexpr float WEIGHT_ONE = (float)(1ull << DRAW_FRACTION_BITS);

// e^x for x <= 0: `exp_nonpositive` of the Rust side, operation by operation.
DEV float exp_nonpositive(float x) {
  // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, which is then in the low mantissa bits.
  constexpr float ROUND = 12582912.f, SMALLEST = -87.33f;
  const float clamped = x > SMALLEST ? x : SMALLEST;
  const float shifted = add_rn(mul_rn(clamped, LOG2E), ROUND);
  const float n = add_rn(shifted, -ROUND);
  const float r = add_rn(add_rn(clamped, -mul_rn(n, 0.693359375f)), -mul_rn(n, -2.12194440e-4f));
  float p = add_rn(mul_rn(1.f / 5040.f, r), 1.f / 720.f);
  p = add_rn(mul_rn(p, r), 1.f / 120.f);
  p = add_rn(mul_rn(p, r), 1.f / 24.f);
  p = add_rn(mul_rn(p, r), 1.f / 6.f);
  p = add_rn(mul_rn(p, r), 0.5f);
  p = add_rn(mul_rn(p, r), 1.f);
  p = add_rn(mul_rn(p, r), 1.f);
  const u32 exponent = (f32_bits(shifted) - f32_bits(ROUND) + 127) << 23;
  return x > SMALLEST ? mul_rn(p, bits_f32(exponent)) : 0.f;
}

// The largest and the smallest finite logit of a row. If there is none, the smallest is +infinity.
struct Extremes {
  float largest, smallest;
  u32 nan;
};

DEV Extremes extremes_of(const Share& row) {
  SHARED float largest[WAVES], smallest[WAVES];
  SHARED u32 nans[WAVES];
  Extremes e{-F32_INFINITY, F32_INFINITY, 0};
  for (u32 start = 0; start < row.end; start += CHUNK) {
    float v[PER_THREAD];
    load_chunk(row, start, v);
    UNROLL
    for (u32 i = 0; i < PER_THREAD; i++) {
      e.nan |= v[i] != v[i];
      if (v[i] > e.largest) e.largest = v[i];
      if (v[i] < e.smallest && v[i] > -F32_INFINITY) e.smallest = v[i];
    }
  }
  e.largest = warp_max(e.largest);
  e.smallest = -warp_max(-e.smallest);
  e.nan = warp_ballot(e.nan) != 0;
  const u32 wave = (u32)tid_x() / WARP;
  if (lane_id() == 0) { largest[wave] = e.largest; smallest[wave] = e.smallest; nans[wave] = e.nan; }
  block_sync();
  for (u32 i = 0; i < WAVES; i++) {
    e.largest = fmax_(e.largest, largest[i]);
    e.smallest = -fmax_(-e.smallest, -smallest[i]);
    e.nan |= nans[i];
  }
  return e;
}

// Weights and buckets of a row's tokens.
struct Scale {
  float largest, range;     // tokens further than `range` below the largest logit have weight 0
  float per_logit, min_p;
  float buckets_per_logit;  // finite
  u64 least = 0;            // tokens with smaller keys are out of play
  u64 most = ~0ull;         // the limit of a token's part; 1 counts tokens

  MEM Scale(const Extremes& e, const DrawRow& request) : largest(e.largest), per_logit(request.per_logit), min_p(request.min_p) {
    const float lightest = (DRAW_FRACTION_BITS * 0.693147181f + 0.1f) / per_logit, all = largest - e.smallest;
    range = all < lightest ? all : lightest;
    const float fine = (float)BUCKETS / range;
    buckets_per_logit = fine < 3e38f ? fine : 3e38f;
  }
  // Returns a token's part of a sum; 0 if it is out of play.
  MEM u64 part(float logit, u32 id) const {
    const float below = largest - logit;
    if (!(below <= range)) return 0;
    const float w = exp_nonpositive(mul_rn(-below, per_logit));
    if (!(w >= min_p) || token_key(logit, id) < least) return 0;
    const u64 whole = (u64)(w * WEIGHT_ONE);     // in units of 2^-DRAW_FRACTION_BITS, rounded down
    return whole < most ? whole : most;
  }
  // Returns a token's bucket. A better token is never in a later bucket: every operation is monotonic, including its
  // rounding.
  MEM u32 bucket(float logit) const {
    const float place = (largest - logit) * buckets_per_logit;
    return place < (float)(BUCKETS - 1) ? (u32)place : BUCKETS - 1;
  }
};

// Adds each token's part to its bucket: the sum of bucket i is sums[i + 1], and sums[0] is 0.
DEV void fill_buckets(const Share& row, const Scale& scale, u64* sums) {
  for (u32 i = (u32)tid_x(); i <= BUCKETS; i += THREADS) sums[i] = 0;
  block_sync();
  for (u32 start = 0; start < row.end; start += CHUNK) {
    float v[PER_THREAD];
    load_chunk(row, start, v);
    UNROLL
    for (u32 i = 0; i < PER_THREAD; i++) {
      const u64 part = scale.part(v[i], token_id(start, i));
      if (part > 0) lds_add_u64(sums + 1 + scale.bucket(v[i]), part);
    }
  }
  block_sync();
}

// Replaces the sums by their prefix sums: sums[i] is then the sum of all buckets before i. Returns the total.
DEV u64 run_sums(u64* sums) {
  SHARED u64 waves[WAVES];
  const u32 t = (u32)tid_x(), lane = (u32)lane_id(), wave = t / WARP;
  const u64 first = sums[2 * t + 1], both = first + sums[2 * t + 2];
  u64 up_to = both;                       // of this wave, including the previous lanes
  for (u32 m = 1; m < WARP; m *= 2) {
    const int from = (int)(lane < m ? lane : lane - m);
    const u64 before = (u64)shfl_u32((u32)(up_to >> 32), from) << 32 | shfl_u32((u32)up_to, from);
    if (lane >= m) up_to += before;
  }
  if (lane == WARP - 1) waves[wave] = up_to;
  block_sync();
  u64 all = 0;
  for (u32 i = 0; i < WAVES; i++) {
    if (i == wave) up_to += all;
    all += waves[i];
  }
  sums[2 * t + 1] = up_to - both + first;
  sums[2 * t + 2] = up_to;
  block_sync();
  return all;
}

// Returns the value that the running sum must reach at the wanted token.
DEV u64 part_of(u64 sum, double share) {
  const u64 part = (u64)((double)sum * share) + 1;
  return part < sum ? part : sum;
}

// Finds the token at which the running sum reaches `part`, and returns the sum up to and including it. If its bucket
// holds more tokens than there are threads, it finds none and returns 0.
DEV u64 find_cut(const Share& row, const Scale& scale, const u64* sums, u64 part, Cut& cut) {
  SHARED u64 keys[THREADS], parts[THREADS], reached;
  SHARED u32 reached_in, count;
  SHARED Cut at_part;
  const u32 t = (u32)tid_x();
  if (t == 0) { count = 0; reached = 0; at_part = NO_CUT; }
  for (u32 i = t; i < BUCKETS; i += THREADS) {
    if (sums[i] < part && part <= sums[i + 1]) reached_in = i;
  }
  block_sync();
  const u32 bucket = reached_in;
  for (u32 start = 0; start < row.end; start += CHUNK) {
    float v[PER_THREAD];
    load_chunk(row, start, v);
    UNROLL
    for (u32 i = 0; i < PER_THREAD; i++) {
      if (scale.bucket(v[i]) != bucket) continue;
      const u64 part = scale.part(v[i], token_id(start, i));
      if (part == 0) continue;
      const u32 at = atomic_add_u32(&count, 1);
      if (at < THREADS) { keys[at] = token_key(v[i], token_id(start, i)); parts[at] = part; }
    }
  }
  block_sync();
  if (count <= THREADS && t < count) {
    u64 before = sums[bucket];
    for (u32 i = 0; i < count; i++) before += keys[i] > keys[t] ? parts[i] : 0;
    const u64 with = before + parts[t];
    if (before < part && part <= with) {
      at_part = Cut{key_id(keys[t]), key_logit(keys[t]), before};
      reached = with;
    }
  }
  block_sync();
  const u64 with = reached;
  cut = at_part;
  block_sync();                          // all have read it before it is reset
  return with;
}

DEV void draw_token(const Share& row, const DrawRow& request, Drawn& found) {
  SHARED u64 sums[BUCKETS + 1];
  const bool first = tid_x() == 0;
  const Extremes e = extremes_of(row);
  if (first) {
    found.largest = e.nan ? F32_NAN : e.largest;
    found.total = 0;
    found.last_kept = found.drawn = NO_CUT;
  }
  // An infinite logit has no finite difference to the others; the host handles it.
  if (e.nan || !is_finite(e.largest)) return;
  Scale scale(e, request);
  // The cuts run in a loop, so that their code exists once and leaves registers for it.
  enum { TOP_K, TOP_P, DRAW };
  u64 kept = 0;
  for (u32 cut_by = request.top_k > 0 ? TOP_K : TOP_P; cut_by <= DRAW; cut_by++) {
    scale.most = cut_by == TOP_K ? 1 : ~0ull;
    if (cut_by != DRAW) {
      fill_buckets(row, scale, sums);
      kept = run_sums(sums);
      if (first && cut_by == TOP_P) found.total = kept;
    }
    if (cut_by == TOP_K ? kept <= request.top_k : cut_by == TOP_P && request.top_p >= 1.0) continue;
    const u64 part = cut_by == TOP_K ? request.top_k : part_of(kept, cut_by == TOP_P ? request.top_p : request.uniform);
    Cut cut;
    kept = find_cut(row, scale, sums, part, cut);
    if (kept == 0) return;
    if (cut_by == TOP_K) {
      scale.least = token_key(cut.logit, cut.token);
    } else if (first) {
      // Only one thread writes to memory, so its stores stay in order.
      (cut_by == TOP_P ? found.last_kept : found.drawn) = cut;
    }
  }
}
