// What the prefill kernels of all platforms share.
#pragma once
#include "attention.h"

// Up to ATTENTION_PREFILL_ROWS rows of one sequence, for one head.
struct RowTile {
  u32 sequence, head, kv_head;
  u32 row, rows;           // of the batch
  u32 position, context;   // of the first row; of the sequence
  u32 window;

  // Keys first_key .. end_key of row `r` of the tile; none with an empty context, whose positions mean nothing.
  MEMBER u32 first_key(u32 r) const { return ::first_key(position + r, window); }
  MEMBER u32 end_key(u32 r) const { return min_(position + r + 1, context); }
};

DEV RowTile row_tile(const AttentionArgs& a) {
  const u32 sequence = a.items[2 * bid_y()], first = a.items[2 * bid_y() + 1], head = (u32)bid_x();
  const u32 start = a.q_start[sequence], length = a.q_start[sequence + 1] - start, context = a.context_lens[sequence];
  const u32 kv_head = head / (a.num_heads / a.num_kv_heads), rows = min_(ATTENTION_PREFILL_ROWS, length - first);
  return {sequence, head, kv_head, start + first, rows, context - length + first, context, a.window};
}

// Where the runs of 16 keys that make up a tile of KEYS keys lie in the cache: a block holds whole runs.
template <u32 KEYS> struct Runs {
  u64 at[KEYS / 16];       // elements
  u32 block, slot;         // of the next tile

  // Begins at a multiple of 16.
  MEMBER void start(const Keys<f16>& keys, u32 key) {
    block = key / keys.block_size;
    slot = key % keys.block_size;
  }
  // The tile from `key` on, which follows the one before. Runs outside of the keys have no block to ask for.
  MEMBER void next(const Keys<f16>& keys, u32 key) {
    #pragma unroll
    for (u32 i = 0; i < KEYS / 16; i++, key += 16) {
      const bool any = key < keys.end && key + 16 > keys.first;
      at[i] = any ? keys.table[block] * keys.block_stride + (u64)slot * keys.head_dim : 0;
      slot += 16;
      if (slot == keys.block_size) { slot = 0; block++; }
    }
  }
};
