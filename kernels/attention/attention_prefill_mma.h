// Prefill over a cache of f16 or int8 on AMD (and on the CPU, for tests). Every product is a 16x16x16 tile of f16 with
// operands in LDS. K and V of a tile take turns in one buffer; the next one loads into registers meanwhile.
#pragma once
#include "attention_prefill.h"
#include "mma.h"

template <u32 D> struct PrefillLds {
  static constexpr u32 KEYS = 32;
  // Strides are multiples of 16 bytes, so that operands are read in whole words.
  static constexpr u32 K_STRIDE = D + 8, V_STRIDE = KEYS + 8;
  static constexpr u32 K_SIZE = KEYS * K_STRIDE, V_SIZE = D * V_STRIDE;
  alignas(16) f16 q[ATTENTION_PREFILL_ROWS * K_STRIDE];
  f16 kv[K_SIZE > V_SIZE ? K_SIZE : V_SIZE];             // K: [key][column], or V transposed: [column][key]
  f16 weights[ATTENTION_PREFILL_ROWS * V_STRIDE];                  // [row][key]; a wave writes and reads its own rows
};

// Positions in the cache of the runs of 16 keys that form a tile of KEYS keys; a block of the cache holds whole runs.
template <class T, u32 KEYS> struct Runs {
  u64 at[KEYS / 16];       // elements
  u64 scales[KEYS / 16];   // their scales, if the cache has scales: in elements too, which are bytes
  u32 block, slot;         // of the next tile

  // Starts at `key`, a multiple of 16.
  MEMBER void start(const Keys<T>& keys, u32 key) {
    block = key / keys.block_size;
    slot = key % keys.block_size;
  }
  // Moves on to the next tile, which begins at `key`. Runs outside of the keys have no block.
  MEMBER void next(const Keys<T>& keys, u32 key) {
    #pragma unroll
    for (u32 i = 0; i < KEYS / 16; i++, key += 16) {
      const bool any = key < keys.end && key + 16 > keys.first;
      const u64 page = any ? ld_step(keys.table + block) * keys.block_stride : 0;
      at[i] = any ? page + (u64)slot * keys.head_dim : 0;
      if (HAS_SCALES<T>) scales[i] = page + (u64)keys.block_size * keys.head_dim + (any ? slot * sizeof(float) : 0);
      slot += 16;
      if (slot == keys.block_size) { slot = 0; block++; }
    }
  }
};

