// A sum over all threads of a block. It stands apart from gpu.h because it has a barrier: a file that includes it gets
// a mutation test for that barrier, and one that does not call it could not pass that test.
#pragma once
#include "gpu.h"

// Sums over a block of so many threads, in one order, for every thread. `waves` is shared memory for this sum alone.
template <u32 BLOCK> DEV float block_sum(float v, float (&waves)[BLOCK / WARP]) {
  v = warp_sum(v);
  if (lane_id() == 0) waves[tid_x() / WARP] = v;
  block_sync();
  float sum = 0.f;
  for (u32 i = 0; i < BLOCK / WARP; i++) sum += waves[i];
  return sum;
}
