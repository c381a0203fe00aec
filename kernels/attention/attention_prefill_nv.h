// Prefill over a cache of f16 or int8 on NVIDIA: mma.m16n8k16 with q, weights and outputs in registers, K and V through
// shared memory. Two tiles of K and V take turns: asynchronous copies fill one while the other is multiplied, with one
// barrier a tile. For heads of up to 128, a warp has two times 16 rows, which share every fragment of K and V that is
// read. With only 16 rows, shared memory would be slower than the matrix units.
//
// Outputs of a wide head, of more than 256 columns, would fill all registers of a warp, so two warps share its rows.
// Each multiplies half of the columns of q and K, they exchange their partial scores, and each computes half of the
// outputs. There is room for one tile: V loads during q * k, and the next K during the rest. Latent rows are wide too,
// but hold both K and V, so two tiles of them take turns again.
//
// Levels of int8 are copied to a separate buffer, from which each thread converts those that it has requested to
// halves. There is room for one converted tile; the levels of the next tile load meanwhile.
#pragma once
#include "attention_prefill_copies.h"
#include "attention_prefill_rows.h"

// ------------------------------------------------------------------------------------------------ tiles
template <u32 D> constexpr bool WIDE = D > 256;
// Elements of V. For latent rows, which also hold K, the first elements of a row.
template <u32 D> constexpr u32 VALUES = D == LATENT_ROW ? LATENT_VALUES : D;
template <u32 D> constexpr bool LATENT = VALUES<D> < D;
template <u32 D> struct KvTile {
  static constexpr u32 KEYS = WIDE<D> ? 16 : 4096 / D;
  static constexpr u32 STRIDE = D + 8;                    // rows are 16 bytes apart in the banks: no conflicts
  static constexpr u32 V_ROW = LATENT<D> ? 0 : KEYS;      // the first row of V
  f16 rows[V_ROW + KEYS][STRIDE];                         // of K, then of V
  // Returns the position of the eight elements from `column` on of a row (bytes). `behind`: the same columns `rows`
  // rows later.
  MEMBER static u32 place(u32 row, u32 column) { return (row * STRIDE + column) * 2; }
  MEMBER static u32 behind(u32 place, u32 rows) { return place + rows * STRIDE * 2; }
};
// Tiles that fit at once.
template <class T, u32 D> constexpr u32 PLACES = HAS_SCALES<T> || (WIDE<D> && !LATENT<D>) ? 1 : 2;

// Copies tiles of 16 keys (a run), either K or V at a time.
template <u32 D> struct RunCopies {
  static constexpr u32 STRIDE = KvTile<D>::STRIDE, CHUNKS = D / 8, COUNT = 16 * CHUNKS / ATTENTION_THREADS;
  static_assert(COUNT * ATTENTION_THREADS == 16 * CHUNKS, "whole turns of the block");
  u32 first_key, end_key;
  u32 page;                // block of the run
  const u32* entry;        // in the table, and the slot in its block
  u32 slot;
  u32 head, to;            // of the kv head in a block (elements), of the tiles in shared memory (bytes)

  MEMBER void start(const AttentionArgs& a, const RowTile& tile, u32 key, u32 tiles) {
    head = tile.kv_head * a.block_size * a.head_dim;
    to = tiles;
    entry = a.block_tables + ld_step(a.block_start + tile.sequence) + key / a.block_size;
    slot = key % a.block_size;
    ask(key);
  }
  // A run outside of the keys has no block.
  MEMBER void ask(u32 key) { page = key < end_key && key + 16 > first_key ? ld_step(entry) : 0; }
  // Advances to the next run, which begins at `key`.
  MEMBER void go_on(const AttentionArgs& a, u32 key) {
    slot += 16;
    if (slot == a.block_size) { slot = 0; entry++; }
    ask(key);
  }
  // Copies the run's rows, which begin with `key`, to offset `distance` (bytes) of the tiles.
  MEMBER void copy(const AttentionArgs& a, const void* cache, u32 key, u32 distance) const {
    const u64 block = (u64)page * (a.num_kv_heads * a.block_size * a.head_dim);
    const f16* rows = (const f16*)cache + block + (head + slot * a.head_dim);
    #pragma unroll 1                                                   // registers are few
    for (u32 i = 0; i < COUNT; i++) {
      const u32 index = (u32)tid_x() + i * ATTENTION_THREADS, row = index / CHUNKS, column = index % CHUNKS * 8;
      const bool valid = key + row >= first_key && key + row < end_key && column < a.head_dim;
      copy_async(to + distance + (row * STRIDE + column) * 2, rows + row * a.head_dim + column, valid);
    }
  }
};
template <class T, u32 D, bool = WIDE<D>> struct CopiesOf { using Type = TileCopies<T, KvTile<D>, D>; };
template <class T, u32 D> struct CopiesOf<T, D, true> { using Type = RunCopies<D>; };

