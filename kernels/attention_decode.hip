// Attention of one token per sequence over the paged cache, the context split over the grid (flash decoding).
//
// A block attends with all query heads of one kv head to one split of the keys, so that K and V are read once for them.
// Everything that changes from step to step is read from device memory: a captured launch serves any context, and a
// split may turn out empty.
//
// With a slot_mapping, q and k come as the projection left them. Every block then rotates its queries, and the one whose
// split ends the context also the new token's k, which it stores with v and attends to straight from its registers.
#include "arrival.h"
#include "attention.h"
#include "rope.h"

constexpr u32 GROUPS = ATTENTION_DECODE_THREADS / 32;
constexpr u32 QUERIES = 4;               // of a group at once

// Results of the groups of a block: values relative to exp2(top), and the sum of the weights.
template <u32 D> struct GroupResults {
  float values[GROUPS][QUERIES][D], top[GROUPS][QUERIES], sum[GROUPS][QUERIES];
};

// What a block works at: an item's token and the query heads of one kv head, which go in chunks of QUERIES. Up to four
// chunks run side by side on a group each; with fewer of them the groups share the keys of a chunk.
struct Work {
  u32 item, kv_head, split;
  u32 sequence, row;
  u32 heads, chunks, side_by_side;
};

DEV Work work_of(const AttentionArgs& a) {
  Work w;
  w.item = (u32)bid_x();
  w.kv_head = (u32)bid_y();
  w.split = (u32)bid_z();
  w.sequence = a.items[w.item];
  w.row = a.q_start[w.sequence];
  w.heads = a.num_heads / a.num_kv_heads;
  w.chunks = (w.heads + QUERIES - 1) / QUERIES;
  w.side_by_side = w.chunks == 1 ? 1 : w.chunks == 2 ? 2 : GROUPS;
  return w;
}

// The split's share of the blocks that the token sees.
template <class T> DEV Keys<T> keys_of_split(const AttentionArgs& a, const Work& w) {
  const u32 context = a.context_lens[w.sequence], first = context ? first_key(context - 1, a.window) : 0;
  const u32 first_block = first / a.block_size, num_blocks = (context + a.block_size - 1) / a.block_size - first_block;
  const u32 share = (num_blocks + a.splits - 1) / a.splits, block = first_block + w.split * share;
  return keys_of<T>(a, w.sequence, w.kv_head, max_(first, block * a.block_size),
                    min_(context, (block + share) * a.block_size));
}

// This group's part of the chunks from `chunk` on. `ends_context`: the split's last key is the token's own.
template <class T, u32 D> DEV void attend(const AttentionArgs& a, const Work& w, Keys<T> keys, bool ends_context,
                                          u32 chunk, GroupResults<D>& results) {
  using Queries = FewQueries<T, D, QUERIES>;
  const u32 group = (u32)tid_x() >> 5, worker = group / w.side_by_side, column = Queries::column();
  const float* q = a.qkv + (u64)w.row * (a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
  const bool rotates = a.slot_mapping != nullptr, adds_key = rotates && ends_context;
  if (adds_key) keys.end--;                            // the cache may not have it yet
  Angles angles;
  if (rotates) angles.load(a, w.row, column);
  Queries queries;
  #pragma unroll
  for (u32 i = 0; i < QUERIES; i++) {
    // Places beyond the last head compute it again; nobody reads them.
    const u32 head = w.kv_head * w.heads + min_((chunk + group % w.side_by_side) * QUERIES + i, w.heads - 1);
    float x[8];
    if (rotates) load_rotated<Queries::LANES>(a, q + head * a.head_dim, a.q_norm, angles, column, x);
    else load_eight(q + head * a.head_dim, column, a.head_dim, x);
    queries.set_query(i, x, query_factor(a), keys.first, keys.end);
  }
  if (adds_key) {
    NewKey<T> key;
    key.template load<Queries::LANES>(a, w.row, w.kv_head, angles, column);
    if (chunk == 0 && (u32)tid_x() < Queries::LANES) key.store(a, w.kv_head, column);
    queries.begin_with(key.k, key.v, worker == 0 && ((u32)tid_x() & 31) < Queries::LANES, a.softcap);
  }
  queries.attend(keys, worker, GROUPS / w.side_by_side, a.softcap);
  queries.merge_runs();
  if (((u32)tid_x() & 31) >= Queries::LANES) return;
  #pragma unroll
  for (u32 i = 0; i < QUERIES; i++) {
    #pragma unroll
    for (u32 j = 0; j < 8; j++) results.values[group][i][Queries::column() + j] = queries.values[i][j];
    results.top[group][i] = queries.top[i];
    results.sum[group][i] = queries.sum[i];
  }
}

// Result number `split` of a head of an item.
DEV float* partial_of(const AttentionArgs& a, u32 item, u32 head, u32 split) {
  return a.partial + (((u64)item * a.num_heads + head) * a.splits + split) * (a.head_dim + 2);
}

// Four neighbouring columns of a head as they are summed up from several results, in the order of the calls.
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
      if (column + j < a.head_dim)
        store_activation(a.out, a.format_out, row, head * a.head_dim + column + j, a.num_heads * a.head_dim,
                         values[j] * factor);
  }
};

