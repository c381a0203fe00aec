// Attention of single rows on NVIDIA's matrix units (mma.m16n8k16), over f16 or int8, for heads of up to 256 elements.
// Keys are the rows of the score product, and columns of V are the rows of the output product. K and V are read once,
// in their order in memory. The columns of both are eight query heads of one kv head. Columns of a smaller group are
// empty, which costs nothing, since this code waits for memory. q and the weights are rounded to f16, as in prefill.
//
// Each warp of a block walks tiles of keys independently, without a barrier. It has one buffer, to which asynchronous
// copies bring K, then V, then K of its next tile: while one warp waits, others multiply. Levels of int8 are copied
// unchanged, and become operands on the way to the matrix units.
//
// The contexts of all items are cut into splits of about the same length, with a block for each split and kv head. Long
// contexts next to short ones then leave no block that works long after the others.
#pragma once
#include "attention_decode.h"
#include "attention_nv.h"

// Keys of a run, which is within one block of the cache: the rows of an operand of the matrix units.
constexpr u32 RUN_KEYS = 16;

// An element of q as the matrix units take it; it saturates.
struct QueryHalf { f16 bits; };
DEV void store_cache(QueryHalf* at, float x) { at->bits = f2h_sat(x); }
DEV void store_cache(QueryHalf* at, float x, float y) { *(u32*)at = f2h_sat(x) | (u32)f2h_sat(y) << 16; }
DEV void store_cache(QueryHalf* at, float x, float y, float z, float w) {
  *(v2*)at = {f2h_sat(x) | (u32)f2h_sat(y) << 16, f2h_sat(z) | (u32)f2h_sat(w) << 16};
}

// The shape of a block, for heads of up to HEAD_SIZE elements.
template <class Element, u32 HEAD_SIZE, u32 BLOCK_THREADS> struct MatrixShape {
  using T = Element;
  static constexpr u32 D = HEAD_SIZE, THREADS = BLOCK_THREADS, GROUPS = THREADS / 32;
  static constexpr u32 HEADS = 8, QUERIES = D <= 128 ? 8 : 4;        // in parallel; results that fit at once
  static constexpr u32 VALUES = D;
  static constexpr bool PER_HEAD = false, LATENT = false, SCALED = HAS_SCALES<T>;
  static constexpr u32 KEYS = D < 128 ? 32 : 16, RUNS = KEYS / RUN_KEYS;      // of a tile
  static constexpr u32 COLUMNS = D < 128 ? D : 128, PARTS = D / COLUMNS;      // of a tile; several for wide heads
  // Bytes from row to row, chosen so that a warp's reads use different banks.
  static constexpr u32 ROW = COLUMNS * sizeof(T), K_STRIDE = ROW + (SCALED ? 32 : 16), V_STRIDE = ROW + 16;
  static constexpr u32 Q_STRIDE = D + (SCALED ? 32 : 8);                      // elements

  // Counters of the search for a block's split.
  struct Search {
    u32 runs[GROUPS], splits[GROUPS];        // of a warp's items
    u32 item, count, first;                  // the item found, the number of its splits, and the index of its first one
  };
  struct Results {
    float values[GROUPS][QUERIES][VALUES + 4], top[GROUPS][QUERIES], sum[GROUPS][QUERIES];
  };
  struct Lds {
    alignas(16) QueryHalf q[HEADS][Q_STRIDE];
    alignas(16) T k[D], v[D];                // of the new token
    float k_scale, v_scale;
    alignas(16) float scales[SCALED ? GROUPS : 1][2][KEYS];                   // of the warps' tiles: of K, of V
    Search search;
    union {
      alignas(16) u8 tiles[GROUPS][KEYS * K_STRIDE];
      Results results;
    };
  };
};

// The tokens of an item that its row sees, in runs, and the first run.
struct Seen { u32 context, first, first_run, runs; };
DEV Seen seen_of(const AttentionArgs& a, u32 item) {
  const u32 context = ld_step(a.context_lens + ld_step(a.items + item));
  const u32 first = context ? first_key(context - 1, a.window) : 0, first_run = first / RUN_KEYS;
  return {context, first, first_run, (context + RUN_KEYS - 1) / RUN_KEYS - first_run};
}