// A thread's share of a K or V tile, between the cache and LDS. It is zero outside of the keys and of the head, since
// 0 * NaN is NaN.
template <class T, u32 D> struct Staged {
  using Lds = PrefillLds<D>;
  static constexpr u32 COUNT = Lds::KEYS * D / 8 / ATTENTION_THREADS;
  Eight<T> eights[COUNT];
  float scales[COUNT];                                   // if the cache has scales

  // In a tile of K, neighbouring threads have neighbouring columns of a key.
  MEMBER static u32 k_row(u32 thread, u32 i) { return (thread + i * ATTENTION_THREADS) / (D / 8); }
  MEMBER static u32 k_column(u32 thread, u32 i) { return (thread + i * ATTENTION_THREADS) % (D / 8) * 8; }
  // In a tile of V, a thread has two consecutive keys of the same columns, which become the halves of a word.
  // Neighbouring threads have neighbouring pairs of keys, so that they store to different banks.
  MEMBER static u32 v_row(u32 thread, u32 i) {
    return (thread + i / 2 * ATTENTION_THREADS) % (Lds::KEYS / 2) * 2 + i % 2;
  }
  MEMBER static u32 v_column(u32 thread, u32 i) { return (thread + i / 2 * ATTENTION_THREADS) / (Lds::KEYS / 2) * 8; }

  MEMBER void load_k(const Keys<T>& keys, const Runs<T, Lds::KEYS>& runs, u32 key) {
    const u32 t = recomputed(tid_x());
    #pragma unroll
    for (u32 i = 0; i < COUNT; i++) load(i, keys, keys.k, runs, key, k_row(t, i), k_column(t, i));
    loads_first();
  }
  MEMBER void load_v(const Keys<T>& keys, const Runs<T, Lds::KEYS>& runs, u32 key) {
    const u32 t = recomputed(tid_x());
    #pragma unroll
    for (u32 i = 0; i < COUNT; i++) load(i, keys, keys.v, runs, key, v_row(t, i), v_column(t, i));
    loads_first();
  }
  MEMBER void load(u32 i, const Keys<T>& keys, const T* cache, const Runs<T, Lds::KEYS>& runs, u32 key, u32 row,
                   u32 column) {
    // Without a branch: lanes without an element read the head's first one.
    const bool valid = key + row >= keys.first && key + row < keys.end && column < keys.head_dim;
    const u64 low = runs.at[0], high = runs.at[1];
    const u64 at = valid ? (row < 16 ? low : high) + row % 16 * keys.head_dim + column : 0;
    if constexpr (HAS_SCALES<T>) {
      const u64 first = row < 16 ? runs.scales[0] : runs.scales[1];
      const float scale = *(const float*)(cache + (first + row % 16 * sizeof(float)));
      eights[i].load(cache + at);
      scales[i] = valid ? scale : 0.f;
    } else {
      const v4 words = ld16(cache + at);
      eights[i].words = {valid ? words.x : 0, valid ? words.y : 0, valid ? words.z : 0, valid ? words.w : 0};
    }
  }
  // Returns the eight elements as halves.
  MEMBER v4 halves(u32 i) const {
    if constexpr (HAS_SCALES<T>) return halves_of_eight(eights[i], scales[i]);
    else return eights[i].words;
  }

  MEMBER void store_k(Lds& lds) const {
    const u32 t = recomputed(tid_x());
    #pragma unroll
    for (u32 i = 0; i < COUNT; i++) *(v4*)&lds.kv[k_row(t, i) * Lds::K_STRIDE + k_column(t, i)] = halves(i);
  }
  MEMBER void store_v(Lds& lds) const {
    const u32 t = recomputed(tid_x());
    #pragma unroll
    for (u32 i = 0; i < COUNT; i += 2) {
      const v4 x = halves(i), y = halves(i + 1);
      const u32 even[4] = {x.x, x.y, x.z, x.w}, odd[4] = {y.x, y.y, y.z, y.w};
      u32* at = (u32*)&lds.kv[v_column(t, i) * Lds::V_STRIDE + v_row(t, i)];
      #pragma unroll
      for (u32 j = 0; j < 4; j++) {
        at[2 * j * (Lds::V_STRIDE / 2)] = (even[j] & 0xffff) | odd[j] << 16;
        at[(2 * j + 1) * (Lds::V_STRIDE / 2)] = even[j] >> 16 | (odd[j] & 0xffff0000);
      }
    }
  }
};

