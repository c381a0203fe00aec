// The kernels that select tokens from rows of logits, in blocks of 1024 threads. alter_logits changes the few tokens
// that a sequence names. argmax and top_k read the row once for its maximum and the sum of its exponentials. top_k, one
// block a row, reads it a second time for the candidates. With few rows, argmax divides each among several blocks,
// because the busiest block determines the time. draw finds one random token (draw.h), rank_tokens the rank of a chosen
// one.
#include "arrival.h"
#include "draw.h"
#include "logits.h"

// Candidates of top_k in LDS.
constexpr u32 CAPACITY = 2 * THREADS;

// A sum of exp(logit - max) under a growing maximum, and its rounding error (Kahan).
struct ExpSum { float sum, lost; };

DEV void add_four(ExpSum& s, const float* v, float max) {
  float weight[4];
  UNROLL
  for (u32 i = 0; i < 4; i++) weight[i] = exp_accurate(v[i] - max);
  const float term = (weight[0] + weight[1]) + (weight[2] + weight[3]) - s.lost;
  const float sum = s.sum + term;
  s.lost = (sum - s.sum) - term;
  s.sum = sum;
}
DEV void raise_max(ExpSum& s, float before, float max) {
  const float scale = exp_accurate(before - max);
  s.sum *= scale;
  s.lost *= scale;
}

// One thread's result for its part of a share.
struct Part {
  float max;
  u32 best;               // first id that has it
  ExpSum sum;
  bool nan;
};

DEV Part scan(const Share& share) {
  Part p{-F32_INFINITY, token_id(share.first, 0), {0.f, 0.f}, false};
  for (u32 start = share.first; start < share.end; start += CHUNK) {
    float v[PER_THREAD];
    load_chunk(share, start, v);
    const float before = p.max;
    UNROLL
    for (u32 i = 0; i < PER_THREAD; i++) {
      p.nan |= v[i] != v[i];
      if (v[i] > p.max) { p.max = v[i]; p.best = token_id(start, i); }
    }
    if (!is_finite(p.max)) continue;     // all -infinity so far, or a +infinity without a sum
    if (p.max > before) raise_max(p.sum, before, p.max);
    UNROLL
    for (u32 i = 0; i < PER_THREAD; i += 4) {
      if (stretch_of(start, i) < share.end) add_four(p.sum, v + i, p.max);
    }
  }
  return p;
}

// Returns the key of the best token that this thread saw, 0 if it saw none.
DEV u64 best_key(const Share& share, const Part& p) {
  return token_id(share.first, 0) < share.end ? token_key(p.max, p.best) : 0;
}

DEV u64 max_u64(u64 a, u64 b) { return a > b ? a : b; }

// Results over all threads of a block, or over all blocks of a row.
struct Whole {
  u64 best;               // key of the best token
  u32 nan;                // not 0 if there is a NaN
  float sum;              // of exp(logit - max); 0 if the largest logit is infinite
  MEM float max() const { return key_logit(best); }
  // Returns the logarithm of the sum of exp(logit); NaN if there is one.
  MEM float log_sum_exp() const { return nan ? F32_NAN : is_finite(max()) ? max() + log_accurate(sum) : max(); }
};

// Gives all lanes of a wave its best key, and whether it has seen a NaN.
DEV void best_of_wave(u64& best, u32& nan) {
  best = max_lanes<WARP>(best);
  nan = combine_lanes<WARP>(nan, [](u32 a, u32 b) { return a | b; });
}

// Rescales a sum from its own maximum to a maximum that is larger by -below. `below` is not finite if nothing was
// summed, or if a logit is infinite and there is no sum.
DEV float brought_under(float sum, float below) { return is_finite(below) ? sum * exp_accurate(below) : 0.f; }

// Adds up the threads' sums over the block, each rescaled to the block's maximum.
DEV float combine_sums(const ExpSum& s, float below_max, float* waves) {
  const float sum = warp_sum(brought_under(s.sum, below_max));
  if (lane_id() == 0) waves[(u32)tid_x() / WARP] = sum;
  block_sync();
  float total = 0.f;
  for (u32 i = 0; i < WAVES; i++) total += waves[i];
  return total;
}

