// Prefill over a cache of f16 on Hopper, for heads of up to 256 (the scheme of FlashAttention-3). Two warpgroups have
// 64 rows each and all keys of a tile. K, V and q are in shared memory in the layout of warpgroup products. Products
// run asynchronously: a warpgroup computes the weights of a tile's scores while the values of the previous tile are
// added up:
//
//   scores and weights of tile 0;  for each later tile t: scores of t, values of t - 1 | weights of t;  last values
//
// The two take turns to begin their products, so that one multiplies while the other computes weights. A third
// warpgroup copies the tiles, and leaves most of its registers to the other two.
#pragma once
#include "attention_prefill_copies.h"
#include "attention_prefill_rows.h"
#include "wgmma.h"
#if GPU_WGMMA

constexpr u32 WARPGROUP = 128, WARPGROUP_ROWS = 64;
constexpr u32 MULTIPLIERS = 2 * WARPGROUP;                             // the threads that multiply
static_assert(2 * WARPGROUP_ROWS == ATTENTION_PREFILL_ROWS, "a block has all rows of an item");
static_assert(ATTENTION_PREFILL_WGMMA_THREADS == MULTIPLIERS + WARPGROUP, "and one more warpgroup");

// ROWS rows of a head of D elements in shared memory: 64 columns of all rows, then the next 64.
template <u32 ROWS, u32 D> struct SwizzledTile {
  static constexpr u32 KEYS = ROWS, ROW_BYTES = 128, COLUMNS_BYTES = ROWS * ROW_BYTES, BYTES = D / 64 * COLUMNS_BYTES;
  // Returns the position of the eight elements from `column` on of a row (bytes).
  MEMBER static u32 place(u32 row, u32 column) { return column / 64 * COLUMNS_BYTES + swizzled(row, column % 64); }
  // Returns the position of the same columns `rows` rows later; the last three bits of the row and of `rows` are
  // disjoint.
  MEMBER static u32 behind(u32 place, u32 rows) { return (place + rows * ROW_BYTES) ^ (rows % 8 * 16); }
  // Returns the start of 16 columns, the step of a product.
  MEMBER static u32 step(u32 column) { return column / 64 * COLUMNS_BYTES + column % 64 * 2; }
};

// Shared memory of a block. Tile t of V is read together with tile t + 1 of K, while t + 2 loads.
template <u32 D> struct WgmmaRoom {
  using Q = SwizzledTile<ATTENTION_PREFILL_ROWS, D>;
  using Kv = SwizzledTile<D <= 128 ? 128 : 64, D>;
  static constexpr u32 K_PLACES = 2, V_PLACES = 3;
  static constexpr u32 K = Q::BYTES, V = K + K_PLACES * Kv::BYTES, BYTES = V + V_PLACES * Kv::BYTES;
};
static_assert(WgmmaRoom<64>::BYTES == ATTENTION_PREFILL_WGMMA_SHARED_D64 &&
              WgmmaRoom<128>::BYTES == ATTENTION_PREFILL_WGMMA_SHARED_D128 &&
              WgmmaRoom<256>::BYTES == ATTENTION_PREFILL_WGMMA_SHARED_D256, "what the host asks for");

// A warpgroup waits for its turn to begin products, and passes the turn to the other one.
constexpr u32 FIRST_TURN = 1;                                          // its barrier; the next number is the other's
DEV void wait_turn(u32 group) {
  asm volatile("bar.sync %0, %1;" :: "r"(FIRST_TURN + group), "n"(MULTIPLIERS) : "memory");
}
DEV void give_turn(u32 group) {
  asm volatile("bar.arrive %0, %1;" :: "r"(FIRST_TURN + group), "n"(MULTIPLIERS) : "memory");
}

// Barriers in shared memory, for alternating tiles. `full`: a tile has arrived. `empty`: the scores of a tile and the
// values of the previous tile are computed, so that the tile after the next one has room.
struct TileBarriers {
  u64 full[2], empty[2];
  MEMBER void init(u32 multiplying_warps) {
    #pragma unroll
    for (u32 i = 0; i < 2; i++) {
      barrier_init(shared_address(full + i), WARPGROUP);
      barrier_init(shared_address(empty + i), multiplying_warps);
    }
  }
  MEMBER void is_full(u32 tile) { barrier_arrive(shared_address(full + tile % 2)); }
  MEMBER void wait_full(u32 tile) { barrier_wait(shared_address(full + tile % 2), tile / 2 % 2); }
  MEMBER void is_empty(u32 tile) {
    if (lane_id() == 0) barrier_arrive(shared_address(empty + tile % 2));
  }
  MEMBER void wait_empty(u32 tile) { barrier_wait(shared_address(empty + tile % 2), tile / 2 % 2); }
};

