// Attention of single rows on NVIDIA's matrix units, over an f16 cache, for heads of up to 256 elements: mma.m16n8k16.
// Keys are the rows of the scores' product, and columns of V those of the outputs' one, so that K and V are read once,
// as they lie. The columns are eight query heads of one kv head; those of a smaller group are empty, which costs
// nothing, since all of this waits for memory. q and the weights are rounded to f16, as for prompts.
//
// Each warp of a block walks tiles of keys by itself, without a barrier. It has one place for them, to which
// asynchronous copies bring K, then V, then K of its next tile: while one warp waits, others multiply.
//
// The contexts of all items are cut into pieces of about the same length, a block for each piece and kv head: long ones
// beside short ones leave no block with much work when the others are done.
#pragma once
#include "attention_decode.h"
#include "attention_nv.h"

// Keys of a run, which lies within one block of the cache: rows of an operand of the matrix units.
constexpr u32 RUN_KEYS = 16;

// An element of q as the matrix units take it: it saturates.
struct QueryHalf { f16 bits; };
DEV void store_cache(QueryHalf* at, float x) { at->bits = f2h_sat(x); }
DEV void store_cache(QueryHalf* at, float x, float y) { *(u32*)at = f2h_sat(x) | (u32)f2h_sat(y) << 16; }
DEV void store_cache(QueryHalf* at, float x, float y, float z, float w) {
  *(v2*)at = {f2h_sat(x) | (u32)f2h_sat(y) << 16, f2h_sat(z) | (u32)f2h_sat(w) << 16};
}

// The shape of a block, for heads of up to HEAD_SIZE elements.
template <u32 HEAD_SIZE> struct MatrixShape {
  using T = f16;
  static constexpr u32 D = HEAD_SIZE, THREADS = ATTENTION_DECODE_MMA_THREADS, GROUPS = THREADS / 32;
  static constexpr u32 HEADS = 8, QUERIES = D <= 128 ? 8 : 4;        // side by side; whose results have room at once
  static constexpr u32 VALUES = D;
  static constexpr bool PER_HEAD = false, LATENT = false;
  static constexpr u32 KEYS = D < 128 ? 32 : 16, RUNS = KEYS / RUN_KEYS;      // of a tile
  static constexpr u32 COLUMNS = D < 128 ? D : 128, PARTS = D / COLUMNS;      // of a tile; wide heads have several
  static constexpr u32 STRIDE = COLUMNS + 8;                                  // rows 16 bytes apart in the banks

  // Counts of the search for a block's piece.
  struct Search {
    u32 runs[GROUPS], pieces[GROUPS];        // of a warp's items
    u32 item, count, first;                  // the item that is found, its pieces, and the number of its first one
  };
  struct Results {
    float values[GROUPS][QUERIES][VALUES + 4], top[GROUPS][QUERIES], sum[GROUPS][QUERIES];
  };
  struct Lds {
    alignas(16) QueryHalf q[HEADS][D + 8];
    alignas(16) f16 k[D], v[D];              // of the new token
    Search search;
    union {
      alignas(16) f16 tiles[GROUPS][KEYS][STRIDE];
      Results results;
    };
  };
};

// Tokens of an item that its row sees, in runs, and the first run.
struct Seen { u32 context, first, first_run, runs; };
DEV Seen seen_of(const AttentionArgs& a, u32 item) {
  const u32 context = ld_step(a.context_lens + ld_step(a.items + item));
  const u32 first = context ? first_key(context - 1, a.window) : 0, first_run = first / RUN_KEYS;
  return {context, first, first_run, (context + RUN_KEYS - 1) / RUN_KEYS - first_run};
}