// Finds the item and the split of its context for this block, in the order of the items. Returns false if there are
// fewer splits than blocks. An item gets splits in proportion to its part of all runs: at least one, and each of about
// split_tokens at least. Without splits, item and split are known.
template <class S> DEV bool find_split(const AttentionArgs& a, Work& w, typename S::Search& search) {
  const u32 number = (u32)bid_y(), lane = (u32)lane_id(), warp = (u32)tid_x() / 32;
  w.item = w.first_split = number;
  w.splits = 1;
  if (a.splits > 0) {
    i32 runs = 0;
    for (u32 i = (u32)tid_x(); i < a.num_items; i += S::THREADS) runs += (i32)seen_of(a, i).runs;
    runs = warp_sum(runs);
    if (lane == 0) search.runs[warp] = (u32)runs;
    block_sync();
    u32 all_runs = 0, before = 0;
    for (u32 i = 0; i < S::GROUPS; i++) all_runs += search.runs[i];
    const u32 share = max_(max_((all_runs + a.splits - 1) / a.splits, a.split_tokens / RUN_KEYS), 1);
    for (u32 first = 0; first < a.num_items && before <= number; first += S::THREADS) {
      const u32 item = first + (u32)tid_x();
      const u32 splits = item < a.num_items ? max_((seen_of(a, item).runs + share / 2) / share, 1) : 0;
      u32 end = splits;                                  // of the item's splits, counting the lanes up to this one
      for (u32 d = 1; d < 32; d *= 2) {
        const u32 others = shfl_u32(end, (int)(lane - d));
        if (lane >= d) end += others;
      }
      if (lane == 31) search.splits[warp] = end;
      block_sync();
      end += before;
      for (u32 i = 0; i < S::GROUPS; i++) {
        if (i < warp) end += search.splits[i];
        before += search.splits[i];
      }
      if (number < end && number >= end - splits) {
        search.item = item;
        search.count = splits;
        search.first = end - splits;
      }
      block_sync();                                      // the item is found, and the counts were read
    }
    if (before <= number) return false;
    w.item = search.item;
    w.first_split = search.first;
    w.splits = search.count;
  }
  w.split = number - w.first_split;
  w.sequence = ld_step(a.items + w.item);
  w.row = ld_step(a.q_start + w.sequence);
  w.kv_head = (u32)bid_x();
  w.heads = a.num_heads / a.num_kv_heads;
  w.first_head = w.kv_head * w.heads;
  w.chunks = (w.heads + S::HEADS - 1) / S::HEADS;
  w.side_by_side = 1;
  return true;
}

template <class T> DEV Keys<T> keys_of_runs(const AttentionArgs& a, const Work& w) {
  const Seen seen = seen_of(a, w.item);
  // Splits differ by at most one run, and none is empty: the last one ends the context.
  const u32 run = seen.first_run + seen.runs * w.split / w.splits;
  const u32 end = seen.first_run + seen.runs * (w.split + 1) / w.splits;
  return keys_of<T>(a, w.sequence, w.kv_head, max_(seen.first, run * RUN_KEYS), min_(seen.context, end * RUN_KEYS));
}