// The groups that shared the keys of a head become one result, of the item or of the split.
template <u32 D>
DEV void combine_groups(const AttentionArgs& a, const Work& w, u32 chunk, const GroupResults<D>& results) {
  for (u32 i = (u32)tid_x(); i < w.side_by_side * QUERIES * D / 4; i += ATTENTION_DECODE_THREADS) {
    const u32 place = i / (D / 4), query = place % QUERIES, column = i % (D / 4) * 4;
    const u32 in_kv_head = chunk * QUERIES + place;
    if (in_kv_head >= w.heads || column >= a.head_dim) continue;
    const u32 head = w.kv_head * w.heads + in_kv_head;
    Columns columns;
    for (u32 g = place / QUERIES; g < GROUPS; g += w.side_by_side)
      columns.add(results.top[g][query], results.sum[g][query], &results.values[g][query][column]);
    if (a.splits == 1) {
      columns.store(a, w.row, head, column);
      continue;
    }
    float* partial = partial_of(a, w.item, head, w.split);
    #pragma unroll
    for (u32 j = 0; j < 4; j++)
      if (column + j < a.head_dim) partial[column + j] = columns.values[j];
    if (column == 0) {
      partial[a.head_dim] = columns.top;
      partial[a.head_dim + 1] = columns.sum;
    }
  }
}

// Sums the splits of an item's heads in order, so that the result does not depend on which block came last.
template <u32 D> DEV void combine_splits(const AttentionArgs& a, const Work& w) {
  constexpr u32 BATCH = 4;                             // splits asked for at once: this is all waiting for memory
  for (u32 i = (u32)tid_x(); i < w.heads * D / 4; i += ATTENTION_DECODE_THREADS) {
    const u32 head = w.kv_head * w.heads + i / (D / 4), column = i % (D / 4) * 4;
    if (column >= a.head_dim) continue;
    Columns columns;
    for (u32 first = 0; first < a.splits; first += BATCH) {
      float top[BATCH], sum[BATCH], values[BATCH][4];
      #pragma unroll
      for (u32 u = 0; u < BATCH; u++) {
        const bool valid = first + u < a.splits;       // else the last one again, without weight
        const float* partial = partial_of(a, w.item, head, valid ? first + u : a.splits - 1);
        top[u] = valid ? partial[a.head_dim] : NOTHING;
        sum[u] = valid ? partial[a.head_dim + 1] : 0.f;
        #pragma unroll
        for (u32 j = 0; j < 4; j++) values[u][j] = partial[column + j < a.head_dim ? column + j : column];
      }
      #pragma unroll
      for (u32 u = 0; u < BATCH; u++) columns.add(top[u], sum[u], values[u]);
    }
    columns.store(a, w.row, head, column);
  }
}

// Asks L2 for the split's keys. They come from device memory: since the step before, all weights passed through L2.
template <class T> DEV void prefetch_keys(const Keys<T>& keys) {
  constexpr u32 LINE = 128 / sizeof(T);
  const u32 lines = (keys.head_dim + LINE - 1) / LINE;
  for (u32 i = (u32)tid_x(); i < (keys.end - keys.first) * lines; i += ATTENTION_DECODE_THREADS) {
    const u32 key = keys.first + i / lines;
    const u64 at = keys.table[key / keys.block_size] * keys.block_stride +
                   (u64)(key % keys.block_size) * keys.head_dim + i % lines * LINE;
    prefetch(keys.k + at);
    prefetch(keys.v + at);
  }
}

template <class T, u32 D> DEV void attention_decode(const AttentionArgs& a) {
  SHARED GroupResults<D> results;
  // All of this is the step's input.
  const Work w = work_of(a);
  const Keys<T> keys = keys_of_split<T>(a, w);
  const bool ends_context = keys.first < keys.end && keys.end == a.context_lens[w.sequence];
  if (GPU_NV && keys.first < keys.end) prefetch_keys(keys);
  pdl_launch();
  pdl_wait();
  for (u32 chunk = 0; chunk < w.chunks; chunk += w.side_by_side) {
    attend(reload(a), w, keys, ends_context, chunk, results);
    block_sync();
    combine_groups(reload(a), w, chunk, results);
    block_sync();                                      // before the next chunks overwrite the results
  }
  const AttentionArgs& end = reload(a);
  if (end.splits > 1) {
    u32* counter = end.counters + (u64)w.item * end.num_kv_heads + w.kv_head;
    if (!last_to_arrive<ATTENTION_DECODE_THREADS>(counter, end.splits)) return;
    combine_splits<D>(end, w);
  }
  if (w.kv_head == end.num_kv_heads - 1) store_padding(end, w.row, ATTENTION_DECODE_THREADS);
}

#define ATTENTION_DECODE(type, suffix, D) \
  KERNEL(ATTENTION_DECODE_THREADS, attention_decode_##suffix##_d##D, AttentionArgs) { attention_decode<type, D>(a); }
ATTENTION_DECODE(f16, f16, 64)
ATTENTION_DECODE(f16, f16, 128)
ATTENTION_DECODE(f16, f16, 256)
ATTENTION_DECODE(float, f32, 64)
ATTENTION_DECODE(float, f32, 128)
ATTENTION_DECODE(float, f32, 256)
