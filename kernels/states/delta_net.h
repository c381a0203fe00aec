// Shared by the kernels of gated delta nets: the layout of a row, and its gates.
#pragma once
#include "states.h"

DEV u32 key_cols(const DeltaNetArgs& a) { return a.key_heads * a.key_size; }
DEV u32 value_cols(const DeltaNetArgs& a) { return a.value_heads * a.value_size; }
DEV u32 channels(const DeltaNetArgs& a) { return 2 * key_cols(a) + value_cols(a); }
// Columns of a row of projections.
DEV u32 projected_cols(const DeltaNetArgs& a) { return channels(a) + value_cols(a) + 2 * a.value_heads; }
DEV Inputs inputs_of(const DeltaNetArgs& a) {
  return {a.x, a.states.windows, projected_cols(a), channels(a), a.num_taps - 1, 0};
}
DEV Matrices matrices_of(const DeltaNetArgs& a) { return {a.states.matrices, a.value_heads, a.key_size, a.value_size}; }

// beta of a value head for the token in row `row`, and the logarithm of its state's decay, which is below zero.
struct HeadGates { float beta, log_decay; };
DEV HeadGates head_gates(const DeltaNetArgs& a, u32 row, u32 head) {
  const float* gates = a.x + (u64)row * projected_cols(a) + channels(a) + value_cols(a) +
                       head / a.gate_run * 2 * a.gate_run + head % a.gate_run;
  return {sigmoid(gates[0]), a.decay[head] * softplus(gates[a.gate_run] + a.decay_bias[head])};
}

DEV u32 key_head_of(const DeltaNetArgs& a, u32 head) {
  return a.is_tiled ? head % a.key_heads : head / (a.value_heads / a.key_heads);
}