// Combines the threads' parts; every thread gets the result.
DEV Whole combine(const Share& share, const Part& p) {
  SHARED u64 bests[WAVES];
  SHARED float sums[WAVES];
  SHARED u32 nans[WAVES];
  u64 best = best_key(share, p);
  u32 nan = p.nan;
  best_of_wave(best, nan);
  const u32 wave = (u32)tid_x() / WARP;
  if (lane_id() == 0) { bests[wave] = best; nans[wave] = nan; }
  block_sync();
  for (u32 i = 0; i < WAVES; i++) { best = max_u64(best, bests[i]); nan |= nans[i]; }
  return Whole{best, nan, combine_sums(p.sum, p.max - key_logit(best), sums)};
}

// Called by one wave of each of a row's blocks; combines their results. Returns false in all waves but the last to
// arrive. A lane always has the same blocks, so the sum has one order.
DEV bool combine_blocks(const ArgmaxArgs& a, u32 row, u32 blocks, Whole& whole) {
  constexpr u32 EACH = ARGMAX_BLOCKS / WARP;
  v4* found = (v4*)a.partial + (u64)row * blocks;
  if (lane_id() == 0) {
    v4 mine;
    mine.x = (u32)whole.best; mine.y = (u32)(whole.best >> 32); mine.z = f32_bits(whole.sum); mine.w = whole.nan;
    found[bid_y()] = mine;
  }
  if (!last_wave_to_arrive(a.counters + row, blocks)) return false;
  u64 best[EACH];
  float sum[EACH];
  whole = Whole{0, 0, 0.f};
  UNROLL
  for (u32 i = 0; i < EACH; i++) {
    const u32 block = i * WARP + (u32)lane_id();
    const v4 other = ld16(found + (block < blocks ? block : 0));
    best[i] = block < blocks ? (u64)other.y << 32 | other.x : 0;      // key 0 means a NaN logit: it adds nothing
    sum[i] = bits_f32(other.z);
    whole.best = max_u64(whole.best, best[i]);
    whole.nan |= other.w;
  }
  best_of_wave(whole.best, whole.nan);
  UNROLL
  for (u32 i = 0; i < EACH; i++) whole.sum += brought_under(sum[i], key_logit(best[i]) - whole.max());
  whole.sum = warp_sum(whole.sum);
  return true;
}

// Sorts keys[0 .. n) in descending order with a bitonic network; n is a power of two, at most CAPACITY. It sees earlier
// writes to `keys`, and every thread may read the result.
DEV void sort_descending(u64* keys, u32 n) {
  for (u32 size = 2; size <= n; size *= 2) {
    for (u32 stride = size / 2; stride; stride /= 2) {
      block_sync();
      const u32 t = (u32)tid_x();
      if (t < n / 2) {
        const u32 i = 2 * t - (t & (stride - 1)), j = i + stride;
        const bool ascending = (i & size) != 0;
        const u64 x = keys[i], y = keys[j];
        if ((x < y) != ascending) { keys[i] = y; keys[j] = x; }
      }
    }
  }
  block_sync();
}

// Sorts the first `count` of the buffer.
DEV void sort_candidates(u64* keys, u32 count) {
  u32 size = 2;
  while (size < count) size *= 2;
  for (u32 i = count + (u32)tid_x(); i < size; i += THREADS) keys[i] = 0;
  sort_descending(keys, size);
}

// Adds a key to the buffer, up to its capacity; all keys are counted.
DEV void add_candidate(u64* keys, u32* count, u64 key) {
  const u32 at = atomic_add_u32(count, 1);
  if (at < CAPACITY) keys[at] = key;
}