// Finds the item and the piece of its context that are the block's, in the order of the items; false where there are
// fewer pieces than blocks. An item has as many as its part of all runs asks for, each of about split_tokens at least,
// and one in any case. Without splits item and piece are known.
template <class S> DEV bool find_piece(const AttentionArgs& a, Work& w, typename S::Search& search) {
  const u32 number = (u32)bid_y(), lane = (u32)lane_id(), warp = (u32)tid_x() / 32;
  w.item = w.first_piece = number;
  w.pieces = 1;
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
      const u32 pieces = item < a.num_items ? max_((seen_of(a, item).runs + share / 2) / share, 1) : 0;
      u32 end = pieces;                                  // of the item's pieces: those of the lanes up to this one
      for (u32 d = 1; d < 32; d *= 2) {
        const u32 others = shfl_u32(end, (int)(lane - d));
        if (lane >= d) end += others;
      }
      if (lane == 31) search.pieces[warp] = end;
      block_sync();
      end += before;
      for (u32 i = 0; i < S::GROUPS; i++) {
        if (i < warp) end += search.pieces[i];
        before += search.pieces[i];
      }
      if (number < end && number >= end - pieces) {
        search.item = item;
        search.count = pieces;
        search.first = end - pieces;
      }
      block_sync();                                      // it is there, and the counts were read
    }
    if (before <= number) return false;
    w.item = search.item;
    w.first_piece = search.first;
    w.pieces = search.count;
  }
  w.split = number - w.first_piece;
  w.sequence = ld_step(a.items + w.item);
  w.row = ld_step(a.q_start + w.sequence);
  w.kv_head = (u32)bid_x();
  w.heads = a.num_heads / a.num_kv_heads;
  w.first_head = w.kv_head * w.heads;
  w.chunks = (w.heads + S::HEADS - 1) / S::HEADS;
  w.side_by_side = 1;
  return true;
}

DEV Keys<f16> keys_of_piece(const AttentionArgs& a, const Work& w) {
  const Seen seen = seen_of(a, w.item);
  // Pieces have a run more or less than others, but none is without: the last one ends the context.
  const u32 run = seen.first_run + seen.runs * w.split / w.pieces;
  const u32 end = seen.first_run + seen.runs * (w.split + 1) / w.pieces;
  return keys_of<f16>(a, w.sequence, w.kv_head, max_(seen.first, run * RUN_KEYS), min_(seen.context, end * RUN_KEYS));
}

// Brings a warp's tiles of keys, one after the other. It stores zeros outside of the keys and of the head, since
// 0 * NaN is NaN.
template <class S> struct WarpTiles {
  static constexpr u32 CHUNKS = S::COLUMNS / 8, ROWS = 32 / CHUNKS;   // 16 bytes each of a row; rows side by side
  static constexpr u32 NEXT = S::KEYS * S::GROUPS;
  Keys<f16> keys;
  u32 key;                 // the first one of the tile
  u32 to;                  // the lane's place in shared memory
  u32 row, column;         // the lane's first of a tile
  u32 runs[S::RUNS];       // where the tile's runs begin, in rows of the cache
  u32 pages[S::RUNS];      // blocks of the next tile's runs, asked for a tile ahead
  u32 block, slot;         // of the first of those
  u32 last_block, block_rows, step_blocks, step_slots;

  // The keys end at `end`, the last of which may not be in the cache yet.
  MEMBER void start(const AttentionArgs& a, u32 first, u32 end, u32 tile) {
    key = first;
    row = (u32)lane_id() / CHUNKS;
    column = (u32)lane_id() % CHUNKS * 8;
    to = tile + (row * S::STRIDE + column) * 2;
    block = first / keys.block_size;
    slot = first % keys.block_size;
    step_blocks = NEXT / keys.block_size;
    step_slots = NEXT % keys.block_size;
    last_block = (end - 1) / keys.block_size;
    block_rows = a.num_kv_heads * keys.block_size;
    ask();
    locate();
  }
  // Blocks beyond the last are not read: the last one is in their place.
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
      runs[i] = pages[i] * block_rows + s;
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
  // Copies a part of the tile's K, or of its V.
  MEMBER void copy(const f16* cache, u32 part) const {
    const u32 c = part * S::COLUMNS + column;
    const bool in_head = c < keys.head_dim;
    #pragma unroll
    for (u32 i = 0; i < S::RUNS; i++) {
      const f16* from = cache + (u64)(runs[i] + row) * keys.head_dim;
      if (keys.aligned) {
        #pragma unroll
        for (u32 r = 0; r < RUN_KEYS; r += ROWS)
          copy_async(to + (i * RUN_KEYS + r) * S::STRIDE * 2, from + (u64)r * keys.head_dim + c,
                     in_head && is_there(i * RUN_KEYS + r));
      } else {
        #pragma unroll 1
        for (u32 r = 0; r < RUN_KEYS; r += ROWS) {
          Eight<f16> x = {};
          if (in_head && is_there(i * RUN_KEYS + r))
            load_unaligned(x, from + (u64)r * keys.head_dim, c, keys.head_dim);
          store_shared(to + (i * RUN_KEYS + r) * S::STRIDE * 2, x.words);
        }
      }
    }
  }
  MEMBER bool is_there(u32 distance) const {
    const u32 k = key + row + distance;
    return k >= keys.first && k < keys.end;
  }
};

