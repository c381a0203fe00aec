// Attention of one token per sequence over the paged cache, with the context split over the grid (flash decoding).
//
// A block attends with the query heads of one kv head to one split of the keys. K and V are then read once for these
// heads. For few, short sequences it attends with one query head: then the latency of a block counts. All values that
// change from step to step are read from device memory: a captured launch serves any context, and a split may be empty.
//
// With a slot_mapping in `rotation`, q, k and v come unrotated from the projection. A block then rotates its queries.
// The block whose split ends the context also rotates the new token's k. One such block stores k and v; all of them
// attend to the new token from LDS.
#pragma once
#include "arrival.h"
#include "attention.h"
#include "rope.h"

// The work of a block: an item's token and `heads` query heads of one kv head, in chunks of QUERIES heads. Up to GROUPS
// chunks run in parallel, one per group. With fewer chunks, the groups share the keys of a chunk.
struct Work {
  u32 item, split;
  u32 sequence, row;
  u32 kv_head, first_head, heads, chunks, side_by_side;
  u32 splits, first_split; // of the item: the blocks that share a head's keys; index of their first result
};

// The shape of a block of THREADS: a group of 32 lanes has QUERIES heads at once. PER_HEAD: a block for each query
// head. VALUES: elements of V, if V is the beginning of K's latent row; such rows are not rotated here.
template <class Element, u32 HEAD_SIZE, u32 THREADS_, u32 QUERIES_, bool PER_HEAD_, u32 VALUES_ = HEAD_SIZE>
struct Shape {
  using T = Element;
  static constexpr u32 D = HEAD_SIZE, THREADS = THREADS_, QUERIES = QUERIES_, GROUPS = THREADS / 32;
  static constexpr u32 VALUES = VALUES_, COLUMNS = FewQueries<T, D, QUERIES, VALUES>::COLUMNS;
  static constexpr bool PER_HEAD = PER_HEAD_, LATENT = VALUES < D;
  // Heads that a block works on in parallel.
  static constexpr u32 HEADS = PER_HEAD ? 1 : GROUPS * QUERIES;

  // Results of the groups: values relative to exp2(top), and the sum of the weights.
  struct Results {
    float values[GROUPS][QUERIES][VALUES], top[GROUPS][QUERIES], sum[GROUPS][QUERIES];
  };
  struct Lds {
    alignas(16) float q[HEADS][COLUMNS];
    T k[LATENT ? 8 : D], v[LATENT ? 8 : D];  // of the new token, rounded as in the cache
    float k_scale, v_scale;                  // their scales, if the cache has scales
    Results results;
  };
};

// Returns the number of blocks per item and split. Latent attention divides its many heads, which share one KV head.
template <class S> DEV u32 blocks_of(const AttentionArgs& a) {
  if (S::PER_HEAD) return a.num_heads;
  return S::LATENT ? (a.num_heads + S::HEADS - 1) / S::HEADS : a.num_kv_heads;
}

template <class S> DEV Work work_of(const AttentionArgs& a) {
  const u32 group_heads = a.num_heads / a.num_kv_heads;
  Work w;
  w.item = (u32)bid_x();
  w.split = (u32)bid_z();
  w.splits = a.splits;
  w.first_split = w.item * a.splits;
  w.sequence = ld_step(a.items + w.item);
  w.row = ld_step(a.q_start + w.sequence);
  if (S::LATENT) {
    w.kv_head = 0;
    w.first_head = (u32)bid_y() * S::HEADS;
    w.heads = min_(S::HEADS, a.num_heads - w.first_head);
  } else {
    w.kv_head = S::PER_HEAD ? (u32)bid_y() / group_heads : (u32)bid_y();
    w.first_head = S::PER_HEAD ? (u32)bid_y() : w.kv_head * group_heads;
    w.heads = S::PER_HEAD ? 1 : group_heads;
  }
  w.chunks = (w.heads + S::QUERIES - 1) / S::QUERIES;
  w.side_by_side = w.chunks == 1 ? 1 : w.chunks == 2 ? 2 : S::GROUPS;
  return w;
}

// Returns the split's share of the blocks that the token sees.
template <class T> DEV Keys<T> keys_of_split(const AttentionArgs& a, const Work& w) {
  const u32 context = ld_step(a.context_lens + w.sequence), first = context ? first_key(context - 1, a.window) : 0;
  const u32 first_block = first / a.block_size, num_blocks = (context + a.block_size - 1) / a.block_size - first_block;
  const u32 share = (num_blocks + a.splits - 1) / a.splits, block = first_block + w.split * share;
  return keys_of<T>(a, w.sequence, w.kv_head, max_(first, block * a.block_size),
                    min_(context, (block + share) * a.block_size));
}

