// Shared code of the attention kernels: rows of the paged cache, scores, stores of the output. It also has the
// attention of a few queries in f32 on the vector units (decode, and prefill over an f32 cache).
#pragma once
#include "gpu.h"
#include "args.h"
#include "activation.h"
#include "elementary.h"
#include "kv_cache.h"

// DEV for member functions.
#if GPU_AMD
  #define MEMBER __attribute__((device)) inline __attribute__((always_inline))
#elif GPU_NV
  #define MEMBER __device__ __forceinline__
#else
  #define MEMBER inline __attribute__((always_inline))
#endif

// Returns the arguments, read again. Otherwise the compiler reads all of them at the start. It keeps those for the end
// of a kernel in scalar registers through its loops, which then have too few. A kernel's struct is its only argument,
// so it begins the argument segment.
#if GPU_AMD
DEV const AttentionArgs& reload(const AttentionArgs&) {
  auto p = (const __attribute__((address_space(4))) AttentionArgs*)__builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(p));              // hides that the pointer is the one read before
  return *(const AttentionArgs*)p;
}
#else
DEV const AttentionArgs& reload(const AttentionArgs& a) { return a; }
#endif

// Scores are in units of log2, so that a weight is one exp2. NOTHING is below every score and finite: a maximum over no
// keys can still be subtracted. MASKED is below NOTHING: its weight is 0, even if all keys are masked.
#define NOTHING (-1e30f)
#define MASKED bits_f32(0xff800000u)

DEV u32 min_(u32 x, u32 y) { return x < y ? x : y; }
DEV u32 max_(u32 x, u32 y) { return x > y ? x : y; }

// ------------------------------------------------------------------------------------------------ keys
// Keys first .. end of a sequence, for one kv head. Nothing outside of them may be read: blocks that a sliding window
// has left have no valid number, and slots that were never written may hold NaN.
template <class T> struct Keys {
  const T* k;              // the cache, from this kv head of block 0 on
  const T* v;
  const u32* table;        // for `ld_step`
  u32 first, end;
  u32 block_size, head_dim;
  u64 block_stride;        // elements
  bool aligned;            // cache rows consist of whole, aligned groups of eight elements
};

// Returns the first key that a token at `position` sees.
DEV u32 first_key(u32 position, u32 window) {
  if (window == ALL_BUT_FIRST) return position ? 1 : 0;
  if (window & WINDOW_OF_CHUNK) return position & ~((window & ~WINDOW_OF_CHUNK) - 1);
  return window && position >= window ? position + 1 - window : 0;
}

template <class T> DEV Keys<T> keys_of(const AttentionArgs& a, u32 sequence, u32 kv_head, u32 first, u32 end) {
  const u64 stride = head_stride<T>(a.block_size, a.head_dim);
  return {(const T*)a.k_cache + kv_head * stride,
          (const T*)a.v_cache + kv_head * stride,
          a.block_tables + ld_step(a.block_start + sequence),
          first,
          end,
          a.block_size,
          a.head_dim,
          a.num_kv_heads * stride,
          a.head_dim % 8 == 0};
}

// ------------------------------------------------------------------------------------------------ eight elements
DEV float as_f32(f16 x) { return h2f(x); }
DEV float as_f32(float x) { return x; }

