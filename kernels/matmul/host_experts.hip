// Experts that the host's CPU computes: what it needs for a step, and their weights in the file's layout for steps that
// multiply with them on the device.
#include "gpu.h"
#include "args.h"

// The host reads this memory after the kernel has ended.
KERNEL(SEND_EXPERTS_THREADS, send_experts, SendExpertsArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), thread = (u32)tid_x();
  for (u32 c = thread; c < a.cols; c += SEND_EXPERTS_THREADS) {
    const u64 at = (u64)row * a.cols + c;
    a.x_out[at] = a.x[at];
  }
  if (thread < a.used) {
    const u64 pair = (u64)row * a.used + thread;
    const u32 expert = ld_step(a.experts + pair);
    const bool is_cached = a.slots && ld_step(a.slots + expert) != NOT_CACHED;
    a.experts_out[pair] = is_cached ? NO_EXPERT : expert;
    a.weights_out[pair] = a.weights[pair];
  }
  if (row == 0 && thread == 0) {
    a.call[0] = a.layer;
    a.call[1] = a.rows;
    a.call[2] = a.turn;
  }
}

// A thread makes a byte of a block of the file from at most PLACES_OF_BYTE places of a tile.
KERNEL(UNPACK_THREADS, unpack_tiles, UnpackArgs) {
  pdl_launch(); pdl_wait();
  const u64 row_bytes = (u64)a.blocks * a.block_bytes;
  const u64 at = (u64)bid_y() * UNPACK_THREADS + (u32)tid_x(), row = bid_x();
  if (at >= row_bytes) return;
  const u32 block = (u32)(at / a.block_bytes), byte = (u32)(at % a.block_bytes);
  const u32 matrix = (u32)row / a.rows, row_of_matrix = (u32)row % a.rows, lane = row_of_matrix & 15;
  const u64 tile = (u64)matrix * ((a.rows + 15) >> 4) + (row_of_matrix >> 4);
  // A span of blocks begins with the side bytes of all of its blocks.
  const u32 first = block - block % a.span_blocks;
  const u32 in_span = a.blocks - first < a.span_blocks ? a.blocks - first : a.span_blocks;
  const u8* span = a.tiles + tile * a.tile_bytes + (u64)first * (a.codes_bytes + a.side_bytes);
  const u8* side = span + (u64)(block - first) * a.side_bytes;
  const u8* codes = span + ((in_span * a.side_bytes + 63) & ~63u) + (u64)(block - first) * a.codes_bytes;
  u32 value = 0;
  for (u32 i = 0; i < PLACES_OF_BYTE; i++) {
    const u32* place = a.places + 2 * (byte * PLACES_OF_BYTE + i);
    const u32 offset = place[0] & 0xffff, stride = place[0] >> 16;
    const u32 bits = place[1] & 0xff, shift = place[1] >> 8 & 0xff, to = place[1] >> 16 & 0xff, kind = place[1] >> 24;
    if (bits == 0) break;
    const u8* from = (kind == PLACE_SIDE ? side : codes) + offset + (u64)stride * lane;
    value ^= (*from >> shift & ((1u << bits) - 1)) << to ^ (kind == PLACE_FLIPPED ? 0x80 : 0);
  }
  a.out[row * row_bytes + at] = (u8)value;
}
