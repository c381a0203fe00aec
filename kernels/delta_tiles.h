// Shared by the kernels of gated delta nets over tiles of tokens: operands of the matrix units with the accuracy of
// floats, and the gates of a tile.
#pragma once
#include "delta_net.h"
#include "mma.h"

constexpr u32 TILE = DELTA_NET_TILE, KEY_SIZE = DELTA_NET_KEY_SIZE;
// Elements of one matrix of a tile in memory; T and P have two each, one of high and one of low halves.
constexpr u32 PAIRS = TILE * TILE;

DEV u32 wave() { return (u32)tid_x() / WARP; }

// ------------------------------------------------------------------------------------------------ pairs of halves
// Operands are pairs of halves, with 22 bits of a number, so that states stay as accurate as those of the walk. They
// are multiplied by 8, so that the low halves of small numbers (elements of q are about 0.01) keep their bits above the
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

// ------------------------------------------------------------------------------------------------ gates
// The decay of a state from the beginning of a tile to the end of each of its tokens, as -ln in integer multiples of
// 2^-21. Differences are exact, so that a long decay before two tokens costs no accuracy between them. The decay of one
// token is limited to 30, where e^-30 leaves nothing.
constexpr float AGE_UNIT = 1.f / 2097152.f, MOST_AGE = 30.f;

struct alignas(16) Gates {
  float beta[TILE];
  u32 age[TILE];
};
static_assert(4 * PAIRS * sizeof(u16) + sizeof(Gates) == DELTA_NET_PAIRS_BYTES, "what a tile and head have in memory");

DEV float decay_between(u32 younger, u32 older) { return exp_accurate(-(float)(older - younger) * AGE_UNIT); }

// The first wave computes the gates; 32 lanes have two tokens each.
DEV void make_gates(const DeltaNetArgs& a, u32 tile, u32 head, Gates& gates, u32 (&sequences)[TILE]) {
  if (wave() != 0) return;
  const u32 lane = (u32)lane_id(), token = lane % 32 * 2;
  u32 age[2];
  #pragma unroll
  for (u32 i = 0; i < 2; i++) {
    const u32 row = tile * TILE + token + i;
    HeadGates own = {0.f, 0.f};
    u32 sequence = NO_SEQUENCE;
    if (row < a.rows) {
      own = head_gates(a, row, head);
      sequence = ld_step(a.states.sequences + row);
    }
    const float decayed = -own.log_decay;
    age[i] = (u32)((decayed < MOST_AGE ? decayed : MOST_AGE) / AGE_UNIT + 0.5f);
    if (lane < 32) {
      gates.beta[token + i] = own.beta;
      sequences[token + i] = sequence;
    }
  }
  u32 sum = age[0] + age[1];
  #pragma unroll
  for (int m = 1; m < 32; m <<= 1) {
    const u32 before = shfl_u32(sum, (int)lane - m);
    if (lane % 32 >= (u32)m) sum += before;
  }
  if (lane < 32) {
    gates.age[token] = sum - age[1];
    gates.age[token + 1] = sum;
  }
}

// Returns four elements of q or k of a row, from `column` on; zeros if there is no row.
DEV Four key_four(const DeltaNetArgs& a, u32 row, u32 column) {
  Four x = {};
  if (row < a.rows) {
    const v4 words = ld16(a.convolved + (u64)row * channels(a) + column);
    x.v[0] = bits_f32(words.x); x.v[1] = bits_f32(words.y); x.v[2] = bits_f32(words.z); x.v[3] = bits_f32(words.w);
  }
  return x;
}

// T of a tile and head, followed by P and the gates. T and P are each the high halves of [TILE][TILE], then the low
// halves.
DEV u16* pairs_of(const DeltaNetArgs& a, u32 tile, u32 head) {
  return a.pairs + ((u64)tile * a.value_heads + head) * (DELTA_NET_PAIRS_BYTES / sizeof(u16));
}
DEV Gates* gates_of(u16* pairs) { return (Gates*)(pairs + 4 * PAIRS); }
