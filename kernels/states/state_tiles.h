// Shared by the kernels of recurrent layers over tiles of 64 tokens: operands of the matrix units with the accuracy of
// floats, and the decay of a state within a tile.
#pragma once
#include "mma.h"
#include "states.h"

constexpr u32 TILE = STATE_TILE;
// Elements of a matrix of the token pairs of a tile.
constexpr u32 PAIRS = TILE * TILE;

DEV u32 wave() { return (u32)tid_x() / WARP; }

// ------------------------------------------------------------------------------------------------ pairs of halves
// Operands are pairs of halves, with 22 bits of a number, so that states stay as accurate as those of the walk. They
// are multiplied by 8. So the low halves of small numbers (elements of q are about 0.01) keep their bits above the
// smallest half. In sums of products UNIT means 1. Operands saturate at 8,000.
constexpr float OPERAND = 8.f, UNIT = OPERAND * OPERAND;

struct Halves { u16 high, low; };
DEV Halves halves(float x) {
  const float scaled = x * OPERAND;
  const u16 high = f2h_sat(scaled);
  return {high, f2h_sat(scaled - h2f(high))};
}

// Stores four numbers: the high halves to `to`, the low halves at distance `low` elements.
DEV void store_four(u16* to, u32 low, const Four& x) {
  const Halves a = halves(x.v[0]), b = halves(x.v[1]), c = halves(x.v[2]), d = halves(x.v[3]);
  *(v2*)to = v2{a.high | (u32)b.high << 16, c.high | (u32)d.high << 16};
  *(v2*)(to + low) = v2{a.low | (u32)b.low << 16, c.low | (u32)d.low << 16};
}

// 16 rows and 16 columns of a left operand.
struct Rows { MmaA high, low; };
DEV void load_rows(Rows& to, const u16* a, u32 a_low, u32 a_stride) {
  mma_load(to.high, a, a_stride);
  mma_load(to.low, a + a_low, a_stride);
}

// acc[n] += UNIT * a * b[n]^T over 16 columns; the tiles of b are contiguous. Products of two low halves are below the
// last bit of the rest.
template <u32 N> DEV void multiply(float (*acc)[MMA_ACC], const Rows& a, const u16* b, u32 b_low, u32 b_stride) {
  #pragma unroll
  for (u32 n = 0; n < N; n++) {
    MmaB of_high, of_low;
    mma_load(of_high, b + n * 16 * b_stride, b_stride);
    mma_load(of_low, b + b_low + n * 16 * b_stride, b_stride);
    mma<false>(acc[n], a.high, of_high);
    mma<false>(acc[n], a.high, of_low);
    mma<false>(acc[n], a.low, of_high);
  }
}
template <u32 N>
DEV void multiply(float (*acc)[MMA_ACC], const u16* a, u32 a_low, u32 a_stride, const u16* b, u32 b_low, u32 b_stride) {
  Rows rows;
  load_rows(rows, a, a_low, a_stride);
  multiply<N>(acc, rows, b, b_low, b_stride);
}

// ------------------------------------------------------------------------------------------------ ages
// The decay of a state from the beginning of a tile to the end of each of its tokens, as -ln in integer multiples of
// 2^-21. Differences are exact, so that a long decay before two tokens costs no accuracy between them. The decay of one
// token is limited to 30, where e^-30 leaves nothing.
constexpr float AGE_UNIT = 1.f / 2097152.f, MOST_AGE = 30.f;

DEV float decay_between(u32 younger, u32 older) { return exp_accurate(-(float)(older - younger) * AGE_UNIT); }

// Replaces the ages of single tokens by those from the beginning of the tile on. 32 lanes have two tokens each.
DEV void add_up_ages(u32 (&age)[2]) {
  const u32 lane = (u32)lane_id();
  u32 sum = age[0] + age[1];
  #pragma unroll
  for (int m = 1; m < 32; m <<= 1) {
    const u32 before = shfl_u32(sum, (int)lane - m);
    if (lane % 32 >= (u32)m) sum += before;
  }
  age[0] = sum - age[1];
  age[1] = sum;
}

// Returns the age of one token, whose state decays by e^log_decay.
DEV u32 age_of(float log_decay) {
  const float decayed = -log_decay;
  return (u32)((decayed < MOST_AGE ? decayed : MOST_AGE) / AGE_UNIT + 0.5f);
}