// Copies a warp's tiles of keys, one after the other. Stores zeros outside of the keys and of the head, since 0 * NaN
// is NaN.
template <class S> struct WarpTiles {
  using T = typename S::T;
  static constexpr u32 WIDTH = 16 / sizeof(T);                        // elements in 16 bytes
  static constexpr u32 CHUNKS = S::COLUMNS / WIDTH, ROWS = 32 / CHUNKS;       // of a row; rows in parallel
  static constexpr u32 NEXT = S::KEYS * S::GROUPS;
  Keys<T> keys;
  u32 key;                 // the first key of the tile
  u32 to;                  // the lane's column of the tile's first row in shared memory
  u32 row, column;         // the lane's first ones in a tile
  u32 runs[S::RUNS];       // positions of the tile's runs in the cache, and of their scales, in units of 16 elements
  u32 scales[S::RUNS];
  u32 pages[S::RUNS];      // blocks of the next tile's runs, requested a tile ahead
  u32 block, slot;         // of the first of those runs
  u32 last_block, step_blocks, step_slots;

  // Starts at key `first`. The keys end at `end`; the last key may not be in the cache yet.
  MEMBER void start(u32 first, u32 end, u32 tile) {
    key = first;
    row = (u32)lane_id() / CHUNKS;
    column = (u32)lane_id() % CHUNKS * WIDTH;
    to = tile + (u32)lane_id() % CHUNKS * 16;
    block = first / keys.block_size;
    slot = first % keys.block_size;
    step_blocks = NEXT / keys.block_size;
    step_slots = NEXT % keys.block_size;
    last_block = (end - 1) / keys.block_size;
    ask();
    locate();
  }
  // Blocks after the last are not read; the last one replaces them.
  MEMBER void ask() {
    u32 b = block, s = slot;
    #pragma unroll
    for (u32 i = 0; i < S::RUNS; i++) {
      pages[i] = ld_step(keys.table + min_(b, last_block));
      s += RUN_KEYS;
      if (s == keys.block_size) { s = 0; b++; }
    }
  }
  MEMBER void locate() {
    u32 s = slot;
    #pragma unroll
    for (u32 i = 0; i < S::RUNS; i++) {
      const u32 page = pages[i] * (u32)(keys.block_stride / 16);
      runs[i] = page + s / 16 * keys.head_dim;
      if (S::SCALED) scales[i] = page + keys.block_size / 16 * keys.head_dim + s * (u32)sizeof(float) / 16;
      s += RUN_KEYS;
      if (s == keys.block_size) s = 0;
    }
    block += step_blocks;
    slot += step_slots;
    if (slot >= keys.block_size) { slot -= keys.block_size; block++; }
    ask();
  }
  MEMBER void go_on() {
    key += NEXT;
    locate();
  }
  // Copies a part of the tile's K or V to rows that are `stride` bytes apart.
  MEMBER void copy(const T* cache, u32 part, u32 stride) const {
    const u32 c = part * S::COLUMNS + column, first = to + row * stride;
    const bool in_head = c < keys.head_dim;
    #pragma unroll
    for (u32 i = 0; i < S::RUNS; i++) {
      const T* from = cache + ((u64)runs[i] * 16 + row * keys.head_dim);
      if (keys.head_dim % WIDTH == 0) {
        #pragma unroll
        for (u32 r = 0; r < RUN_KEYS; r += ROWS)
          copy_async(first + (i * RUN_KEYS + r) * stride, from + (u64)r * keys.head_dim + c,
                     in_head && is_there(i * RUN_KEYS + row + r));
      } else {
        #pragma unroll 1
        for (u32 r = 0; r < RUN_KEYS; r += ROWS) {
          Eight<T> x[WIDTH / 8] = {};
          if (in_head && is_there(i * RUN_KEYS + row + r))
            for (u32 j = 0; j < WIDTH / 8; j++)
              load_unaligned(x[j], from + (u64)r * keys.head_dim, c + 8 * j, keys.head_dim);
          store_shared(first + (i * RUN_KEYS + r) * stride, words_of(x));
        }
      }
    }
  }
  MEMBER static v4 words_of(const Eight<f16> (&x)[1]) { return x[0].words; }
  MEMBER static v4 words_of(const Eight<i8> (&x)[2]) {
    return {x[0].words.x, x[0].words.y, x[1].words.x, x[1].words.y};
  }
  MEMBER bool is_there(u32 place) const { return key + place >= keys.first && key + place < keys.end; }

  // Copies the first part of the tile's K or V, and the scales of its keys: 16 bytes a lane.
  MEMBER void copy_first(const T* cache, u32 stride, const float* scales_to) const {
    copy(cache, 0, stride);
    if constexpr (S::SCALED) {
      const u32 lane = (u32)lane_id(), at = S::RUNS > 1 && lane >= 4 ? scales[S::RUNS - 1] : scales[0];
      static_assert(S::RUNS <= 2, "lanes of four");
      if (lane < 4 * S::RUNS)
        copy_async(shared_address(scales_to + lane * 4), cache + ((u64)at * 16 + lane % 4 * 16), true);
    }
  }
  // Returns the scale of a key by its place in the tile; 0 outside of the keys, where memory may hold anything. The
  // scale of the new token, at `new_place`, is given.
  MEMBER float scale_of(const float* copied, u32 place, u32 new_place, float of_new) const {
    const float x = copied[place];
    return is_there(place) ? x : place == new_place ? of_new : 0.f;
  }
};

