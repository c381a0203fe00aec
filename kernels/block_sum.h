// A sum over all threads of a block. It is separate from gpu.h because it has a barrier. Every file that includes it
// gets a mutation test for that barrier, which a file without a call could not pass.
#pragma once
#include "gpu.h"

// Returns the sum over a block of BLOCK threads, in one order, to every thread. `waves` is shared memory for this sum
// only.
template <u32 BLOCK> DEV float block_sum(float v, float (&waves)[BLOCK / WARP]) {
  v = warp_sum(v);
  if (lane_id() == 0) waves[tid_x() / WARP] = v;
  block_sync();
  float sum = 0.f;
  for (u32 i = 0; i < BLOCK / WARP; i++) sum += waves[i];
  return sum;
}