// Prefetches the split's keys into L2. They come from device memory: all weights have passed through L2 since the last
// step.
template <u32 THREADS, class T> DEV void prefetch_keys(const Keys<T>& keys) {
  constexpr u32 LINE = 128 / sizeof(T);
  const u32 lines = (keys.head_dim + LINE - 1) / LINE;
  for (u32 i = (u32)tid_x(); i < (keys.end - keys.first) * lines; i += THREADS) {
    const u32 key = keys.first + i / lines;
    const u64 at = ld_step(keys.table + key / keys.block_size) * keys.block_stride +
                   (u64)(key % keys.block_size) * keys.head_dim + i % lines * LINE;
    prefetch(keys.k + at);
    if (keys.v != keys.k) prefetch(keys.v + at);
  }
}

// Puts heads `first` .. `first + heads` of latent attention into LDS.
template <class S> DEV void stage_latent(const AttentionArgs& a, const Work& w, u32 first, u32 heads, typename S::Lds& lds) {
  const float* row = a.qkv + (u64)w.row * a.row_cols + first * a.head_dim;
  for (u32 i = recomputed(tid_x()); i < heads * S::COLUMNS; i += S::THREADS) {
    const u32 head = i / S::COLUMNS, column = i % S::COLUMNS;
    lds.q[head][column] = column < a.head_dim ? row[head * a.head_dim + column] : 0.f;
  }
}

// Puts heads `first` .. `first + heads` into LDS, and the new token's k and v if `adds_key`. Each group takes heads in
// turn. All groups make the same number of iterations, because two groups may form a wave.
template <class S>
DEV void stage(const AttentionArgs& a, const Work& w, u32 first, u32 heads, bool adds_key, typename S::Lds& lds) {
  using T = typename S::T;
  const RotationArgs& r = a.rotation;
  const bool rotates = r.slot_mapping != nullptr;
  const float* row = a.qkv + (u64)w.row * a.row_cols;
  const float* angles = r.angles + (u64)w.row * 2 * r.num_pairs;
  const bool stores = adds_key && first == w.kv_head * (a.num_heads / a.num_kv_heads);
  const u32 slot = stores ? ld_step(r.slot_mapping + w.row) : NO_SLOT, all = heads + (adds_key ? 2 : 0);
  for (u32 turn = 0; turn < all; turn += S::GROUPS) {
    const u32 thread = recomputed(tid_x()), i = turn + (thread >> 5);
    const bool is_q = i < heads, is_k = i == heads, exists = i < all;
    // Heads of V are not rotated: their pairs are adjacent elements.
    const bool is_v = !is_q && !is_k;
    const u32 dim = is_v ? a.value_dim : a.head_dim, head = is_q ? first + i : a.num_heads + w.kv_head;
    const u32 from = is_v ? (a.num_heads + a.num_kv_heads) * a.head_dim + w.kv_head * dim : head * dim;
    GroupHead<S::D> mine;
    mine.load(row + from, exists, dim, is_v ? 0 : r.num_pairs, (r.flags & ROTATION_NEOX) != 0);
    if (rotates) mine.load_angles(angles, is_q || is_k);
    loads_first();
    mine.arrange();
    if (rotates) apply<true>(r, mine, w.row, is_q, is_k);
    float scale = 0.f;
    if constexpr (HAS_SCALES<T>)
      if (adds_key) scale = mine.round_to_levels(!is_q);
    if (is_q) {
      mine.store(lds.q[i]);
    } else if (exists) {
      mine.store(is_k ? lds.k : lds.v);
      if constexpr (HAS_SCALES<T>)
        if ((thread & 31) == 0) (is_k ? lds.k_scale : lds.v_scale) = scale;
      if (slot != NO_SLOT) {
        const u32 block = slot / a.block_size, token = slot % a.block_size;
        T* to = cache_head<T>(is_k ? a.k_cache : a.v_cache, block, w.kv_head, a.num_kv_heads, a.block_size, a.head_dim);
        mine.store(to + (u64)token * a.head_dim);
        if constexpr (HAS_SCALES<T>)
          if ((thread & 31) == 0) scales_of(to, a.block_size, a.head_dim)[token] = scale;
      }
    }
    for (u32 c = dim + (thread & 31); c < S::D && exists; c += 32) {
      if (is_q) lds.q[i][c] = {};
      else (is_k ? lds.k : lds.v)[c] = 0;
    }
  }
}