// ------------------------------------------------------------------------------------------------ products
// Adds the products of a tile's part of K, from column `first` of the heads on, to the scores.
template <class S, u32 CHAINS> DEV void multiply_k(float (&score)[CHAINS][4], u32 tile, u32 q_place, u32 first) {
  const u32 lane = (u32)lane_id();
  if constexpr (S::SCALED) {
    // A lane has eight adjacent columns of every 32, where the matrix units expect pairs; q has the same order.
    const u32 k_row = tile + lane / 4 * S::K_STRIDE + lane % 4 * 8;
    const u32 q_row = q_place + (lane / 4 * S::Q_STRIDE + first + lane % 4 * 8) * 2;
    #pragma unroll
    for (u32 c = 0; c < S::COLUMNS; c += 32) {
      const v4 q = load_shared16(q_row + c * 2);
      #pragma unroll
      for (u32 i = 0; i < S::RUNS; i++) {
        u32 k[2][4];       // of two products: both keys of the lane in turn
        #pragma unroll
        for (u32 half = 0; half < 2; half++) {
          const v2 x = load_shared8(k_row + (i * RUN_KEYS + 8 * half) * S::K_STRIDE + c);
          halves_of_levels(x.x, k[0][half], k[0][2 + half]);
          halves_of_levels(x.y, k[1][half], k[1][2 + half]);
        }
        mma_16x8x16(score[i], k[0], q.x, q.y);
        mma_16x8x16(score[i], k[1], q.z, q.w);
      }
    }
  } else {
    // Addresses of this lane for `load_matrices`: the start of a row of an 8x8 matrix.
    const u32 q_row = q_place + (lane % 8 * S::Q_STRIDE + first + lane / 8 * 8) * 2;
    const u32 k_row = tile + lane % 16 * S::K_STRIDE + lane / 16 * 16;
    #pragma unroll
    for (u32 d = 0; d < S::COLUMNS / 16; d += 2) {
      u32 q[4];
      load_matrices(q, q_row + d * 32);
      #pragma unroll
      for (u32 i = 0; i < 2 * S::RUNS; i++) {
        u32 k[4];
        load_matrices(k, k_row + i / 2 * RUN_KEYS * S::K_STRIDE + (d + i % 2) * 32);
        mma_16x8x16(score[S::RUNS > 1 ? i / 2 : i], k, q[i % 2 * 2], q[i % 2 * 2 + 1]);
      }
    }
  }
}

// Returns the column of a part for the lane's i-th output of a head.
template <class S> DEV u32 output_column(u32 i) {
  const u32 lane = (u32)lane_id();
  return S::SCALED ? i / 4 * 32 + lane / 4 * 4 + i % 4 : 8 * i + lane / 4;
}

