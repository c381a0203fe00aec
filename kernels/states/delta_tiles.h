// Shared by the kernels of gated delta nets over tiles of tokens: the gates of a tile.
#pragma once
#include "delta_net.h"
#include "state_tiles.h"

constexpr u32 KEY_SIZE = DELTA_NET_KEY_SIZE;

struct alignas(16) Gates {
  float beta[TILE];
  u32 age[TILE];
};
static_assert(4 * PAIRS * sizeof(u16) + sizeof(Gates) == DELTA_NET_PAIRS_BYTES, "what a tile and head have in memory");

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
    age[i] = age_of(own.log_decay);
    if (lane < 32) {
      gates.beta[token + i] = own.beta;
      sequences[token + i] = sequence;
    }
  }
  add_up_ages(age);
  if (lane < 32) {
    gates.age[token] = age[0];
    gates.age[token + 1] = age[1];
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