// Collects the tokens whose key is at least `floor`, in any order, and returns their number. Tokens beyond the buffer's
// capacity are only counted.
DEV u32 collect(const Share& row, u64 floor, u64* keys, u32* count) {
  const u32 least = (u32)(floor >> 32);
  for (u32 start = 0; start < row.end; start += CHUNK) {
    float v[PER_THREAD];
    load_chunk(row, start, v);
    UNROLL
    for (u32 i = 0; i < PER_THREAD; i++) {
      const u32 id = token_id(start, i);
      if (ordered(v[i]) < least || id >= row.end) continue;
      const u64 key = token_key(v[i], id);
      if (key < floor) continue;
      add_candidate(keys, count, key);
    }
  }
  block_sync();
  return *count;
}

// Like `collect`, for any number of tokens: if another round might not fit, it keeps the k best so far. It leaves at
// least k tokens in the buffer and returns their number. `count` is 0 at the call.
DEV u32 collect_thinning(const Share& row, u64 floor, u32 k, u64* keys, u32* count) {
  u32 kept = 0;
  for (u32 start = 0; start < row.end; start += THREADS) {
    const u32 id = start + (u32)tid_x();
    const float logit = id < row.end ? row.logits[id] : 0.f;
    const u32 bits = id < row.end && row.mask ? row.mask[id / 32] >> (id & 31) : 1;
    const u64 key = id < row.end ? token_key(masked(bits, logit), id) : 0;
    if (id < row.end && key >= floor) add_candidate(keys, count, key);
    block_sync();
    kept = *count;
    block_sync();
    if (kept > CAPACITY - THREADS) {
      sort_candidates(keys, kept);
      floor = keys[k - 1];
      if (tid_x() == 0) *count = k;
      kept = k;
      block_sync();
    }
  }
  return kept;
}

// The operations run one after the other, rounded as on the host (`Penalties::apply` of the Rust side): host and device
// choose the same token.
DEV float altered(const AlteredRow& row, const AlteredToken& token, float logit) {
  const bool forbidden = token.bias == -F32_INFINITY && logit == logit;
  const float biased = forbidden ? token.bias : add_rn(logit, token.bias);
  if (token.seen == 0) return biased;
  const float repeated = biased > 0.f ? biased / row.repetition : mul_rn(biased, row.repetition);
  const float presence = token.seen > 1 ? row.presence : 0.f;
  return add_rn(add_rn(repeated, -mul_rn(row.frequency, (float)(token.seen - 1))), -presence);
}

// Grid: altered rows. The list of rows changes from step to step, but plain loads are safe: no graph holds this kernel,
// and separate launches find a fresh scalar cache (`ld_step`).
KERNEL(1024, alter_logits, AlterLogitsArgs) {
  pdl_launch(); pdl_wait();
  const AlteredRow row = a.rows[bid_x()];
  float* logits = a.logits + (u64)row.row * a.cols;
  for (u32 i = (u32)tid_x(); i < row.count; i += THREADS) {
    AlteredToken& token = a.tokens[row.first + i];
    if (token.id >= a.cols) continue;
    const float own = logits[token.id];
    logits[token.id] = altered(row, token, own);
    token.bias = own;
  }
}

// Grid: (rows, blocks of a row).
KERNEL(1024, argmax, ArgmaxArgs) {
  pdl_launch(); pdl_wait();
  const u32 r = (u32)bid_x(), first = (u32)bid_y() * a.share, blocks = (a.cols + a.share - 1) / a.share;
  const u32 end = a.cols - first < a.share ? a.cols : first + a.share;
  const Share share{a.logits + (u64)r * a.cols, first, end, mask_of(a.masks, r, a.cols)};
  Whole whole = combine(share, scan(share));
  if (tid_x() >= WARP) return;
  if (blocks > 1 && !combine_blocks(a, r, blocks, whole)) return;
  if (tid_x() == 0) {
    a.tokens[r] = whole.nan ? ~0u : key_id(whole.best);
    a.values[2 * r] = whole.max();
    a.values[2 * r + 1] = whole.log_sum_exp();
  }
}