// Attends with this group's part of the chunks from `chunk` on. `ends_context`: the split's last key is the token's
// own.
template <class S> DEV void attend(const AttentionArgs& args, const Work& w, Keys<typename S::T> keys,
                                   bool ends_context, u32 chunk, typename S::Lds& lds) {
  using Queries = FewQueries<typename S::T, S::D, S::QUERIES, S::VALUES>;
  const u32 group = recomputed(tid_x()) >> 5, worker = group / w.side_by_side;
  const u32 first = chunk * S::QUERIES, heads = min_(w.side_by_side * S::QUERIES, w.heads - first);
  const bool adds_key = !S::LATENT && ends_context && args.rotation.slot_mapping;
  if constexpr (S::LATENT) stage_latent<S>(reload(args), w, w.first_head + first, heads, lds);
  else stage<S>(reload(args), w, w.first_head + first, heads, adds_key, lds);
  block_sync();                                        // the queries are in LDS
  const AttentionArgs& a = reload(args);
  if (adds_key) keys.end--;                            // the cache may not have it yet
  Queries queries;
  queries.head = w.first_head + first + group % w.side_by_side * S::QUERIES;
  queries.head_step = 1;
  queries.position = a.alibi != 0.f ? ld_step(a.context_lens + w.sequence) - 1 : 0;
  queries.position_step = 0;
  #pragma unroll
  for (u32 i = 0; i < S::QUERIES; i++) {
    // Places after the last head compute it again; nobody reads them.
    const float* q = lds.q[min_(group % w.side_by_side * S::QUERIES + i, heads - 1)] + Queries::column();
    queries.set_query(i, q, 256, query_factor(a), keys.first, keys.end);
  }
  if constexpr (!S::LATENT) if (adds_key) {
    Eight<typename S::T> k[Queries::PARTS], v[Queries::PARTS];
    #pragma unroll
    for (u32 p = 0; p < Queries::PARTS; p++) {
      k[p].load(lds.k + Queries::column(p));
      v[p].load(lds.v + Queries::column(p));
    }
    const bool mine = worker == 0 && (recomputed(tid_x()) & 31) < Queries::LANES;
    queries.begin_with(k, v, lds.k_scale, lds.v_scale, mine, a.softcap);
  }
  queries.attend(keys, worker, S::GROUPS / w.side_by_side, a);
  queries.merge_runs();
  if ((recomputed(tid_x()) & 31) >= Queries::LANES) return;
  #pragma unroll
  for (u32 i = 0; i < S::QUERIES; i++) {
    #pragma unroll
    for (u32 p = 0; p < Queries::VALUE_PARTS; p++)
      #pragma unroll
      for (u32 j = 0; j < 8; j++) lds.results.values[group][i][Queries::column(p) + j] = queries.values[i][p][j];
    lds.results.top[group][i] = queries.top[i];
    lds.results.sum[group][i] = queries.sum[i];
  }
}

// Returns the address of result `split` of a head of the item.
DEV float* partial_of(const AttentionArgs& a, const Work& w, u32 head, u32 split) {
  return a.partial + ((u64)(w.first_split + split) * a.num_heads + head) * (a.value_dim + 2);
}

// Sums up four adjacent columns of a head from several results, in the order of the calls.
struct Columns {
  float top = NOTHING, sum = 0, values[4] = {0, 0, 0, 0};

  MEMBER void add(float top_, float sum_, const float* values_) {
    const float highest = fmax_(top, top_), mine = fast_exp2(top - highest), other = fast_exp2(top_ - highest);
    top = highest;
    sum = sum * mine + sum_ * other;
    #pragma unroll
    for (u32 j = 0; j < 4; j++) values[j] = values[j] * mine + values_[j] * other;
  }

  MEMBER void store(const AttentionArgs& a, u32 row, u32 head, u32 column) const {
    const float factor = softmax_factor(a, head, top, sum);
    #pragma unroll
    for (u32 j = 0; j < 4; j++)
      if (column + j < a.value_dim)
        store_activation(a.out, a.format_out, row, head * a.value_dim + column + j, a.num_heads * a.value_dim,
                         gated_output(a, row, head * a.value_dim + column + j, values[j] * factor));
  }
};

