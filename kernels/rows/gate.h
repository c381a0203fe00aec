// Eight columns of a gated activation.
#pragma once
#include "activation.h"
#include "elementary.h"

// Eight columns of a row as in memory, all loaded at once, and as numbers.
struct EightF32 {
  static constexpr u32 BYTES = 4;
  v4 low, high;
  MEM void load(const void* row, u32 c) { low = ld16((const float*)row + c); high = ld16((const float*)row + c + 4); }
  MEM float get(u32 i) const {
    const u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    return bits_f32(w[i]);
  }
};
template <bool BF16> struct EightHalves {
  static constexpr u32 BYTES = 2;
  v4 words;
  MEM void load(const void* row, u32 c) { words = ld16((const u16*)row + c); }
  // A product outside the range of f16 has become infinite. It saturates, like all stores of these kernels, and gives
  // no NaN.
  MEM float get(u32 i) const {
    const u32 w[4] = {words.x, words.y, words.z, words.w}, pair = BF16 ? w[i / 2] : hclamp2(w[i / 2]);
    const u16 half = (u16)(pair >> i % 2 * 16);
    return BF16 ? bf2f(half) : h2f(half);
  }
};
template <class Eight, u32 ACTIVATION> DEV void gate_eight(const GatedArgs& a, u32 row, u32 c, float* y) {
  const u8* gate_up = (const u8*)a.gate_up + (u64)row * 2 * a.cols * Eight::BYTES;
  Eight gate, up;
  gate.load(gate_up, c);
  up.load(gate_up + (u64)a.cols * Eight::BYTES, c);
  loads_first();
  #pragma unroll
  for (u32 i = 0; i < 8; i++) {
    y[i] = gated(ACTIVATION == ACTIVATION_CLAMPED_SILU ? a.activation : ACTIVATION, gate.get(i), up.get(i));
  }
}
template <class Eight> DEV void gate_eight(const GatedArgs& a, u32 row, u32 c, float* y) {
  if (a.activation == ACTIVATION_SILU) gate_eight<Eight, ACTIVATION_SILU>(a, row, c, y);
  else if (a.activation == ACTIVATION_GELU) gate_eight<Eight, ACTIVATION_GELU>(a, row, c, y);
  else if (a.activation == ACTIVATION_GELU_ERF) gate_eight<Eight, ACTIVATION_GELU_ERF>(a, row, c, y);
  else if (a.activation == ACTIVATION_SQUARED_RELU) gate_eight<Eight, ACTIVATION_SQUARED_RELU>(a, row, c, y);
  else if (a.activation == ACTIVATION_CLAMPED_SWIGLU) gate_eight<Eight, ACTIVATION_CLAMPED_SWIGLU>(a, row, c, y);
  else gate_eight<Eight, ACTIVATION_CLAMPED_SILU>(a, row, c, y);
}