// Stores a warpgroup's rows of q as halves. Missing rows repeat the last one; columns outside the head are zero.
template <u32 D> DEV void store_queries(const AttentionArgs& a, const RowTile& tile, u32 first_row, u32 to) {
  constexpr u32 AT_ONCE = 8 < D / 16 ? 8 : D / 16;                       // vectors that a thread loads at once
  const u32 thread = (u32)tid_x() % WARPGROUP, column = thread % (D / 8) * 8;
  const bool in_head = column < a.head_dim;                              // heads are multiples of eight
  const float* head = a.qkv + (u64)tile.head * a.head_dim + (in_head ? column : 0);
  constexpr u32 DISTANCE = WARPGROUP / (D / 8);                          // distance of a thread's rows
  const u32 end = first_row + WARPGROUP_ROWS;
  #pragma unroll 1
  for (u32 row = first_row + thread / (D / 8); row < end; row += AT_ONCE * DISTANCE) {
    v4 low[AT_ONCE], high[AT_ONCE];
    #pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
      const u32 r = min_(row + i * DISTANCE, tile.rows - 1);
      const float* x = head + (u64)(tile.row + r) * a.row_cols;
      low[i] = ld16(x);
      high[i] = ld16(x + 4);
    }
    #pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
      const u32 w[8] = {low[i].x, low[i].y, low[i].z, low[i].w, high[i].x, high[i].y, high[i].z, high[i].w};
      u32 h[4];
      #pragma unroll
      for (u32 j = 0; j < 4; j++)
        h[j] = in_head ? pack(clamp_half(bits_f32(w[2 * j])), clamp_half(bits_f32(w[2 * j + 1]))) : 0;
      store_shared(to + WgmmaRoom<D>::Q::place(row + i * DISTANCE, column), {h[0], h[1], h[2], h[3]});
    }
  }
}

// Stores the warp's rows as halves, row after row, without gates. This takes a tenth of the instructions of
// `store_rows`, each of which is fetched for one use.
template <u32 D>
DEV void store_half_rows(const AttentionArgs& a, const RowTile& tile, const float (&factors)[2],
                         const float (&values)[D / 8][4], u32 first_row, u32 room) {
  constexpr u32 ROW_BYTES = D * 2 + 16;                                  // eight rows begin in different banks
  const u32 lane = (u32)lane_id(), cols = a.num_heads * a.value_dim, padded = (cols + 255) & ~255u;
  const u32 to = room + lane % 16 * ROW_BYTES + lane / 16 * 16;          // two halves of an eight, then of the next one
  #pragma unroll
  for (u32 i = 0; i < D / 8; i += 2) {
    u32 words[4];
    #pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const float* x = &values[i + j / 2][j % 2 * 2];
      words[j] = hclamp2(pack(x[0] * factors[j % 2], x[1] * factors[j % 2]));
    }
    store_matrices(to + i * 16, words);
  }
  warp_sync();
  u16* out = (u16*)a.out + (u64)(tile.row + first_row) * padded + tile.head * a.value_dim;
  #pragma unroll 4
  for (u32 i = lane; i < 2 * D; i += 32) {
    const u32 row = i / (D / 8), column = i % (D / 8) * 8;
    const v4 eight = load_shared16(room + row * ROW_BYTES + column * 2);
    if (first_row + row < tile.rows && column < a.value_dim) *(v4*)(out + (u64)row * padded + column) = eight;
  }
}

// Copies the tiles of `keys` from `first` on.
template <u32 D>
DEV void bring_tiles(const AttentionArgs& a, const RowTile& tile, SplitKeys keys, u32 first, u32 places,
                     TileBarriers& barriers) {
  using Room = WgmmaRoom<D>;
  using Kv = typename Room::Kv;
  if (first >= keys.end) return;
  TileCopies<f16, Kv, D> copies;
  copies.first_key = keys.first;
  copies.end_key = keys.end;
  copies.start(a, tile, first, places);
  u32 v = 0;
  for (u32 t = 0, key = first; key < keys.end; t++, key += Kv::KEYS) {
    if (t >= 2) barriers.wait_empty(t - 2);
    copies.copy(a, key, Room::K + t % 2 * Kv::BYTES, Room::V + v * Kv::BYTES);
    copies_wait();
    shared_written();
    barriers.is_full(t);
    v = v == Room::V_PLACES - 1 ? 0 : v + 1;
  }
}

