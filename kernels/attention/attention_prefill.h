// Shared code of the prefill kernels of all platforms.
#pragma once
#include "arrival.h"
#include "attention.h"

// The most rows of an item; the host cuts sequences into items of that many.
constexpr u32 ATTENTION_PREFILL_ROWS = GPU_NV ? 128 : 64;

// Up to ATTENTION_PREFILL_ROWS rows of one sequence, for one head.
struct RowTile {
  u32 sequence, head, kv_head;
  u32 row, rows;           // of the batch
  u32 position, context;   // of the first row; of the sequence
  u32 window, ahead;

  // Row `r` of the tile sees keys first_key .. end_key. With an empty context it sees none, and its position has no
  // meaning.
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

// Keys first .. end of a block's split of the keys that some rows see: whole tiles of KEYS, divided in order.
struct SplitKeys { u32 first, end; };
template <u32 KEYS> DEV SplitKeys keys_of_split(const AttentionArgs& a, u32 first, u32 end) {
  const u32 start = first / KEYS * KEYS, tiles = end > start ? (end - start + KEYS - 1) / KEYS : 0;
  const u32 share = (tiles + a.splits - 1) / a.splits * KEYS, from = start + (u32)bid_z() * share;
  return {max_(first, from), min_(end, from + share)};
}

// Adds the results of all splits of the context, in order of the splits, whichever block comes last. Returns false in
// all other blocks. A thread has ROWS rows. Each row has COLUMNS sums of values, `value(row, column)`, relative to
// 2^(top[row] * to_log2), and a part of the sum of weights. The rows belong to one of the block's ROUNDS. `before`:
// free shared memory with a word for each wave. The block's first THREADS threads call this.
template <u32 ROWS, u32 COLUMNS, u32 ROUNDS, u32 THREADS, class Value>
DEV bool add_splits(const AttentionArgs& a, u32 round, Value value, float* top, float* sum, float to_log2,
                    u32* before) {
  constexpr u32 FLOATS = ROWS * (COLUMNS + 2) * THREADS;
  const u32 place = ((u32)bid_y() * a.num_heads + (u32)bid_x()) * ROUNDS + round;
  float* all = a.partial + (u64)place * a.splits * FLOATS + recomputed(tid_x());
  float* mine = all + (u64)bid_z() * FLOATS;
  #pragma unroll
  for (u32 r = 0; r < ROWS; r++, mine += (COLUMNS + 2) * THREADS) {
    mine[0] = top[r];
    mine[THREADS] = sum[r];
    #pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) mine[(c + 2) * THREADS] = value(r, c);
  }
  if (!last_to_arrive<THREADS>(a.counters + place, a.splits, before)) return false;
  #pragma unroll
  for (u32 r = 0; r < ROWS; r++) {
    top[r] = NOTHING;
    sum[r] = 0.f;
    #pragma unroll
    for (u32 c = 0; c < COLUMNS; c++) value(r, c) = 0.f;
  }
  #pragma unroll 1
  for (u32 split = 0; split < a.splits; split++) {
    const float* other = all + (u64)split * FLOATS;
    #pragma unroll
    for (u32 r = 0; r < ROWS; r++, other += (COLUMNS + 2) * THREADS) {
      const float its = other[0], highest = fmax_(top[r], its);
      const float by = fast_exp2((top[r] - highest) * to_log2), its_by = fast_exp2((its - highest) * to_log2);
      top[r] = highest;
      sum[r] = sum[r] * by + other[THREADS] * its_by;
      #pragma unroll
      for (u32 c = 0; c < COLUMNS; c++)
        value(r, c) = value(r, c) * by + other[(c + 2) * THREADS] * its_by;
    }
  }
  return true;
}
