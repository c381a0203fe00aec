// Kernels that exercise the simulator: one that needs its barriers, and some that are faulty on purpose.
#include "gpu.h"

struct ScaleArgs {
  const float* x;
  float* out;
  u32 rows, cols;
  float scale;
};

// out[k][r][c] = scale * x[r][c] / (k + sum of |x[r][:]|) for k = 0, 1: reductions over the waves of a block. The
// second one reuses the memory of the first.
KERNEL(256, normalize, ScaleArgs) {
  SHARED float partial[256 / WARP];
  const float* x = a.x + (u64)bid_x() * a.cols;
  for (u32 k = 0; k < 2; k++) {
    float sum = 0.f;
    for (u32 c = tid_x(); c < a.cols; c += 256) sum += fabs_(x[c]);
    sum = warp_sum(sum);
    if (lane_id() == 0) partial[tid_x() / WARP] = tid_x() == 0 ? sum + (float)k : sum;
    block_sync();
    float total = 0.f;
    for (int w = 0; w < 256 / WARP; w++) total += partial[w];
    block_sync();
    float* out = a.out + ((u64)k * a.rows + bid_x()) * a.cols;
    for (u32 c = tid_x(); c < a.cols; c += 256) out[c] = a.scale * x[c] / total;
  }
}

// out[i] = x[i] + 1 for `cols` elements; the grid may be larger.
KERNEL(64, increment, ScaleArgs) {
  const u32 i = bid_x() * 64 + tid_x();
  if (i < a.cols) a.out[i] = a.x[i] + 1.f;
}

// Writes elements after `cols`, up to the next multiple of 64.
KERNEL(64, overrun, ScaleArgs) {
  const u32 i = bid_x() * 64 + tid_x();
  if (i < (a.cols + 63) / 64 * 64) a.out[i] = a.scale;
}

// Half of the wave returns before the other half exchanges values.
KERNEL(64, diverge, ScaleArgs) {
  if (tid_x() & 1) return;
  a.out[tid_x()] = warp_sum(1.f);
}

// Stores the content of shared memory before anyone wrote it, then writes it.
KERNEL(64, uninitialised, ScaleArgs) {
  SHARED float values[64];
  a.out[bid_x() * 64 + tid_x()] = values[tid_x()];
  values[tid_x()] = 1.f;
}

#ifdef GPU_CPU
// Needs more stack than a fiber has.
__attribute__((noinline)) static u32 deep(u32 n) {
  volatile u32 frame[256];
  frame[n & 255] = n;
  return n ? deep(n - 1) + frame[n & 255] : 0;
}
KERNEL(64, overflow, ScaleArgs) { a.out[tid_x()] = (float)deep(1000); }

KERNEL(64, divide, ScaleArgs) { a.out[tid_x()] = (float)(100 / a.rows); }
#endif