// Adds the products of weights with a tile's part of V to the outputs. `factors`: 128 times the scale of each key.
template <class S> DEV void multiply_v(float (*values)[4], u32 tile, const u32 (&weights)[S::RUNS][2],
                                       const u32 (&factors)[2 * S::RUNS]) {
  const u32 lane = (u32)lane_id();
  if constexpr (S::SCALED) {
    // A lane has four adjacent columns of every 32, which are rows of two products.
    const u32 v_row = tile + lane % 4 * 2 * S::V_STRIDE + lane / 4 * 4;
    #pragma unroll
    for (u32 i = 0; i < S::RUNS; i++)
      #pragma unroll
      for (u32 c = 0; c < S::COLUMNS; c += 32) {
        u32 v[2][4];
        #pragma unroll
        for (u32 half = 0; half < 2; half++) {
          const u32 from = v_row + (i * RUN_KEYS + 8 * half) * S::V_STRIDE + c;
          const u32 even = load_shared4(from), odd = load_shared4(from + S::V_STRIDE), factor = factors[2 * i + half];
          // Interleaved levels of both keys: of columns 0 and 1, and of 2 and 3.
          u32 x[4];
          halves_of_levels(__byte_perm(even, odd, 0x5140), x[0], x[1]);
          halves_of_levels(__byte_perm(even, odd, 0x7362), x[2], x[3]);
          #pragma unroll
          for (u32 j = 0; j < 4; j++) v[j / 2][2 * half + j % 2] = hmul2(x[j], factor);
        }
        mma_16x8x16(values[c / 16], v[0], weights[i][0], weights[i][1]);
        mma_16x8x16(values[c / 16 + 1], v[1], weights[i][0], weights[i][1]);
      }
  } else {
    const u32 v_row = tile + (lane / 16 * 8 + lane % 8) * S::V_STRIDE + lane / 8 % 2 * 16;
    #pragma unroll
    for (u32 i = 0; i < S::RUNS; i++)
      #pragma unroll
      for (u32 d = 0; d < S::COLUMNS / 16; d++) {
        u32 v[4];
        load_matrices_transposed(v, v_row + i * RUN_KEYS * S::V_STRIDE + d * 32);
        mma_16x8x16(values[d], v, weights[i][0], weights[i][1]);
      }
  }
}

