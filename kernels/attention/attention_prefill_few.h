// Prefill in f32 on the vector units: over an f32 cache, and for heads that the matrix units do not support.
#pragma once
#include "attention_prefill.h"

// Prefill on the vector units: each group of 32 lanes takes QUERIES rows at a time.
template <class T, u32 D, u32 QUERIES, bool ALIGNED, u32 VALUES = D>
DEV void attention_prefill_few(const AttentionArgs& a) {
  using Queries = FewQueries<T, D, QUERIES, VALUES>;
  constexpr u32 ROUND = ATTENTION_THREADS / 32 * QUERIES;
  if (bid_z()) return;                                 // contexts are not split here
  const RowTile tile = row_tile(a);
  const float* q = a.qkv + (u64)tile.head * a.head_dim;
  const u64 q_stride = a.row_cols;
  for (u32 first = 0; first < tile.rows; first += ROUND) {
    // The keys of all rows of the round, so that its groups run the same loop.
    const u32 last = min_(first + ROUND, tile.rows) - 1;
    const Keys<T> keys = keys_of<T>(a, tile.sequence, tile.kv_head, tile.first_key(first), tile.end_key(last));
    const u32 row = first + ((u32)tid_x() >> 5) * QUERIES;
    Queries queries;
    queries.head = tile.head;
    queries.head_step = 0;
    queries.position = tile.position + row;
    queries.position_step = 1;
    #pragma unroll
    for (u32 i = 0; i < QUERIES; i++) {
      const u32 r = min_(row + i, last);
      float x[8 * Queries::PARTS];
      #pragma unroll
      for (u32 p = 0; p < Queries::PARTS; p++)
        load_eight(q + (tile.row + r) * q_stride, Queries::column(p), a.head_dim, x + 8 * p);
      queries.set_query(i, x, 8, query_factor(a), tile.first_key(r), tile.end_key(r));
    }
    queries.template attend<ALIGNED>(keys, 0, 1, a);
    queries.merge_runs();
    if (((u32)tid_x() & 31) >= Queries::LANES) continue;
    #pragma unroll
    for (u32 i = 0; i < QUERIES; i++) {
      if (row + i > last) break;
      const AttentionArgs& end = reload(a);
      const float factor = softmax_factor(end, tile.head, queries.top[i], queries.sum[i]);
      #pragma unroll
      for (u32 p = 0; p < Queries::VALUE_PARTS; p++) {
        #pragma unroll
        for (u32 j = 0; j < 8; j++) queries.values[i][p][j] *= factor;
        store_eight(end, tile.row + row + i, tile.head, Queries::column(p), queries.values[i][p]);
      }
    }
  }
}

// The last head's blocks also fill the rows' padding with zeros.
DEV void pad_rows(const AttentionArgs& a) {
  const RowTile tile = row_tile(a);
  if (tile.head != a.num_heads - 1 || bid_z()) return;
  for (u32 row = 0; row < tile.rows; row++) store_padding(a, tile.row + row, ATTENTION_THREADS);
}