// ------------------------------------------------------------------------------------------------ the kernel
// Returns how many of the D / 16 steps of q * k keep their q in shared memory, in a separate slot for each lane. With
// all of q in registers, too few would be left to read K ahead of its products.
template <u32 D> constexpr u32 q_steps_shared() { return D == 128 ? 6 : 0; }

// Warps that share rows, and the columns of q and K, and of V, that each of them has.
template <u32 D> constexpr u32 SHARERS = WIDE<D> ? 2 : 1;
template <u32 D> constexpr u32 COLUMNS = D / SHARERS<D>;
template <u32 D> constexpr u32 VALUE_COLUMNS = VALUES<D> / SHARERS<D>;

struct Nothing {};
template <class T, u32 D> struct LevelsOf { using Type = Nothing; };
template <u32 D> struct LevelsOf<i8, D> { using Type = TileLevels<KvTile<D>::KEYS, D>; };
template <class T, u32 D, bool = WIDE<D>> struct PrefillLds {
  KvTile<D> tiles[PLACES<T, D>];
  v4 q[q_steps_shared<D>() ? q_steps_shared<D>() : 1][ATTENTION_THREADS];
  typename LevelsOf<T, D>::Type levels;
};
template <class T, u32 D> struct PrefillLds<T, D, true> {
  KvTile<D> tiles[PLACES<T, D>];
  float scores[ATTENTION_THREADS / 32][8][32];                          // each warp's part of the scores, by lane
};

// The outputs reuse this memory at the end.
template <class T, u32 D> union PrefillRoom {
  PrefillLds<T, D> keys;
  float out[ATTENTION_THREADS / 32][8 * OUT_ROW<VALUE_COLUMNS<D> / 8>];
};

