// Attention of chunks of prompts over the paged cache: a block takes up to 64 rows (tokens; 128 on
// NVIDIA) of one sequence and one head, and walks the keys in tiles with an online softmax (flash attention). Over an
// f16 cache the products run on the matrix units, with q and the weights rounded to f16; over an f32 cache, and for
// heads that do not fill 16-byte words, everything is f32 on the vector units.
#include "attention.h"
#if GPU_NV
  #include "attention_prefill_nv.h"
#else
  #include "attention_prefill_mma.h"
#endif

// Prefill on the vector units: each group of 32 lanes takes QUERIES rows at a time.
template <class T, u32 D, u32 QUERIES, bool ALIGNED> DEV void attention_prefill_few(const AttentionArgs& a) {
  using Queries = FewQueries<T, D, QUERIES>;
  constexpr u32 ROUND = ATTENTION_THREADS / 32 * QUERIES;
  const RowTile tile = row_tile(a);
  const float* q = a.qkv + (u64)tile.head * a.head_dim;
  const u64 q_stride = (u64)a.row_heads * a.head_dim;
  for (u32 first = 0; first < tile.rows; first += ROUND) {
    // These are the keys of all rows of the round, so that its groups run the same loop.
    const u32 last = min_(first + ROUND, tile.rows) - 1;
    const Keys<T> keys = keys_of<T>(a, tile.sequence, tile.kv_head, tile.first_key(first), tile.end_key(last));
    const u32 row = first + ((u32)tid_x() >> 5) * QUERIES;
    Queries queries;
    #pragma unroll
    for (u32 i = 0; i < QUERIES; i++) {
      const u32 r = min_(row + i, last);
      float x[8 * Queries::PARTS];
      #pragma unroll
      for (u32 p = 0; p < Queries::PARTS; p++)
        load_eight(q + (tile.row + r) * q_stride, Queries::column(p), a.head_dim, x + 8 * p);
      queries.set_query(i, x, 8, query_factor(a), tile.first_key(r), tile.end_key(r));
    }
    queries.template attend<ALIGNED>(keys, 0, 1, a.softcap);
    queries.merge_runs();
    if (((u32)tid_x() & 31) >= Queries::LANES) continue;
    #pragma unroll
    for (u32 i = 0; i < QUERIES; i++) {
      if (row + i > last) break;
      const AttentionArgs& end = reload(a);
      const float factor = softmax_factor(end, tile.head, queries.top[i], queries.sum[i]);
      for (u32 p = 0; p < Queries::PARTS; p++) {
        for (u32 j = 0; j < 8; j++) queries.values[i][p][j] *= factor;
        store_eight(end, tile.row + row + i, tile.head, Queries::column(p), queries.values[i][p]);
      }
    }
  }
}

template <u32 D> DEV void attention_prefill_f16(const AttentionArgs& a) {
  // Outputs of so many columns would fill all registers of the matrix units' way.
  if constexpr (D > 256) attention_prefill_few<f16, D, 2, true>(a);
  else if (a.head_dim % 8 == 0) attention_prefill_mma<D>(a);
  else attention_prefill_few<f16, D, 1, false>(a);  // one row: no more registers than the other way
}
template <u32 D> DEV void attention_prefill_f32(const AttentionArgs& a) {
  attention_prefill_few<float, D, D <= 256 ? 4 : 2, true>(a);
}

// The last head's blocks also fill up the rows with zeros.
DEV void pad_rows(const AttentionArgs& a) {
  const RowTile tile = row_tile(a);
  if (tile.head != a.num_heads - 1) return;
  for (u32 row = 0; row < tile.rows; row++) store_padding(a, tile.row + row, ATTENTION_THREADS);
}

#define ATTENTION_PREFILL(suffix, D)                                            \
  KERNEL(ATTENTION_THREADS, attention_prefill_##suffix##_d##D, AttentionArgs) {   \
    pdl_launch(); pdl_wait();                                                  \
    attention_prefill_##suffix<D>(a);                                           \
    pad_rows(reload(a));                                                                \
  }
ATTENTION_PREFILL(f16, 64)
ATTENTION_PREFILL(f16, 128)
ATTENTION_PREFILL(f16, 256)
ATTENTION_PREFILL(f16, 512)
ATTENTION_PREFILL(f32, 64)
ATTENTION_PREFILL(f32, 128)
ATTENTION_PREFILL(f32, 256)
ATTENTION_PREFILL(f32, 512)