// Eight elements of a row of the cache, in the cache's type.
template <class T> struct Eight;
template <> struct Eight<f16> {
  v4 words;
  MEMBER void load(const f16* p) { words = ld16(p); }
  MEMBER void set(const f16* x) {
    words = {x[0] | (u32)x[1] << 16, x[2] | (u32)x[3] << 16, x[4] | (u32)x[5] << 16, x[6] | (u32)x[7] << 16};
  }
  MEMBER void unpack(float* x) const {
    const u32 w[4] = {words.x, words.y, words.z, words.w};
    for (int i = 0; i < 4; i++) { x[2 * i] = lo_h(w[i]); x[2 * i + 1] = hi_h(w[i]); }
  }
};
template <> struct Eight<i8> {
  v2 words;
  MEMBER void load(const i8* p) { words = ld8(p); }
  MEMBER void set(const i8* x) {
    u32 w[2] = {0, 0};
    for (u32 i = 0; i < 8; i++) w[i / 4] |= (u32)(u8)x[i] << 8 * (i % 4);
    words = {w[0], w[1]};
  }
  MEMBER void unpack(float* x) const {
    const u32 w[2] = {words.x, words.y};
    for (u32 i = 0; i < 8; i++) x[i] = (float)(i8)(w[i / 4] >> 8 * (i % 4));
  }
};
template <> struct Eight<float> {
  v4 low, high;
  MEMBER void load(const float* p) { low = ld16(p); high = ld16(p + 4); }
  MEMBER void set(const float* x) {
    low = {f32_bits(x[0]), f32_bits(x[1]), f32_bits(x[2]), f32_bits(x[3])};
    high = {f32_bits(x[4]), f32_bits(x[5]), f32_bits(x[6]), f32_bits(x[7])};
  }
  MEMBER void unpack(float* x) const {
    const u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    for (int i = 0; i < 8; i++) x[i] = bits_f32(w[i]);
  }
};
// Converts eight elements of int8 to halves; `scale` is the token's scale.
DEV v4 halves_of_eight(const Eight<i8>& eight, float scale) {
  u32 w[4];
  halves_of_levels(eight.words.x, w[0], w[1]);
  halves_of_levels(eight.words.y, w[2], w[3]);
  const u32 factor = splat(f2h_sat(scale * LEVELS_OF_HALVES));
  return {hmul2(w[0], factor), hmul2(w[1], factor), hmul2(w[2], factor), hmul2(w[3], factor)};
}
// Loads rows that are not whole groups of eight, element by element. Columns from `cols` on repeat the last one: no
// column outside the head takes part in a score or is stored.
template <class T> DEV void load_unaligned(Eight<T>& eight, const T* row, u32 column, u32 cols) {
  T x[8];
  #pragma unroll
  for (u32 i = 0; i < 8; i++) x[i] = row[min_(column + i, cols - 1)];
  eight.set(x);
}

// Loads columns column .. column + 8 of a row of f32, and zeros from `cols` on.
DEV void load_eight(const float* row, u32 column, u32 cols, float* x) {
  const bool aligned = is_aligned(row, 16);
  const Four low = load_four(row, aligned, column, cols), high = load_four(row, aligned, column + 4, cols);
  #pragma unroll
  for (u32 j = 0; j < 4; j++) { x[j] = low.v[j]; x[4 + j] = high.v[j]; }
}

// ------------------------------------------------------------------------------------------------ output
// Returns the output of row n, column c of all heads, times its gate.
DEV float gated_output(const AttentionArgs& a, u32 n, u32 c, float x) {
  return a.gate ? x * sigmoid(a.gate[(u64)n * a.row_cols + c]) : x;
}

// Stores eight outputs of row n, from column `column` of head `head` on, but none past the head's end.
DEV void store_eight(const AttentionArgs& a, u32 n, u32 head, u32 column, const float* x) {
  const u32 cols = a.num_heads * a.value_dim, c = head * a.value_dim + column;
  if (a.value_dim % 8) {
    #pragma unroll
    for (u32 i = 0; i < 8; i++)
      if (column + i < a.value_dim) store_activation(a.out, a.format_out, n, c + i, cols, gated_output(a, n, c + i, x[i]));
    return;
  }
  if (column >= a.value_dim) return;
  float y[8];
  #pragma unroll
  for (u32 i = 0; i < 8; i++) y[i] = gated_output(a, n, c + i, x[i]);
  store_eight(a.out, a.format_out, n, c, cols, y);
}

// Stores zeros to the padding after the last head, which all formats but F32 have. All threads of a block call this.
DEV void store_padding(const AttentionArgs& a, u32 n, u32 threads) {
  if (a.format_out == FORMAT_F32) return;
  const u32 cols = a.num_heads * a.value_dim, padded = (cols + 255) & ~255u;
  for (u32 c = cols + (u32)tid_x(); c < padded; c += threads) store_activation(a.out, a.format_out, n, c, cols, 0.f);
}

// ------------------------------------------------------------------------------------------------ biases of distances
// What the distances of keys add to the scores of a head: a slope times the distance (ALiBi), or values of a table.
struct DistanceBias {
  const float* table;      // null, or the value of distance 0
  i32 reach;
  float factor;            // of distances or values