// Computes rows first_row .. of the tile. A warp has 16 * TILES of them. Its lane l has rows l / 4 and l / 4 + 8 of
// every 16 ("halves") and two columns of every 8.
template <class T, u32 D, u32 TILES>
DEV void attention_prefill_rows(const AttentionArgs& a, const RowTile& tile, u32 first_row, PrefillRoom<T, D>& room) {
  PrefillLds<T, D>& shared = room.keys;
  constexpr u32 KEYS = KvTile<D>::KEYS, STRIDE = KvTile<D>::STRIDE, WARP_ROWS = 16 * TILES;
  constexpr u32 BLOCK_ROWS = ATTENTION_THREADS / 32 / SHARERS<D> * WARP_ROWS;
  KvTile<D>* lds = shared.tiles;
  const u32 lane = (u32)lane_id(), warp = (u32)tid_x() / 32, warp_row = first_row + warp / SHARERS<D> * WARP_ROWS;
  const u32 last_row = min_(tile.rows, first_row + BLOCK_ROWS) - 1;
  // The warp's first columns.
  const u32 first_column = warp % SHARERS<D> * COLUMNS<D>, first_value = warp % SHARERS<D> * VALUE_COLUMNS<D>;
  constexpr u32 Q_STEPS = COLUMNS<D> / 16, Q_KEPT = Q_STEPS - q_steps_shared<D>();

  u32 q[TILES][Q_STEPS][4];                                             // the last tile's last steps go to `shared`
  #pragma unroll
  for (u32 t = 0; t < TILES; t++)
    #pragma unroll
    for (u32 half = 0; half < 2; half++) {
      const u32 r = min_(warp_row + 16 * t + 8 * half + lane / 4, last_row);
      const float* row = a.qkv + (u64)(tile.row + r) * a.row_cols + tile.head * a.head_dim;
      #pragma unroll
      for (u32 i = 0; i < COLUMNS<D> / 8; i++) {
        const u32 column = first_column + 8 * i + lane % 4 * 2;        // heads are multiples of eight
        const v2 x = column < a.head_dim ? ld8(row + column) : v2{0, 0};
        q[t][i / 2][i % 2 * 2 + half] = pack(clamp_half(bits_f32(x.x)), clamp_half(bits_f32(x.y)));
      }
    }
  if constexpr (Q_KEPT < Q_STEPS)
    #pragma unroll
    for (u32 d = Q_KEPT; d < Q_STEPS; d++) {
      const u32* x = q[TILES - 1][d];
      shared.q[d - Q_KEPT][tid_x()] = {x[0], x[1], x[2], x[3]};
    }

  // The position of the warp's first row. A row sees keys up to its own position and `ahead` more, if there are any.
  // For a warp past the last row, which has nothing to do, position + WARP_ROWS + ahead is 0.
  const u32 position = warp_row > last_row ? 0u - WARP_ROWS - a.ahead : tile.position + warp_row;
  const float to_log2 = score_to_log2(a);
  // Addresses of this lane for `load_matrices`: the start of a row of an 8x8 matrix, within 16 x 16 elements.
  const u32 k_row = shared_address(lds) + ((lane / 16 * 8 + lane % 8) * STRIDE + first_column + lane / 8 % 2 * 8) * 2;
  const u32 v_row = shared_address(lds) + ((KvTile<D>::V_ROW + lane % 16) * STRIDE + first_value + lane / 16 * 8) * 2;
  float values[TILES][VALUE_COLUMNS<D> / 8][4] = {};
  RowsSoftmax<TILES> softmax;
  softmax.start();

  constexpr u32 TILE = (u32)sizeof(KvTile<D>), V = KvTile<D>::V_ROW * STRIDE * 2;
  typename CopiesOf<T, D>::Type copies;
  const SplitKeys keys = keys_of_split<KEYS>(a, tile.first_key(first_row), tile.end_key(last_row));
  copies.first_key = keys.first;
  copies.end_key = keys.end;
  u32 key = copies.first_key / KEYS * KEYS, stage = 0;
  if (key < copies.end_key) {
    copies.start(a, tile, key, shared_address(lds));
    if constexpr (HAS_SCALES<T>) copies.copy_levels(a, key, 0, shared.levels);
    else if constexpr (WIDE<D>) copies.copy(a, a.k_cache, key, 0);
    else copies.copy(a, key, 0, V);
  }
  for (; key < copies.end_key; key += KEYS, stage ^= 1) {
    copies_wait();
    block_sync();                                                      // this tile has arrived, the other is free
    const bool is_seen = key < position + WARP_ROWS + a.ahead && key + KEYS > first_key(position, tile.window);
    const bool is_last = key + KEYS >= copies.end_key;
    if constexpr (HAS_SCALES<T>) {
      copies.widen(key, stage, shared.levels);
      if (!is_last) copies.copy_levels(a, key + KEYS, stage ^ 1, shared.levels);
      block_sync();                                                    // the tile is converted
      if (!is_seen) continue;
    } else if constexpr (LATENT<D>) {
      copies.go_on(a, key + KEYS);
      if (!is_last) copies.copy(a, a.k_cache, key + KEYS, (stage ^ 1) * TILE);
    } else if constexpr (WIDE<D>) {
      copies.copy(a, a.v_cache, key, V);
    } else {
      if (!is_last) copies.copy(a, key + KEYS, (stage ^ 1) * TILE, (stage ^ 1) * TILE + V);
      if (!is_seen) continue;
    }

    const u32 offset = PLACES<T, D> == 1 ? 0 : stage * TILE;
    float score[TILES][KEYS / 8][4] = {};
    #pragma unroll
    for (u32 d = 0; d < Q_STEPS; d++) {
      if constexpr (Q_KEPT < Q_STEPS)
        if (d >= Q_KEPT) {
          const v4 x = shared.q[d - Q_KEPT][tid_x()];
          q[TILES - 1][d][0] = x.x; q[TILES - 1][d][1] = x.y; q[TILES - 1][d][2] = x.z; q[TILES - 1][d][3] = x.w;
        }
      #pragma unroll
      for (u32 n = 0; n < KEYS / 16; n++) {
        u32 k[4];
        load_matrices(k, k_row + offset + (16 * n * STRIDE + 16 * d) * 2);
        #pragma unroll
        for (u32 t = 0; t < TILES; t++) {
          mma_16x8x16(score[t][2 * n], q[t][d], k[0], k[1]);
          mma_16x8x16(score[t][2 * n + 1], q[t][d], k[2], k[3]);
        }
      }
    }
    if constexpr (WIDE<D>) {
      #pragma unroll
      for (u32 i = 0; i < 8; i++) shared.scores[warp][i][lane] = score[0][i / 4][i % 4];
      if constexpr (!LATENT<D>) copies_wait();
      block_sync();                                                    // other scores and V have arrived, K was read
      if constexpr (!LATENT<D>) {
        copies.go_on(a, key + KEYS);
        if (!is_last) copies.copy(a, a.k_cache, key + KEYS, 0);
      }
      if (!is_seen) continue;
      #pragma unroll
      for (u32 i = 0; i < 8; i++) score[0][i / 4][i % 4] += shared.scores[warp ^ 1][i][lane];
    }
    finish_scores<TILES, KEYS / 8>(score, a, tile, key, position, copies.end_key);
    if (softmax.template weigh<KEYS / 8>(score, to_log2)) softmax.template rescale<VALUE_COLUMNS<D> / 8>(values);

    #pragma unroll
    for (u32 n = 0; n < KEYS / 16; n++) {
      u32 weights[TILES][4];
      #pragma unroll
      for (u32 t = 0; t < TILES; t++) weights_of(score[t], n, weights[t]);
      #pragma unroll
      for (u32 d = 0; d < VALUE_COLUMNS<D> / 16; d++) {
        u32 v[4];
        load_matrices_transposed(v, v_row + offset + (16 * n * STRIDE + 16 * d) * 2);
        #pragma unroll
        for (u32 t = 0; t < TILES; t++) {
          mma_16x8x16(values[t][2 * d], weights[t], v[0], v[1]);
          mma_16x8x16(values[t][2 * d + 1], weights[t], v[2], v[3]);
        }
      }
    }
  }

  if (a.splits > 1) {
    constexpr u32 LANE_COLUMNS = VALUE_COLUMNS<D> / 4, ROUNDS = ATTENTION_PREFILL_ROWS / BLOCK_ROWS;
    const auto value = [&](u32 half, u32 i) -> float& { return values[half / 2][i / 2][half % 2 * 2 + i % 2]; };
    const u32 round = ROUNDS == 1 ? 0 : first_row / BLOCK_ROWS;
    static_assert(2 * TILES * (LANE_COLUMNS + 2) * ATTENTION_THREADS <= BLOCK_ROWS * (VALUES<D> + 32),
                  "plans.rs says what the host allocates");
    u32* before = (u32*)lds;                                            // written after all have read the tiles
    if (!add_splits<2 * TILES, LANE_COLUMNS, ROUNDS, ATTENTION_THREADS>(a, round, value, &softmax.top[0][0],
                                                                        &softmax.sum[0][0], to_log2, before))
      return;
  }
  block_sync();                                                        // the last tile was read
  const RowTile out = row_tile(a);                                     // read again: needs no registers in the loop
  float factors[2 * TILES];
  last_factors(a, out.head, softmax, to_log2, factors);
  store_rows<TILES>(a, out, factors, values, warp_row, first_value, room.out[warp]);
}

template <class T, u32 D> DEV void attention_prefill_mma(const AttentionArgs& a) {
  constexpr u32 TILES = D >= 256 ? 1 : 2, ROWS = ATTENTION_THREADS / 2 * TILES / SHARERS<D>;
  SHARED __align__(16) PrefillRoom<T, D> room;
  const RowTile tile = row_tile(a);
  for (u32 first = 0; first < tile.rows; first += ROWS) {
    if (first) block_sync();                                           // the last tiles were read
    attention_prefill_rows<T, D, TILES>(a, tile, first, room);
  }
}