// ------------------------------------------------------------------------------------------------ the kernel
// Attends with the heads of one chunk, and combines the results of the warps. The first chunk waits for the previous
// kernel once the position of its first tile is known. `ends_context`: the split's last key is the token's own. If this
// kernel rotates that key, it is not in the cache.
template <class S> DEV void attend_on_matrix_units(const AttentionArgs& a, const Work& w, Keys<typename S::T> keys,
                                                   bool ends_context, u32 chunk, typename S::Lds& lds) {
  const u32 lane = (u32)lane_id(), warp = (u32)tid_x() / 32;
  const u32 first = chunk * S::HEADS, heads = min_(S::HEADS, w.heads - first), end = keys.end;
  const u32 first_tile = keys.first / RUN_KEYS * RUN_KEYS + warp * S::KEYS;
  const bool adds_key = ends_context && a.rotation.slot_mapping;
  if (adds_key) keys.end--;
  const u32 tile = shared_address(lds.tiles[warp]);
  WarpTiles<S> tiles;
  tiles.keys = keys;
  const float (*scales)[S::KEYS] = lds.scales[S::SCALED ? warp : 0];     // of the tile's K, of its V
  if (chunk) block_sync();                               // the previous chunk's results were read
  if (first_tile < end) tiles.start(first_tile, end, tile);
  if (!chunk) {
    pdl_launch();
    pdl_wait();
  }
  if (first_tile < end) tiles.copy_first(keys.k, S::K_STRIDE, scales[0]);
  for (u32 i = (u32)tid_x(); i < (S::HEADS - heads) * S::Q_STRIDE / 8; i += S::THREADS)
    *((v4*)lds.q[heads] + i) = {0, 0, 0, 0};
  stage<S>(a, w, w.first_head + first, heads, adds_key, lds);
  block_sync();                                          // the queries are in shared memory

  const u32 q_place = shared_address(lds.q);
  const float to_log2 = a.softcap != 0.f ? LOG2E : a.scale * LOG2E;    // of a score below
  // Lane l has heads 2 * (l % 4) and 2 * (l % 4) + 1. Of the scores it has keys l / 4 and l / 4 + 8 of every 16, of the
  // outputs those columns.
  float values[S::D / 16][4] = {}, top[2] = {NOTHING, NOTHING}, sum[2] = {0.f, 0.f};
  for (u32 key = first_tile; key < end; key += S::KEYS * S::GROUPS) {
    // Waits for a part of the tile, and inserts the new token's part.
    const auto arrive_part = [&](const typename S::T* of_new, u32 stride) {
      copies_wait();
      warp_sync();
      if (!adds_key || end - key > S::KEYS) return;
      if (lane < S::ROW / 16)
        store_shared(tile + (end - 1 - key) * stride + lane * 16, ld16((const u8*)of_new + lane * 16));
      warp_sync();
    };
    const u32 new_place = adds_key ? end - 1 - key : S::KEYS;
    constexpr u32 CHAINS = S::RUNS > 1 ? S::RUNS : 2;    // independent chains of products
    float score[CHAINS][4] = {};
    #pragma unroll
    for (u32 part = 0; part < S::PARTS; part++) {
      arrive_part(lds.k + part * S::COLUMNS, S::K_STRIDE);
      multiply_k<S>(score, tile, q_place, part * S::COLUMNS);
      warp_sync();                                       // all lanes have read the part
      if (part + 1 < S::PARTS) tiles.copy(keys.k, part + 1, S::K_STRIDE);
      else tiles.copy_first(keys.v, S::V_STRIDE, scales[1]);
    }
    if constexpr (S::RUNS == 1)
      #pragma unroll
      for (u32 i = 0; i < 4; i++) score[0][i] += score[1][i];
    if constexpr (S::SCALED)
      #pragma unroll
      for (u32 i = 0; i < 2 * S::RUNS; i++) {
        const float scale = tiles.scale_of(scales[0], 8 * i + lane / 4, new_place, lds.k_scale) * LEVELS_OF_HALVES;
        score[i / 2][i % 2 * 2] *= scale;
        score[i / 2][i % 2 * 2 + 1] *= scale;
      }
    if (a.softcap != 0.f)
      #pragma unroll
      for (u32 i = 0; i < 4 * S::RUNS; i++) {
        float& x = score[i / 4][i % 4];
        x = soft_cap(x * a.scale, a.softcap);
      }
    if (a.alibi != 0.f) {
      const u32 head = w.first_head + first + lane % 4 * 2, position = ld_step(a.context_lens + w.sequence) - 1;
      const DistanceBias biases[2] = {distance_bias(a, head, to_log2), distance_bias(a, head + 1, to_log2)};
      #pragma unroll
      for (u32 i = 0; i < 4 * S::RUNS; i++) {
        float& x = score[i / 4][i % 4];
        x = biases[i % 2].add(x, key + i / 2 * 8 + lane / 4, position);
      }
    }
    if (key < keys.first || key + S::KEYS > end)
      #pragma unroll
      for (u32 i = 0; i < 4 * S::RUNS; i++) {
        const u32 k = key + i / 2 * 8 + lane / 4;
        if (k < keys.first || k >= end) score[i / 4][i % 4] = MASKED;
      }

    float highest[2] = {score[0][0], score[0][1]};
    #pragma unroll
    for (u32 i = 2; i < 4 * S::RUNS; i++) highest[i % 2] = fmax_(highest[i % 2], score[i / 4][i % 4]);
    if (warp_any((highest[0] - top[0]) * to_log2 > RISE || (highest[1] - top[1]) * to_log2 > RISE))
      #pragma unroll
      for (u32 h = 0; h < 2; h++) {
        highest[h] = fmax_(highest[h], shfl_xor<4>(highest[h]));
        highest[h] = fmax_(highest[h], shfl_xor<8>(highest[h]));
        highest[h] = fmax_(highest[h], shfl_xor<16>(highest[h]));
        highest[h] = fmax_(highest[h], top[h]);
        const float factor = fast_exp2((top[h] - highest[h]) * to_log2);
        top[h] = highest[h];
        sum[h] *= factor;
        #pragma unroll
        for (u32 i = 0; i < S::D / 16; i++) { values[i][h] *= factor; values[i][2 + h] *= factor; }
      }
    u32 weights[S::RUNS][2];
    #pragma unroll
    for (u32 i = 0; i < 2 * S::RUNS; i++) {
      float* x = &score[i / 2][i % 2 * 2];
      #pragma unroll
      for (u32 h = 0; h < 2; h++) {
        x[h] = fast_exp2(fma_(x[h], to_log2, -(top[h] * to_log2)));
        sum[h] += x[h];                                  // of this lane's keys; the others' are added at the end
      }
      weights[i / 2][i % 2] = transposed(pack(x[0], x[1]));
    }

    u32 v_factors[2 * S::RUNS] = {};                     // 128 times the scales of two keys, as halves
    #pragma unroll
    for (u32 part = 0; part < S::PARTS; part++) {
      arrive_part(lds.v + part * S::COLUMNS, S::V_STRIDE);
      if (S::SCALED && part == 0)
        #pragma unroll
        for (u32 i = 0; i < 2 * S::RUNS; i++) {
          const u32 place = 8 * i + lane % 4 * 2;
          const float even = tiles.scale_of(scales[1], place, new_place, lds.v_scale) * LEVELS_OF_HALVES;
          const float odd = tiles.scale_of(scales[1], place + 1, new_place, lds.v_scale) * LEVELS_OF_HALVES;
          v_factors[i] = pack(clamp_half(even), clamp_half(odd));
        }
      multiply_v<S>(values + part * S::COLUMNS / 16, tile, weights, v_factors);
      warp_sync();
      if (part + 1 < S::PARTS) tiles.copy(keys.v, part + 1, S::V_STRIDE);
    }
    tiles.go_on();
    if (tiles.key < end) tiles.copy_first(keys.k, S::K_STRIDE, scales[0]);
  }

  #pragma unroll
  for (u32 h = 0; h < 2; h++) {
    sum[h] += shfl_xor<4>(sum[h]);
    sum[h] += shfl_xor<8>(sum[h]);
    sum[h] += shfl_xor<16>(sum[h]);
  }
  for (u32 done = 0; done < heads; done += S::QUERIES) {
    block_sync();                                        // the previous content was read
    #pragma unroll
    for (u32 h = 0; h < 2; h++) {
      const u32 head = lane % 4 * 2 + h, place = head - done;
      if (head >= heads || place >= S::QUERIES) continue;
      #pragma unroll
      for (u32 i = 0; i < S::D / 8; i++)
        lds.results.values[warp][place][output_column<S>(i)] = values[i / 2][i % 2 * 2 + h];
      if (lane < 4) {
        lds.results.top[warp][place] = top[h] * to_log2;
        lds.results.sum[warp][place] = sum[h];
      }
    }
    block_sync();                                        // the results are complete
    combine_groups<S>(a, w, (first + done) / S::QUERIES, lds.results);
  }
}

template <class T, u32 D, u32 THREADS> DEV void attention_decode_mma(const AttentionArgs& a) {
  using S = MatrixShape<T, D, THREADS>;
  SHARED typename S::Lds lds;
  Work w;
  // The search reads only the step's inputs, so it may run before pdl_wait.
  if (!find_split<S>(a, w, lds.search)) return;
  const Keys<T> keys = keys_of_runs<T>(a, w);
  const bool ends_context = keys.first < keys.end && w.split == w.splits - 1;
  if (keys.first < keys.end) {         // each warp's first tile, for which it would wait longest
    Keys<T> soon = keys;
    soon.end = min_(keys.end, keys.first / RUN_KEYS * RUN_KEYS + S::KEYS * S::GROUPS);
    prefetch_keys<S::THREADS>(soon);
  }
  for (u32 chunk = 0; chunk < w.chunks; chunk++) attend_on_matrix_units<S>(a, w, keys, ends_context, chunk, lds);
  finish_heads<S>(a, w, a.counters + (u64)w.item * a.num_kv_heads + w.kv_head);
}