  // Adds the bias of a key to a score. The distance is negative for keys before the position.
  MEMBER float add(float score, u32 key, u32 position) const {
    const i32 distance = (i32)(key - position);
    if (!table) return fma_(factor, (float)distance, score);
    return fma_(factor, table[distance < -reach ? -reach : distance > reach ? reach : distance], score);
  }
};
// Returns the biases of a head, for scores that `to_log2` turns into units of log2. Only if the scores have biases. A
// head past the last one, whose scores nobody uses, takes the last one's.
DEV DistanceBias distance_bias(const AttentionArgs& a, u32 head, float to_log2) {
  const float unit = LOG2E / to_log2;
  if (a.biases) {
    const u32 row = min_(head, a.num_heads - 1) * (2 * a.bias_reach + 1);
    return {a.biases + (row + a.bias_reach), (i32)a.bias_reach, unit};
  }
  const float place = head < a.alibi_heads ? (float)(head + 1) : (float)(head - a.alibi_heads) + 0.5f;
  return {nullptr, 0, unit * fast_exp2(-a.alibi * place)};
}

// ------------------------------------------------------------------------------------------------ a few queries in f32
// A group of 32 lanes attends with QUERIES queries at once. A lane has eight elements of a key; for heads above 256
// elements, eight of every 256 (PARTS). D / 8 lanes share a key, 32 at most. The group therefore works on several runs
// of consecutive keys in parallel, each with its own maximum and sums. VALUES < D: a row is latent, its first VALUES
// elements are V, and there is no other V.
template <class T, u32 D, u32 QUERIES, u32 VALUES = D> struct FewQueries {
  static constexpr u32 PARTS = (D + 255) / 256, LANES = D < 256 ? D / 8 : 32, RUNS = 32 / LANES;
  static constexpr u32 VALUE_PARTS = (VALUES + 255) / 256, COLUMNS = 8 * LANES * PARTS;
  static constexpr bool LATENT = VALUES < D;

  float q[QUERIES][PARTS][8], values[QUERIES][VALUE_PARTS][8], top[QUERIES], sum[QUERIES];
  u32 first[QUERIES], end[QUERIES];      // keys of each query
  // For biases of distances: the head and the position of query 0, and the steps to those of the next query.
  u32 head, head_step, position, position_step;

  // Returns the first of this lane's eight columns of a part.
  MEMBER static u32 column(u32 part = 0) { return 256 * part + ((u32)tid_x() % LANES) * 8; }

  // Sets query `i` to this lane's columns (zeros outside the head) times `factor`; it sees keys first .. end. `x`
  // points to the columns of the first part, and those of the next part follow at distance `stride` elements.
  MEMBER void set_query(u32 i, const float* x, u32 stride, float factor, u32 first_, u32 end_) {
    for (u32 p = 0; p < PARTS; p++)
      for (u32 j = 0; j < 8; j++) q[i][p][j] = x[p * stride + j] * factor;
    for (u32 p = 0; p < VALUE_PARTS; p++)
      for (u32 j = 0; j < 8; j++) values[i][p][j] = 0;
    top[i] = NOTHING;
    sum[i] = 0;
    first[i] = first_;
    end[i] = end_;
  }

  // Returns this lane's part of the product of query `i` with a key.
  MEMBER float product(u32 i, const Eight<T> (&k)[PARTS]) const {
    float s = 0;
    #pragma unroll
    for (u32 p = 0; p < PARTS; p++) {
      float x[8];
      k[p].unpack(x);
      s = p ? fma_(q[i][p][0], x[0], s) : q[i][p][0] * x[0];
      #pragma unroll
      for (u32 j = 1; j < 8; j++) s = fma_(q[i][p][j], x[j], s);
    }
    return s;
  }

  // Starts the sums of the current queries with one key that all of them see, their own token's, in the runs where
  // `mine` is true. The scales count only for a cache with scales.
  MEMBER void begin_with(const Eight<T> (&k)[PARTS], const Eight<T> (&v)[PARTS], float k_scale, float v_scale, bool mine,
                         float softcap) {
    #pragma unroll
    for (u32 i = 0; i < QUERIES; i++) {
      float s = product(i, k);
      s = sum_lanes<LANES>(s);
      if constexpr (HAS_SCALES<T>) s *= k_scale;
      if (softcap != 0.f) s = soft_cap(s, softcap) * LOG2E;
      top[i] = mine ? s : NOTHING;
      sum[i] = mine ? 1.f : 0.f;
      #pragma unroll
      for (u32 p = 0; p < PARTS; p++) {
        float y[8];
        v[p].unpack(y);
        #pragma unroll
        for (u32 j = 0; j < 8; j++) values[i][p][j] = !mine ? 0.f : HAS_SCALES<T> ? y[j] * v_scale : y[j];
      }
    }
  }

  // Attends to the keys of `keys` that belong to `worker` of `workers`, the groups that share the keys. Callers whose
  // keys are never aligned pass ALIGNED = false, which omits the other path's code.
  template <bool ALIGNED = true> MEMBER void attend(const Keys<T>& keys, u32 worker, u32 workers, const AttentionArgs& args) {
    if (keys.first >= keys.end) return;
    if (ALIGNED && keys.aligned) walk<PARTS == 1 ? 4 : 2, true>(keys, worker, workers, args);
    else walk<1, false>(keys, worker, workers, args);
  }

  // Walks runs of KEYS keys, each within one block. The loop bounds are the same for all groups of a block, because two
  // groups may form a wave.
  template <u32 KEYS, bool ALIGNED> MEMBER void walk(const Keys<T>& keys, u32 worker, u32 workers, const AttentionArgs& args) {
    const u32 stride = workers * RUNS * KEYS, start = keys.first & ~(KEYS - 1);
    u32 key = start + (worker * RUNS + ((u32)tid_x() & 31) / LANES) * KEYS;
    u32 block = key / keys.block_size, slot = key % keys.block_size;
    const u32 step_blocks = stride / keys.block_size, step_slots = stride % keys.block_size;
    const u32 last_block = (keys.end - 1) / keys.block_size, last_slot = (keys.end - 1) % keys.block_size;
    u32 page = ld_step(keys.table + min_(block, last_block));
    for (u32 base = start; base < keys.end; base += stride) {
      block += step_blocks;
      const u32 slot_now = slot, page_now = page;
      slot += step_slots;
      if (slot >= keys.block_size) { slot -= keys.block_size; block++; }
      page = ld_step(keys.table + min_(block, last_block));      // requested before the keys of this turn
      run<KEYS, ALIGNED>(keys, key, page_now, slot_now, last_slot, args);
      key += stride;
    }
  }

  template <u32 KEYS, bool ALIGNED>
  MEMBER void run(const Keys<T>& keys, u32 key, u32 page, u32 slot, u32 last_slot, const AttentionArgs& args) {
    // Keys outside the range read a neighbour within it, in the same block; the mask drops them.
    const u64 base = page * keys.block_stride;
    Eight<T> k[KEYS][PARTS], v[LATENT ? 1 : KEYS][PARTS];
    float k_scales[KEYS], v_scales[KEYS];            // only if the cache has scales
    u64 at[KEYS];
    #pragma unroll
    for (u32 u = 0; u < KEYS; u++) {
      const u32 lowest = keys.first > key ? keys.first - key : 0;
      const u32 valid = key >= keys.end ? last_slot : slot + min_(max_(u, lowest), keys.end - 1 - key);
      at[u] = base + (u64)valid * keys.head_dim;
      if constexpr (HAS_SCALES<T>) {
        k_scales[u] = scales_of(keys.k + base, keys.block_size, keys.head_dim)[valid];
        v_scales[u] = scales_of(keys.v + base, keys.block_size, keys.head_dim)[valid];
      }
    }
    #pragma unroll
    for (u32 u = 0; u < KEYS; u++) load_row<ALIGNED>(k[u], keys.k + at[u], keys.head_dim);
    if constexpr (!LATENT)
      #pragma unroll
      for (u32 u = 0; u < KEYS; u++) load_row<ALIGNED>(v[u], keys.v + at[u], keys.head_dim);
    loads_first();

    float score[QUERIES][KEYS];
    #pragma unroll
    for (u32 u = 0; u < KEYS; u++)
      #pragma unroll
      for (u32 i = 0; i < QUERIES; i++) score[i][u] = product(i, k[u]);
    #pragma unroll
    for (u32 i = 0; i < QUERIES; i++)
      #pragma unroll
      for (u32 u = 0; u < KEYS; u++) score[i][u] = sum_lanes<LANES>(score[i][u]);
    if constexpr (HAS_SCALES<T>)
      #pragma unroll
      for (u32 i = 0; i < QUERIES; i++)
        #pragma unroll
        for (u32 u = 0; u < KEYS; u++) score[i][u] *= k_scales[u];
    if (args.softcap != 0.f)
      #pragma unroll
      for (u32 i = 0; i < QUERIES; i++)
        #pragma unroll
        for (u32 u = 0; u < KEYS; u++) score[i][u] = soft_cap(score[i][u], args.softcap) * LOG2E;
    if constexpr (!LATENT) {
      if (args.alibi != 0.f)
        #pragma unroll
        for (u32 i = 0; i < QUERIES; i++) {
          const DistanceBias bias = distance_bias(args, head + i * head_step, 1.f);
          #pragma unroll
          for (u32 u = 0; u < KEYS; u++) score[i][u] = bias.add(score[i][u], key + u, position + i * position_step);
        }
    }
    #pragma unroll
    for (u32 i = 0; i < QUERIES; i++) {
      float highest = top[i];
      #pragma unroll
      for (u32 u = 0; u < KEYS; u++) {
        score[i][u] = key + u >= first[i] && key + u < end[i] ? score[i][u] : MASKED;
        highest = fmax_(highest, score[i][u]);
      }
      rescale(i, highest);
      #pragma unroll
      for (u32 u = 0; u < KEYS; u++) {
        score[i][u] = fast_exp2(score[i][u] - highest);
        sum[i] += score[i][u];
        if constexpr (HAS_SCALES<T>) score[i][u] *= v_scales[u];
      }
    }
    #pragma unroll
    for (u32 u = 0; u < KEYS; u++)
      #pragma unroll
      for (u32 p = 0; p < VALUE_PARTS; p++) {
        float x[8];
        if constexpr (LATENT) k[u][p].unpack(x);
        else v[u][p].unpack(x);
        #pragma unroll
        for (u32 i = 0; i < QUERIES; i++)
          #pragma unroll
          for (u32 j = 0; j < 8; j++) values[i][p][j] = fma_(score[i][u], x[j], values[i][p][j]);
      }
  }

  // Loads this lane's columns of a row of the cache. Columns outside the head may be anything, since q is 0 there.
  template <bool ALIGNED> MEMBER static void load_row(Eight<T> (&row)[PARTS], const T* from, u32 head_dim) {
    #pragma unroll
    for (u32 p = 0; p < PARTS; p++) {
      if (ALIGNED) row[p].load(from + (column(p) < head_dim ? column(p) : 0));
      else load_unaligned(row[p], from, column(p), head_dim);
    }
  }

  MEMBER void rescale(u32 i, float highest) {
    const float factor = fast_exp2(top[i] - highest);
    top[i] = highest;
    sum[i] *= factor;
    #pragma unroll
    for (u32 p = 0; p < VALUE_PARTS; p++)
      #pragma unroll
      for (u32 j = 0; j < 8; j++) values[i][p][j] *= factor;
  }

  // Adds up the runs of the group, from neighbouring ones on; each run then holds the result.
  template <u32 M = LANES> MEMBER void merge_runs() {
    if constexpr (M < 32) {
      #pragma unroll
      for (u32 i = 0; i < QUERIES; i++) {
        rescale(i, fmax_(top[i], shfl_xor<M>(top[i])));
        sum[i] += shfl_xor<M>(sum[i]);
        #pragma unroll
        for (u32 p = 0; p < VALUE_PARTS; p++)
          #pragma unroll
          for (u32 j = 0; j < 8; j++) values[i][p][j] += shfl_xor<M>(values[i][p][j]);
      }
      merge_runs<2 * M>();
    }
  }
};

// Returns the factor of q * k before the softmax. With a soft cap, the conversion to log2 follows after the cap.
DEV float query_factor(const AttentionArgs& a) { return a.softcap != 0.f ? a.scale : a.scale * LOG2E; }

// Returns the factor that turns weights relative to `top`, whose sum is `sum`, into a softmax. A sink acts as one more
// key without a value. A row that saw no key gives zeros.
DEV float softmax_factor(const AttentionArgs& a, u32 head, float top, float sum) {
  if (sum == 0.f) return 0.f;
  if (!a.sinks) return 1.f / sum;
  const float sink = a.sinks[head] * LOG2E, highest = fmax_(top, sink);
  const float factor = fast_exp2(top - highest);
  return factor / (sum * factor + fast_exp2(sink - highest));
}