// Computes the rows of one of the two multiplying warpgroups.
template <u32 D>
DEV void multiply_tiles(const AttentionArgs& a, const RowTile& tile, SplitKeys keys, u32 first, u32 places, u32 group,
                        bool takes_turns, TileBarriers& barriers) {
  using Room = WgmmaRoom<D>;
  using Q = typename Room::Q;
  using Kv = typename Room::Kv;
  constexpr u32 KEYS = Kv::KEYS;
  const u32 warp_row = (u32)tid_x() / 32 * 16, position = tile.position + warp_row;
  const float to_log2 = score_to_log2(a);
  float values[1][D / 8][4] = {}, score[1][KEYS / 8][4];
  RowsSoftmax<1> softmax;
  softmax.start();
  const u32 q = places + group * (WARPGROUP_ROWS * Q::ROW_BYTES);
  const auto multiply_keys = [&](u32 at) {
    #pragma unroll
    for (u32 d = 0; d < D; d += 16) {
      const u64 rows = wgmma_swizzled(q + Q::step(d), 0);
      const u64 k = wgmma_swizzled(places + Room::K + at * Kv::BYTES + Kv::step(d), 0);
      if (d == 0) wgmma_shared<false>(score[0], rows, k);
      else wgmma_shared<true>(score[0], rows, k);
    }
    wgmma_commit();
  };
  u32 weights[KEYS / 16][4];
  const auto multiply_values = [&](u32 at) {
    const u64 v = wgmma_swizzled(places + Room::V + at * Kv::BYTES, KEYS * Kv::ROW_BYTES);
    #pragma unroll
    for (u32 n = 0; n < KEYS / 16; n++) wgmma_rows(values[0], weights[n], v + (n * (16 * Kv::ROW_BYTES) >> 4));
    wgmma_commit();
  };
  const auto make_weights = [&](u32 key) {
    finish_scores<1, KEYS / 8>(score, a, tile, key, position, keys.end);
    return softmax.weigh<KEYS / 8>(score, to_log2);
  };
  const auto pack_weights = [&] {
    #pragma unroll
    for (u32 n = 0; n < KEYS / 16; n++) weights_of(score[0], n, weights[n]);
  };

  if (first < keys.end && group * WARPGROUP_ROWS < tile.rows) {
    store_queries<D>(a, tile, group * WARPGROUP_ROWS, places);
    shared_written();
    warpgroup_sync();
    if (takes_turns && group == 1) give_turn(0);
    barriers.wait_full(0);
    wgmma_begin();
    multiply_keys(0);
    wgmma_wait<0>();
    wgmma_sums_there(score[0]);
    barriers.is_empty(0);
    make_weights(first);
    pack_weights();
    u32 v = 0;                                                         // buffer of the previous tile
    u32 t = 1;
    for (u32 key = first + KEYS; key < keys.end; key += KEYS, t++) {
      barriers.wait_full(t);
      if (takes_turns) wait_turn(group);
      wgmma_begin();
      multiply_keys(t % 2);
      multiply_values(v);
      // After its last turn the first warpgroup does not wait again.
      if (takes_turns && (group == 0 || key + KEYS < keys.end)) give_turn(group ^ 1);
      v = v == Room::V_PLACES - 1 ? 0 : v + 1;
      wgmma_wait<1>();
      wgmma_sums_there(score[0]);
      const bool risen = make_weights(key);
      wgmma_wait<0>();
      wgmma_sums_there(values[0]);
      barriers.is_empty(t);
      if (risen) softmax.rescale<D / 8>(values);
      pack_weights();
    }
    wgmma_begin();
    multiply_values(v);
    wgmma_wait<0>();
    wgmma_sums_there(values[0]);
  }
  threads_sync<MULTIPLIERS>();                                         // all tiles and q were read

  if (a.splits > 1) {
    const auto value = [&](u32 half, u32 i) -> float& { return values[0][i / 2][half * 2 + i % 2]; };
    static_assert(2 * (D / 4 + 2) * MULTIPLIERS <= ATTENTION_PREFILL_ROWS * (D + 32), "as plans.rs allocates");
    u32* before = (u32*)&barriers;                                      // nobody waits there any more
    if (!add_splits<2, D / 4, 1, MULTIPLIERS>(a, 0, value, softmax.top[0], softmax.sum[0], to_log2, before)) return;
  }
  extern __shared__ __align__(1024) u8 room[];
  float* out = (float*)room + (u32)tid_x() / 32 * (8 * OUT_ROW<D / 8>);
  float factors[2];
  last_factors(a, tile.head, softmax, to_log2, factors);
  if (a.format_out == FORMAT_F16 && !a.gate)
    store_half_rows<D>(a, tile, factors, values[0], warp_row, shared_address(out));
  else
    store_rows<1>(a, tile, factors, values, warp_row, 0, out);
}

template <u32 D> DEV void attention_prefill_wgmma(const AttentionArgs& a) {
  constexpr u32 KEYS = WgmmaRoom<D>::Kv::KEYS;
  extern __shared__ __align__(1024) u8 room[];
  SHARED __attribute__((aligned(8))) TileBarriers barriers;
  const RowTile tile = row_tile(a);
  const u32 groups = tile.rows > WARPGROUP_ROWS ? 2 : 1;               // with rows
  if (tid_x() == 0) {
    barriers.init(groups * 4);
    barriers_made();
  }
  block_sync();
  const u32 places = shfl_u32(shared_address(room), 0);                // the same for all: see matmul_wgmma.h
  const u32 group = shfl_u32((u32)tid_x() / WARPGROUP, 0);
  const SplitKeys keys = keys_of_split<KEYS>(a, tile.first_key(0), tile.end_key(tile.rows - 1));
  const u32 first = keys.first / KEYS * KEYS;
  if (group == MULTIPLIERS / WARPGROUP) {
    fewer_registers<56>();
    bring_tiles<D>(a, tile, keys, first, places, barriers);
  } else {
    more_registers<224>();
    multiply_tiles<D>(a, tile, keys, first, places, group, groups == 2, barriers);
  }
}
#endif