// Sixteen rows of a wave. A lane has one column (key or output) of every 16, and MMA_ACC rows. The other 15 lanes of
// its group of 16 have the same rows.
template <u32 D> struct Rows {
  using Lds = PrefillLds<D>;
  static constexpr u32 KEY_TILES = Lds::KEYS / 16;
  float values[D / 16][MMA_ACC], top[MMA_ACC], sum[MMA_ACC];
  u32 first_row;           // of the block

  MEMBER void start(u32 row) {
    first_row = row;
    for (u32 i = 0; i < MMA_ACC; i++) { top[i] = NOTHING; sum[i] = 0; }
    for (u32 d = 0; d < D / 16; d++)
      for (u32 i = 0; i < MMA_ACC; i++) values[d][i] = 0;
  }

  // Computes the scores of the tile of keys from `key` on and their running softmax, and puts the weights into LDS.
  MEMBER void scores(const AttentionArgs& a, const RowTile& tile, Lds& lds, u32 key) {
    float score[KEY_TILES][MMA_ACC] = {};
    #pragma unroll 1                                     // fully unrolled, the operands of all turns fill the registers
    for (u32 d = 0; d < D / 16; d++)
      #pragma unroll
      for (u32 n = 0; n < KEY_TILES; n++)
        mma_16x16x16(score[n], lds.q + first_row * Lds::K_STRIDE + 16 * d, Lds::K_STRIDE,
                     lds.kv + 16 * n * Lds::K_STRIDE + 16 * d, Lds::K_STRIDE);
    const float factor = query_factor(a);
    #pragma unroll
    for (u32 n = 0; n < KEY_TILES; n++)
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) score[n][i] *= factor;
    if (a.softcap != 0.f)
      #pragma unroll
      for (u32 n = 0; n < KEY_TILES; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) score[n][i] = soft_cap(score[n][i], a.softcap) * LOG2E;

    const int lane = (int)recomputed(lane_id());
    if (a.alibi != 0.f) {
      const DistanceBias bias = distance_bias(a, tile.head, 1.f);
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) {
        const u32 position = tile.position + first_row + (u32)mma_row(lane, (int)i);
        #pragma unroll
        for (u32 n = 0; n < KEY_TILES; n++)
          score[n][i] = bias.add(score[n][i], key + 16 * n + (u32)mma_col(lane, (int)i), position);
      }
    }
    #pragma unroll
    for (u32 i = 0; i < MMA_ACC; i++) {
      const u32 row = first_row + (u32)mma_row(lane, (int)i), r = min_(row, tile.rows - 1);
      const u32 column = (u32)mma_col(lane, (int)i), first = tile.first_key(r), end = tile.end_key(r);
      float highest = top[i];
      #pragma unroll
      for (u32 n = 0; n < KEY_TILES; n++) {
        const u32 at = key + 16 * n + column;
        score[n][i] = at - first < end - first ? score[n][i] : MASKED;     // first <= at < end, in one comparison
        highest = fmax_(highest, score[n][i]);
      }
      highest = max_lanes<16>(highest);
      const float factor = fast_exp2(top[i] - highest);
      top[i] = highest;
      sum[i] *= factor;
      #pragma unroll
      for (u32 d = 0; d < D / 16; d++) values[d][i] *= factor;
      #pragma unroll
      for (u32 n = 0; n < KEY_TILES; n++) {
        const float weight = fast_exp2(score[n][i] - highest);
        sum[i] += weight;                                // of this lane; the others' are added at the end
        lds.weights[row * Lds::V_STRIDE + 16 * n + column] = f2h(weight);
      }
    }
  }

  MEMBER void add_values(Lds& lds) {
    #pragma unroll 1
    for (u32 n = 0; n < KEY_TILES; n++)
      #pragma unroll
      for (u32 d = 0; d < D / 16; d++) {
        if (D == 256) loads_first();
        mma_16x16x16(values[d], lds.weights + first_row * Lds::V_STRIDE + 16 * n, Lds::V_STRIDE,
                     lds.kv + 16 * d * Lds::V_STRIDE + 16 * n, Lds::V_STRIDE);
      }
  }

  // Stores the outputs through the memory of the wave's rows of q, half of the columns at a time. A lane then has whole
  // words of adjacent columns.
  MEMBER void store(const AttentionArgs& a, const RowTile& tile, Lds& lds) {
    constexpr u32 STRIDE = Lds::K_STRIDE / 2, EIGHTS = D / 2 / 8;
    float* out = (float*)(lds.q + first_row * Lds::K_STRIDE);
    #pragma unroll
    for (u32 i = 0; i < MMA_ACC; i++) {
      sum[i] = sum_lanes<16>(sum[i]);
      sum[i] = softmax_factor(a, tile.head, top[i], sum[i]);
    }
    #pragma unroll
    for (u32 half = 0; half < 2; half++) {
      warp_sync();
      #pragma unroll
      for (u32 d = 0; d < D / 32; d++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++)
          out[(u32)mma_row(lane_id(), (int)i) * STRIDE + 16 * d + (u32)mma_col(lane_id(), (int)i)] =
              values[half * D / 32 + d][i] * sum[i];
      warp_sync();
      for (u32 j = (u32)lane_id(); j < 16 * EIGHTS; j += WARP) {
        const u32 row = first_row + j / EIGHTS, column = j % EIGHTS * 8;
        if (row < tile.rows)
          store_eight(a, tile.row + row, tile.head, half * D / 2 + column, out + j / EIGHTS * STRIDE + column);
      }
    }
  }
};

