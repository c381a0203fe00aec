// Shared by the kernels of Mamba-2: the layout of a row, and the steps of its heads.
#pragma once
#include "states.h"

DEV u32 inner_cols(const Mamba2Args& a) { return a.heads * a.head_size; }
DEV u32 group_cols(const Mamba2Args& a) { return a.groups * a.state_size; }
DEV u32 channels(const Mamba2Args& a) { return inner_cols(a) + 2 * group_cols(a); }
// Columns of a row of projections.
DEV u32 projected_cols(const Mamba2Args& a) { return inner_cols(a) + channels(a) + a.heads; }
DEV Inputs inputs_of(const Mamba2Args& a) {
  return {a.x + inner_cols(a), a.states.windows, projected_cols(a), channels(a), a.num_taps - 1, 0};
}
DEV Matrices matrices_of(const Mamba2Args& a) { return {a.states.matrices, a.heads, a.state_size, a.head_size}; }
DEV u32 group_of(const Mamba2Args& a, u32 head) { return head / (a.heads / a.groups); }

// The time step of a head for the token in row `row`, and the logarithm of its state's decay, which is below zero.
struct HeadStep { float time_step, log_decay; };
DEV HeadStep head_step(const Mamba2Args& a, u32 row, u32 head) {
  const float* steps = a.x + (u64)row * projected_cols(a) + inner_cols(a) + channels(a);
  const float time_step = softplus(steps[head] + a.step_bias[head]);
  return {time_step, a.decay[head] * time_step};
}
