// Numbers that change from step to step: their copy to the device, and the test of graphs that read them.
#include "gpu.h"
#include "args.h"

// Returns the i-th pair of words for the device, with the chosen tokens in place of ids that the host does not know
// yet.
DEV u64 with_chosen(const CopyStepArgs& a, u32 i, u64 pair) {
  u32 half[2] = {(u32)pair, (u32)(pair >> 32)};
  for (u32 k = 0; k < 2; k++) {
    if (2 * i + k >= a.token_ids || !(half[k] & CHOSEN_TOKEN)) continue;
    const u32 token = ld_step(a.chosen + (half[k] & ~CHOSEN_TOKEN));
    half[k] = token == ~0u ? 0 : token;
  }
  return (u64)half[1] << 32 | half[0];
}

// The first kernel of every step. A copy by the driver, before a graph, was seen to arrive too late for the graph's
// kernels; a copy by a kernel does not.
KERNEL(COPY_STEP_THREADS, copy_step, CopyStepArgs) {
  pdl_wait();                            // kernels of the previous step read the memory that is overwritten here
  constexpr u32 STRIDE = COPY_STEP_BLOCKS * COPY_STEP_THREADS;
  // Volatile or relaxed reads of one line of the host's memory run one after the other: on an H200 1 us each, 258 us
  // for 256 warps. Every block therefore has its own line, which one thread reads with any kind of load.
  SHARED u32 count;
  const u64 of_block = tid_x() == 0 ? ld_host(a.from + bid_x() * COPY_STEP_LINE) : 0;
  const u64* from = a.from + COPY_STEP_HEADER;
  u32 i = (u32)bid_x() * COPY_STEP_THREADS + (u32)tid_x();
  for (; i < a.least; i += STRIDE) st_step(a.out + i, with_chosen(a, i, ld_host(from + i)));
  if (tid_x() == 0) count = (u32)of_block;
  block_sync();
  for (; i < count; i += STRIDE) st_step(a.out + i, with_chosen(a, i, ld_host(from + i)));
}

KERNEL(LINK_THREADS, link_steps, LinkStepsArgs) {
  pdl_launch(); pdl_wait();
  const u32 next = ((u32)bid_x() + 1) % LINK_BLOCKS;
  u32 plain = *a.step, step = ld_step(a.step);
  if (a.before) {
    plain += a.before[2 * next];
    step += ld_step(a.before + 2 * next + 1);
  }
  if (tid_x() != 0) return;
  a.out[2 * bid_x()] = plain;
  a.out[2 * bid_x() + 1] = step;
}