// Combines the groups that shared the keys of a head into one result, of the item or of the split.
template <class S>
DEV void combine_groups(const AttentionArgs& a, const Work& w, u32 chunk, const typename S::Results& results) {
  constexpr u32 FOURS = S::VALUES / 4;
  for (u32 i = recomputed(tid_x()); i < w.side_by_side * S::QUERIES * FOURS; i += S::THREADS) {
    const u32 place = i / FOURS, query = place % S::QUERIES, column = i % FOURS * 4;
    const u32 in_block = chunk * S::QUERIES + place;
    if (in_block >= w.heads || column >= a.value_dim) continue;
    const u32 head = w.first_head + in_block;
    Columns columns;
    for (u32 g = place / S::QUERIES; g < S::GROUPS; g += w.side_by_side)
      columns.add(results.top[g][query], results.sum[g][query], &results.values[g][query][column]);
    if (w.splits == 1) {
      columns.store(a, w.row, head, column);
      continue;
    }
    float* partial = partial_of(a, w, head, w.split);
    #pragma unroll
    for (u32 j = 0; j < 4; j++)
      if (column + j < a.value_dim) partial[column + j] = columns.values[j];
    if (column == 0) {
      partial[a.value_dim] = columns.top;
      partial[a.value_dim + 1] = columns.sum;
    }
  }
}

// Sums the results of an item's heads in order, so that the output does not depend on which block came last.
template <class S> DEV void combine_splits(const AttentionArgs& a, const Work& w) {
  constexpr u32 BATCH = 4;                             // results loaded at once: this code only waits for memory
  for (u32 i = recomputed(tid_x()); i < w.heads * S::VALUES / 4; i += S::THREADS) {
    const u32 head = w.first_head + i / (S::VALUES / 4), column = i % (S::VALUES / 4) * 4;
    if (column >= a.value_dim) continue;
    Columns columns;
    for (u32 first = 0; first < w.splits; first += BATCH) {
      float top[BATCH], sum[BATCH], values[BATCH][4];
      #pragma unroll
      for (u32 u = 0; u < BATCH; u++) {
        const bool valid = first + u < w.splits;       // else the last one again, with weight 0
        const float* partial = partial_of(a, w, head, valid ? first + u : w.splits - 1);
        top[u] = valid ? partial[a.value_dim] : NOTHING;
        sum[u] = valid ? partial[a.value_dim + 1] : 0.f;
        #pragma unroll
        for (u32 j = 0; j < 4; j++) values[u][j] = partial[column + j < a.value_dim ? column + j : column];
      }
      #pragma unroll
      for (u32 u = 0; u < BATCH; u++) columns.add(top[u], sum[u], values[u]);
    }
    columns.store(a, w.row, head, column);
  }
}

// Hands over the block's results for its heads. The last of the blocks that share them, counted by `counter`, completes
// them.
template <class S> DEV void finish_heads(const AttentionArgs& a, const Work& w, u32* counter) {
  if (w.splits > 1) {
    if (!last_to_arrive<S::THREADS>(counter, w.splits)) return;
    combine_splits<S>(a, w);
  }
  if (w.first_head + w.heads == a.num_heads) store_padding(a, w.row, S::THREADS);
}

template <class S> DEV void attention_decode(const AttentionArgs& a) {
  SHARED typename S::Lds lds;
  // These three read only the step's inputs, so they may run before pdl_wait; keys are only prefetched before it.
  const Work w = work_of<S>(a);
  const Keys<typename S::T> keys = keys_of_split<typename S::T>(a, w);
  const bool ends_context = keys.first < keys.end && keys.end == ld_step(a.context_lens + w.sequence);
  if (GPU_NV && keys.first < keys.end) prefetch_keys<S::THREADS>(keys);
  pdl_launch();
  pdl_wait();
  for (u32 chunk = 0; chunk < w.chunks; chunk += w.side_by_side) {
    attend<S>(reload(a), w, keys, ends_context, chunk, lds);
    block_sync();                                      // results are complete; the next ones come after a barrier
    combine_groups<S>(reload(a), w, chunk, lds.results);
  }
  const AttentionArgs& end = reload(a);
  finish_heads<S>(end, w, end.counters + (u64)w.item * blocks_of<S>(end) + (u32)bid_y());
}
