// Attention of one token per sequence over the paged cache, the context split over the grid (flash decoding).
//
// A block attends with all query heads of one kv head to one split of the keys, so that K and V are read once for them.
// Everything that changes from step to step is read from device memory: a captured launch serves any context, and a
// split may turn out empty.
#include "attention.h"

constexpr u32 THREADS = 128, GROUPS = THREADS / 32;
constexpr u32 QUERIES = 4;               // of a group at once

// Results of the groups of a block: values relative to exp2(top), and the sum of the weights.
template <u32 D> struct GroupResults {
  float values[GROUPS][QUERIES][D], top[GROUPS][QUERIES], sum[GROUPS][QUERIES];
  bool last;
};

// Result number `split` of a head of an item.
DEV float* partial_of(const AttentionArgs& a, u32 item, u32 head, u32 split) {
  return a.partial + (((u64)item * a.num_heads + head) * a.splits + split) * (a.head_dim + 2);
}

// Whether this block is the last of its item and kv head to get here. All partial results are then visible to it: each
// thread's stores are released before the count, and acquired after it, at the scope of the whole device.
DEV bool last_to_arrive(const AttentionArgs& a, u32 item, u32 kv_head, bool& last) {
  device_fence();
  block_sync_all();
  if (tid_x() == 0) {
    u32* counter = a.counters + (u64)item * a.num_kv_heads + kv_head;
    last = add_release(counter, 1) == a.splits - 1;
    if (last) *counter = 0;                            // for the next launch; nobody else comes
  }
  block_sync_all();
  device_fence();
  return last;
}

// Sums the splits of an item's heads in order, so that the result does not depend on which block came last.
template <u32 D> DEV void combine_splits(const AttentionArgs& a, u32 item, u32 row, u32 kv_head) {
  const u32 heads = a.num_heads / a.num_kv_heads, stride = a.head_dim + 2;
  for (u32 i = (u32)tid_x(); i < heads * (D / 8); i += THREADS) {
    const u32 head = kv_head * heads + i / (D / 8), column = i % (D / 8) * 8;
    const float* partial = partial_of(a, item, head, 0);
    float top = NOTHING, sum = 0, values[8] = {};
    for (u32 split = 0; split < a.splits; split++) top = fmax_(top, partial[split * stride + a.head_dim]);
    for (u32 split = 0; split < a.splits; split++, partial += stride) {
      const float factor = fast_exp2(partial[a.head_dim] - top);
      sum = fma_(partial[a.head_dim + 1], factor, sum);
      #pragma unroll
      for (u32 j = 0; j < 8; j++) values[j] = fma_(column + j < a.head_dim ? partial[column + j] : 0.f, factor, values[j]);
    }
    const float factor = softmax_factor(a, head, top, sum);
    #pragma unroll
    for (u32 j = 0; j < 8; j++) values[j] *= factor;
    store_eight(a, row, head, column, values);
  }
}