// Grid: rows. Each thread's best token is known from the first pass, and the k-th best of those is a floor. At least k
// tokens reach it, and hardly more, since the threads' shares of a row are alike. The second pass keeps only tokens
// that reach the floor.
KERNEL(1024, top_k, TopKArgs) {
  pdl_launch(); pdl_wait();
  SHARED u64 keys[CAPACITY];
  SHARED u32 count;
  const u32 r = (u32)bid_x(), t = (u32)tid_x();
  const Share row{a.logits + (u64)r * a.cols, 0, a.cols, mask_of(a.masks, r, a.cols)};
  const Part part = scan(row);
  const Whole whole = combine(row, part);
  if (t == 0) {
    a.log_sums[r] = whole.log_sum_exp();
    count = 0;
  }
  keys[t] = best_key(row, part);
  sort_descending(keys, THREADS);
  const u64 floor = keys[a.k - 1];
  block_sync();                          // `keys` gets its next content
  u32 candidates = collect(row, floor, keys, &count);
  if (candidates > CAPACITY) {           // the large logits are in few threads' shares
    block_sync();
    if (t == 0) count = 0;
    block_sync();
    candidates = collect_thinning(row, floor, a.k, keys, &count);
  }
  sort_candidates(keys, candidates);
  if (t < a.k) {
    a.ids[(u64)r * a.k + t] = key_id(keys[t]);
    a.values[(u64)r * a.k + t] = key_logit(keys[t]);
  }
}

// Grid: rows for which a token is drawn.
KERNEL(1024, draw, DrawArgs) {
  pdl_launch(); pdl_wait();
  const DrawRow request = a.rows[bid_x()];
  const Share row{a.logits + (u64)request.row * a.cols, 0, a.cols, mask_of(a.masks, request.row, a.cols)};
  draw_token(row, request, a.found[bid_x()]);
}

struct Rank {
  u32 rank;               // 1: the best token; 0: there is no such token
  float logit;
};

DEV u64 key_of(const RankArgs& a, const RankRow& request, u32 i) {
  const AlteredToken& token = a.altered[request.first + i];
  return token_key(token.bias, token.id);
}

// Grid: rows whose token is ranked. Only the altered row can be read, so each altered token is corrected: its count
// with the original logit is added, its count with the altered one subtracted.
KERNEL(1024, rank_tokens, RankArgs) {
  pdl_launch(); pdl_wait();
  SHARED u64 own;
  SHARED i32 waves[WAVES];
  const RankRow request = a.rows[bid_x()];
  const float* logits = a.logits + (u64)request.row * a.cols;
  const Share row{logits, 0, a.cols, nullptr};
  const u32 t = (u32)tid_x(), id = a.tokens[request.token_at];
  if (id >= a.cols) {
    if (t == 0) a.found[bid_x()] = Rank{0, 0.f};
    return;
  }
  if (t == 0) own = token_key(logits[id], id);
  block_sync();
  for (u32 i = t; i < request.count; i += THREADS) {
    if (a.altered[request.first + i].id == id) own = key_of(a, request, i);
  }
  block_sync();
  const u64 key = own;
  i32 better = 0;
  for (u32 start = 0; start < a.cols; start += CHUNK) {
    float v[PER_THREAD];
    load_chunk(row, start, v);
    UNROLL
    for (u32 i = 0; i < PER_THREAD; i++) {
      const u32 other = token_id(start, i);
      better += other < a.cols && token_key(v[i], other) > key;
    }
  }
  for (u32 i = t; i < request.count; i += THREADS) {
    const u32 other = a.altered[request.first + i].id;
    if (other < a.cols) better += (key_of(a, request, i) > key) - (token_key(logits[other], other) > key);
  }
  better = warp_sum(better);
  if (lane_id() == 0) waves[t / WARP] = better;
  block_sync();
  if (t > 0) return;
  for (u32 i = 1; i < WAVES; i++) better += waves[i];
  a.found[bid_x()] = Rank{(u32)better + 1, key_logit(key)};
}