// Attends with the heads of one chunk, and combines what the warps have. `ends_context`: the piece's last key is the
// token's own, which is not in the cache where this kernel rotates it.
template <class S> DEV void attend_on_matrix_units(const AttentionArgs& a, const Work& w, Keys<f16> keys,
                                                   bool ends_context, u32 chunk, typename S::Lds& lds) {
  const u32 lane = (u32)lane_id(), warp = (u32)tid_x() / 32;
  const u32 first = chunk * S::HEADS, heads = min_(S::HEADS, w.heads - first), end = keys.end;
  const u32 first_tile = keys.first / RUN_KEYS * RUN_KEYS + warp * S::KEYS;
  const bool adds_key = ends_context && a.rotation.slot_mapping;
  if (adds_key) keys.end--;
  const u32 tile = shared_address(lds.tiles[warp]);
  WarpTiles<S> tiles;
  tiles.keys = keys;
  if (chunk) block_sync();                               // the last chunk's results were read
  if (first_tile < end) {
    tiles.start(a, first_tile, end, tile);
    tiles.copy(keys.k, 0);
  }
  for (u32 i = (u32)tid_x(); i < (S::HEADS - heads) * (S::D + 8) / 8; i += S::THREADS)
    *((v4*)lds.q[heads] + i) = {0, 0, 0, 0};
  stage<S>(a, w, w.first_head + first, heads, adds_key, lds);
  block_sync();                                          // the queries are there

  // Addresses that this lane gives to `load_matrices`: where a row of an 8x8 matrix begins.
  const u32 q_row = shared_address(lds.q) + (lane % 8 * (S::D + 8) + lane / 8 * 8) * 2;
  const u32 k_row = tile + (lane % 16 * S::STRIDE + lane / 16 * 8) * 2;
  const u32 v_row = tile + ((lane / 16 * 8 + lane % 8) * S::STRIDE + lane / 8 % 2 * 8) * 2;
  constexpr u32 RUN_BYTES = RUN_KEYS * S::STRIDE * 2;
  const float to_log2 = a.softcap != 0.f ? LOG2E : a.scale * LOG2E;    // of a score below
  // Lane l has heads 2 * (l % 4) and the next one: of the scores keys l / 4 and l / 4 + 8 of every 16, of the outputs
  // such columns.
  float values[S::D / 16][4] = {}, top[2] = {NOTHING, NOTHING}, sum[2] = {0.f, 0.f};
  for (u32 key = first_tile; key < end; key += S::KEYS * S::GROUPS) {
    // Waits for a part of the tile, and puts that of the new token into it.
    const auto arrive_part = [&](const f16* of_new) {
      copies_wait();
      warp_sync();
      if (!adds_key || end - key > S::KEYS) return;
      if (lane < S::COLUMNS / 8)
        store_shared(tile + ((end - 1 - key) * S::STRIDE + lane * 8) * 2, ld16(of_new + lane * 8));
      warp_sync();
    };
    constexpr u32 CHAINS = S::RUNS > 1 ? S::RUNS : 2;    // of products that do not wait for each other
    float score[CHAINS][4] = {};
    #pragma unroll
    for (u32 part = 0; part < S::PARTS; part++) {
      arrive_part(lds.k + part * S::COLUMNS);
      #pragma unroll
      for (u32 d = 0; d < S::COLUMNS / 16; d += 2) {
        u32 q[4];
        load_matrices(q, q_row + (part * S::COLUMNS + d * 16) * 2);
        #pragma unroll
        for (u32 i = 0; i < 2 * S::RUNS; i++) {
          u32 k[4];
          load_matrices(k, k_row + i / 2 * RUN_BYTES + (d + i % 2) * 32);
          mma_16x8x16(score[S::RUNS > 1 ? i / 2 : i], k, q[i % 2 * 2], q[i % 2 * 2 + 1]);
        }
      }
      warp_sync();                                       // all lanes have read the part
      if (part + 1 < S::PARTS) tiles.copy(keys.k, part + 1);
      else tiles.copy(keys.v, 0);
    }
    if constexpr (S::RUNS == 1)
      #pragma unroll
      for (u32 i = 0; i < 4; i++) score[0][i] += score[1][i];
    if (a.softcap != 0.f)
      #pragma unroll
      for (u32 i = 0; i < 4 * S::RUNS; i++) {
        float& x = score[i / 4][i % 4];
        x = soft_cap(x * a.scale, a.softcap);
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
        for (int m = 4; m < 32; m *= 2) highest[h] = fmax_(highest[h], shfl_xor(highest[h], m));
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

    #pragma unroll
    for (u32 part = 0; part < S::PARTS; part++) {
      arrive_part(lds.v + part * S::COLUMNS);
      #pragma unroll
      for (u32 i = 0; i < S::RUNS; i++)
        #pragma unroll
        for (u32 d = 0; d < S::COLUMNS / 16; d++) {
          u32 v[4];
          load_matrices_transposed(v, v_row + i * RUN_BYTES + d * 32);
          mma_16x8x16(values[part * S::COLUMNS / 16 + d], v, weights[i][0], weights[i][1]);
        }
      warp_sync();
      if (part + 1 < S::PARTS) tiles.copy(keys.v, part + 1);
    }
    tiles.go_on();
    if (tiles.key < end) tiles.copy(keys.k, 0);
  }

  for (int m = 4; m < 32; m *= 2)
    #pragma unroll
    for (u32 h = 0; h < 2; h++) sum[h] += shfl_xor(sum[h], m);
  for (u32 done = 0; done < heads; done += S::QUERIES) {
    block_sync();                                        // what is in their place was read
    #pragma unroll
    for (u32 h = 0; h < 2; h++) {
      const u32 head = lane % 4 * 2 + h, place = head - done;
      if (head >= heads || place >= S::QUERIES) continue;
      #pragma unroll
      for (u32 i = 0; i < S::D / 8; i++)
        lds.results.values[warp][place][8 * i + lane / 4] = values[i / 2][i % 2 * 2 + h];
      if (lane < 4) {
        lds.results.top[warp][place] = top[h] * to_log2;
        lds.results.sum[warp][place] = sum[h];
      }
    }
    block_sync();                                        // they are there
    combine_groups<S>(a, w, (first + done) / S::QUERIES, lds.results);
  }
}

template <u32 D> DEV void attention_decode_mma(const AttentionArgs& a) {
  using S = MatrixShape<D>;
  SHARED typename S::Lds lds;
  Work w;
  // The search reads the step's inputs alone, so it may run ahead of pdl_wait.
  if (!find_piece<S>(a, w, lds.search)) return;
  const Keys<f16> keys = keys_of_piece(a, w);
  const bool ends_context = keys.first < keys.end && w.split == w.pieces - 1;
  pdl_launch();
  pdl_wait();
  for (u32 chunk = 0; chunk < w.chunks; chunk++) attend_on_matrix_units<S>(a, w, keys, ends_context, chunk, lds);
  finish_heads<S>(a, w, a.counters + (u64)w.item * a.num_kv_heads + w.kv_head);
}