template <class T, u32 D> DEV void attention_decode(const AttentionArgs& a) {
  using Queries = FewQueries<T, D, QUERIES>;
  constexpr u32 LANES = Queries::LANES;
  SHARED GroupResults<D> results;
  const u32 item = (u32)bid_x(), kv_head = (u32)bid_y(), split = (u32)bid_z(), group = (u32)tid_x() >> 5;
  const u32 sequence = a.items[item], row = a.q_start[sequence], context = a.context_lens[sequence];
  const u32 heads = a.num_heads / a.num_kv_heads;

  // This split's share of the blocks that the token sees.
  const u32 first = context ? first_key(context - 1, a.window) : 0;
  const u32 first_block = first / a.block_size, num_blocks = (context + a.block_size - 1) / a.block_size - first_block;
  const u32 share = (num_blocks + a.splits - 1) / a.splits;
  const u32 start = max_(first, (first_block + split * share) * a.block_size);
  const u32 end = min_(context, (first_block + (split + 1) * share) * a.block_size);
  const Keys<T> keys = keys_of<T>(a, sequence, kv_head, start, end);

  // Heads go in chunks of QUERIES. Up to four chunks run side by side on a group each; with fewer of them the groups
  // share the keys.
  const u32 chunks = (heads + QUERIES - 1) / QUERIES;
  const u32 side_by_side = chunks == 1 ? 1 : chunks == 2 ? 2 : GROUPS;
  const u32 workers = GROUPS / side_by_side;
  for (u32 chunk = 0; chunk < chunks; chunk += side_by_side) {
    Queries queries;
    const float* q = a.qkv + (u64)row * (a.num_heads + 2 * a.num_kv_heads) * a.head_dim;
    #pragma unroll
    for (u32 i = 0; i < QUERIES; i++) {
      // Places beyond the last head compute it again; nobody reads them.
      const u32 head = kv_head * heads + min_((chunk + group % side_by_side) * QUERIES + i, heads - 1);
      queries.set_query(i, q + head * a.head_dim, a.head_dim, query_factor(a), keys.first, keys.end);
    }
    queries.attend(keys, group / side_by_side, workers, a.softcap);
    queries.merge_quartets();
    if (((u32)tid_x() & 31) < LANES) {
      #pragma unroll
      for (u32 i = 0; i < QUERIES; i++) {
        #pragma unroll
        for (u32 j = 0; j < 8; j++) results.values[group][i][Queries::column() + j] = queries.values[i][j];
        results.top[group][i] = queries.top[i];
        results.sum[group][i] = queries.sum[i];
      }
    }
    block_sync();

    for (u32 i = (u32)tid_x(); i < side_by_side * QUERIES * LANES; i += THREADS) {
      const u32 place = i / LANES, column = i % LANES * 8, in_group = chunk * QUERIES + place;
      if (in_group >= heads) continue;
      const u32 head = kv_head * heads + in_group, lane = place % QUERIES;
      float top = NOTHING, sum = 0, values[8] = {};
      for (u32 w = 0; w < workers; w++) top = fmax_(top, results.top[w * side_by_side + place / QUERIES][lane]);
      for (u32 w = 0; w < workers; w++) {
        const u32 g = w * side_by_side + place / QUERIES;
        const float factor = fast_exp2(results.top[g][lane] - top);
        sum = fma_(results.sum[g][lane], factor, sum);
        #pragma unroll
        for (u32 j = 0; j < 8; j++) values[j] = fma_(results.values[g][lane][column + j], factor, values[j]);
      }
      if (a.splits == 1) {
        const float factor = softmax_factor(a, head, top, sum);
        #pragma unroll
        for (u32 j = 0; j < 8; j++) values[j] *= factor;
        store_eight(a, row, head, column, values);
      } else {
        float* partial = partial_of(a, item, head, split);
        #pragma unroll
        for (u32 j = 0; j < 8; j++)
          if (column + j < a.head_dim) partial[column + j] = values[j];
        if (column == 0) {
          partial[a.head_dim] = top;
          partial[a.head_dim + 1] = sum;
        }
      }
    }
    block_sync();                                      // before the next chunks overwrite the results
  }

  if (a.splits > 1) {
    if (!last_to_arrive(a, item, kv_head, results.last)) return;
    combine_splits<D>(a, item, row, kv_head);
  }
  if (kv_head == a.num_kv_heads - 1) store_padding(a, row, THREADS);
}

#define ATTENTION_DECODE(type, suffix, D)                                       \
  KERNEL(THREADS, attention_decode_##suffix##_d##D, AttentionArgs) {            \
    pdl_wait();                                                                 \
    attention_decode<type, D>(a);                                               \
  }
ATTENTION_DECODE(f16, f16, 64)
ATTENTION_DECODE(f16, f16, 128)
ATTENTION_DECODE(f16, f16, 256)
ATTENTION_DECODE(float, f32, 64)
ATTENTION_DECODE(float, f32, 128)
ATTENTION_DECODE(float, f32, 256)
