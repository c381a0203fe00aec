// Blocks that share an output, with the engine's own protocol.
#include "../../../../kernels/arrival.h"

constexpr int THREADS = 256;
struct Args { u32* out; u32* shares; u32* counter; u32 blocks; };

DEV u32 share(u32 block, u32 thread) { return 1000 * block + 7 * thread + 1; }

// Adds the shares of all blocks, in a thread that computed none of them.
DEV void add_shares(const Args& a) {
  const u32 other = (tid_x() + WARP) % THREADS;
  u32 sum = 0;
  for (u32 block = 0; block < a.blocks; block++) sum += a.shares[block * THREADS + other];
  a.out[tid_x()] = sum;
}

// The last block adds.
KERNEL(THREADS, blocks_arrive, Args) {
  a.shares[bid_x() * THREADS + tid_x()] = share(bid_x(), tid_x());
  if (last_to_arrive<THREADS>(a.counter, a.blocks)) add_shares(a);
}

// The last wave among those with the same number in their blocks adds what these have stored.
KERNEL(THREADS, waves_arrive, Args) {
  const u32 wave = tid_x() / WARP, other = wave * WARP + (lane_id() + 1) % WARP;
  a.shares[bid_x() * THREADS + tid_x()] = share(bid_x(), tid_x());
  if (!last_wave_to_arrive(a.counter + wave, a.blocks)) return;
  u32 sum = 0;
  for (u32 block = 0; block < a.blocks; block++) sum += a.shares[block * THREADS + other];
  a.out[other] = sum;
}
