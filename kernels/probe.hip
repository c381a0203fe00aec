// Kernels that measure a device: one does nothing, the other only reads.
#include "gpu.h"
#include "args.h"

constexpr u32 THREADS = 256, AT_ONCE = 4;

KERNEL(256, probe_nothing, ProbeArgs) { pdl_launch(); pdl_wait(); }

// Grid: blocks. Blocks read side by side. Each thread loads several pieces before it uses the first one.
KERNEL(256, probe_read, ProbeArgs) {
  pdl_launch(); pdl_wait();
  const u32 thread = (u32)bid_x() * THREADS + (u32)tid_x();
  const u64 stride = (u64)a.blocks * THREADS;
  u32 sum = 0;
  u64 piece = thread;
  for (; piece + (AT_ONCE - 1) * stride < a.pieces; piece += AT_ONCE * stride) {
    v4 words[AT_ONCE];
    #pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) words[i] = ld16s(a.data + 16 * (piece + i * stride));
    loads_first();
    #pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) sum ^= words[i].x ^ words[i].y ^ words[i].z ^ words[i].w;
  }
  for (; piece < a.pieces; piece += stride) {
    const v4 words = ld16s(a.data + 16 * piece);
    sum ^= words.x ^ words.y ^ words.z ^ words.w;
  }
  a.out[thread] = sum;
}