template <class T, u32 D> DEV void attention_prefill_mma(const AttentionArgs& a) {
  using Lds = PrefillLds<D>;
  // The widest heads leave no registers for a prefetched tile.
  constexpr bool AHEAD = D < 256;
  constexpr u32 KEYS = Lds::KEYS, ROW_TILES = ATTENTION_PREFILL_ROWS / 16 / (ATTENTION_THREADS / WARP);
  SHARED Lds lds;
  const RowTile tile = row_tile(a);
  const SplitKeys split = keys_of_split<KEYS>(a, tile.first_key(0), tile.end_key(tile.rows - 1));
  const Keys<T> keys = keys_of<T>(a, tile.sequence, tile.kv_head, split.first, split.end);

  const float* q = a.qkv + (u64)tile.head * a.head_dim;
  const u64 q_stride = a.row_cols;
  const u32 queries = keys.first < keys.end ? ATTENTION_PREFILL_ROWS * D : 0;       // without keys nobody reads them
  for (u32 i = (u32)tid_x(); i < queries; i += ATTENTION_THREADS) {
    const u32 row = i / D, column = i % D;               // rows after the last repeat it; nobody stores them
    const u64 at = (tile.row + min_(row, tile.rows - 1)) * q_stride + column;
    lds.q[row * Lds::K_STRIDE + column] = column < a.head_dim ? f2h_sat(q[at]) : (f16)0;
  }

  Rows<D> rows[ROW_TILES];
  #pragma unroll
  for (u32 i = 0; i < ROW_TILES; i++) rows[i].start(((u32)tid_x() / WARP * ROW_TILES + i) * 16);
  Runs<T, KEYS> runs = {};
  Staged<T, D> staged;
  u32 key = keys.first / KEYS * KEYS;
  if (keys.first < keys.end) {
    runs.start(keys, key);
    runs.next(keys, key);
    if (AHEAD) staged.load_k(keys, runs, key);
  }
  for (; key < keys.end; key += KEYS) {
    if (!AHEAD) staged.load_k(keys, runs, key);
    staged.store_k(lds);
    block_sync();                                        // q and K are in LDS
    if (AHEAD) staged.load_v(keys, runs, key);
    #pragma unroll
    for (u32 i = 0; i < ROW_TILES; i++) rows[i].scores(a, tile, lds, key);
    block_sync();                                        // K has been read; the weights are in LDS
    if (!AHEAD) staged.load_v(keys, runs, key);
    staged.store_v(lds);
    block_sync();                                        // V is in LDS
    if (key + KEYS < keys.end) {
      runs.next(keys, key + KEYS);
      if (AHEAD) staged.load_k(keys, runs, key + KEYS);
    }
    #pragma unroll
    for (u32 i = 0; i < ROW_TILES; i++) rows[i].add_values(lds);
    block_sync();                                        // V has been read
  }
  if (a.splits > 1) {                                    // the flags use V's memory: more LDS would cost CDNA a block
    float top[ROW_TILES * MMA_ACC], sum[ROW_TILES * MMA_ACC];
    #pragma unroll
    for (u32 i = 0; i < ROW_TILES * MMA_ACC; i++) {
      top[i] = rows[i / MMA_ACC].top[i % MMA_ACC];
      sum[i] = rows[i / MMA_ACC].sum[i % MMA_ACC];
    }
    const auto value = [&](u32 i, u32 d) -> float& { return rows[i / MMA_ACC].values[d][i % MMA_ACC]; };
    constexpr u32 ROWS = ROW_TILES * MMA_ACC, COLUMNS = D / 16;
    static_assert(ROWS * (COLUMNS + 2) * ATTENTION_THREADS <= ATTENTION_PREFILL_ROWS * (D + 32),
                  "plans.rs says what the host allocates");
    if (!add_splits<ROWS, COLUMNS, 1, ATTENTION_THREADS>(reload(a), 0, value, top, sum, 1.f, (u32*)lds.kv)) return;
    #pragma unroll
    for (u32 i = 0; i < ROW_TILES * MMA_ACC; i++) {
      rows[i / MMA_ACC].top[i % MMA_ACC] = top[i];
      rows[i / MMA_ACC].sum[i % MMA_ACC] = sum[i];
    }
  }
  // The outputs go through the memory of the wave's own rows of q, which no other wave reads.
  #pragma unroll
  for (u32 i = 0; i < ROW_TILES; i++) rows[i].store(reload(a), tile, lds);
}
