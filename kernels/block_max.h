// A maximum over all threads of a block. It is separate from gpu.h for the same reason as block_sum.h.
#pragma once
#include "gpu.h"

// Returns the maximum over a block of BLOCK threads, to every thread. `waves` is shared memory for this call only.
template <u32 BLOCK> DEV u32 block_max(u32 v, u32 (&waves)[BLOCK / WARP]) {
  v = max_lanes<WARP>(v);
  if (lane_id() == 0) waves[tid_x() / WARP] = v;
  block_sync();
  u32 largest = 0;
  for (u32 i = 0; i < BLOCK / WARP; i++) largest = waves[i] > largest ? waves[i] : largest;
  return largest;
}
