// Shared code of the prefill kernels of all platforms.
#pragma once
#include "attention.h"

// Rows of an item at most: the host cuts the sequences into items of so many.
constexpr u32 ATTENTION_PREFILL_ROWS = GPU_NV ? 128 : 64;

// Up to ATTENTION_PREFILL_ROWS rows of one sequence, for one head.
struct RowTile {
  u32 sequence, head, kv_head;
  u32 row, rows;           // of the batch
  u32 position, context;   // of the first row; of the sequence
  u32 window, ahead;

  // Row `r` of the tile sees keys first_key .. end_key, and none with an empty context, whose positions mean nothing.
  MEMBER u32 first_key(u32 r) const { return ::first_key(position + r, window); }
  MEMBER u32 end_key(u32 r) const { return min_(position + r + 1 + ahead, context); }
};

DEV RowTile row_tile(const AttentionArgs& a) {
  const u32* item = a.items + 2 * bid_y();
  const u32 sequence = ld_step(item), first = ld_step(item + 1), head = (u32)bid_x();
  const u32 start = ld_step(a.q_start + sequence), length = ld_step(a.q_start + sequence + 1) - start;
  const u32 context = ld_step(a.context_lens + sequence);
  const u32 kv_head = head / (a.num_heads / a.num_kv_heads), rows = min_(ATTENTION_PREFILL_ROWS, length - first);
  return {sequence, head, kv_head, start + first, rows, context - length + first, context, a.window,
          a.ahead};
}
