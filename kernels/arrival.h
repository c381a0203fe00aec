// Finds the last of the blocks that share an output; that block completes the output.
#pragma once
#include "gpu.h"

// A fence that the mutation test can omit, to show that each one is needed (sim/amdsim/tests/coherence.rs).
#ifndef GPU_DROP_FENCE
  #define GPU_DROP_FENCE -1
#endif
#define FENCE(number, fence) do { if (GPU_DROP_FENCE != number) fence(); } while (0)

// A wave calls this after storing its share. Returns, in the first lane, the number of waves that arrived before.
DEV u32 arrive(u32* counter) {
  FENCE(0, release_fence);             // the stores of every lane come before ...
  warp_sync();
  return lane_id() == 0 ? atomic_add_u32(counter, 1) : 0;   // ... the arrival of its wave
}

// Returns true, in all threads, for the last of `blocks` blocks to call this. That block then sees the stores of all.
// `counter` is 0 before and after. `before` has room in shared memory for a word of each wave. The block's first
// THREADS threads call this; on AMD there are no others.
#if GPU_NV
// Synchronises these threads. Other threads of the block, which have ended or will end, need not take part.
template <int THREADS> DEV void threads_sync() { asm volatile("bar.sync 0, %0;" :: "n"(THREADS) : "memory"); }

// One thread releases and acquires for its block: fences by all threads take longer.
template <int THREADS> DEV bool last_to_arrive(u32* counter, u32 blocks, u32* before) {
  threads_sync<THREADS>();
  if (tid_x() == 0) *before = atomic_arrive_u32(counter, 1);         // blocks that arrived before this one
  threads_sync<THREADS>();
  if (*before != blocks - 1) return false;
  if (tid_x() == 0) *counter = 0;      // for the next launch; all blocks of this one have arrived
  return true;
}
#else
// Each wave arrives as soon as it has stored its share, so one barrier is enough.
template <int THREADS> DEV bool last_to_arrive(u32* counter, u32 blocks, u32* before) {
  constexpr u32 WAVES = THREADS / WARP;
  const u32 came = arrive(counter);
  if (lane_id() == 0) before[(u32)tid_x() / WARP] = came;            // waves of all blocks that arrived before this one
  block_sync();
  u32 latest = 0;
  #pragma unroll
  for (u32 wave = 0; wave < WAVES; wave++) latest = before[wave] > latest ? before[wave] : latest;
  if (latest != blocks * WAVES - 1) return false;
  FENCE(1, acquire_fence);             // nothing is read before the last arrival
  if (tid_x() == 0) *counter = 0;      // for the next launch; all blocks of this one have arrived
  return true;
}
#endif

template <int THREADS> DEV bool last_to_arrive(u32* counter, u32 blocks) {
  SHARED u32 before[THREADS / WARP];
  return last_to_arrive<THREADS>(counter, blocks, before);
}

// Counts single waves, if a block's share belongs to one wave. Without a barrier; true for the lanes of the last wave.
DEV bool last_wave_to_arrive(u32* counter, u32 waves) {
  if (of_first_lane(arrive(counter)) != waves - 1) return false;
  FENCE(2, acquire_fence);
  if (lane_id() == 0) *counter = 0;
  return true;
}
