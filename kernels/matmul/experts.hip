// Mixture of experts: the choice of experts for each row, the places of rows grouped by expert, and the weighted sum of
// the experts' outputs. The products themselves are those of `gemv` and `matmul`.
#include "activation.h"
#include "elementary.h"
#include "order.h"

// Returns the key that compares logits. NaN is above all and converts back to NaN, so that its row keeps it.
DEV u32 logit_key(float logit) { return logit != logit ? 0xffffffffu : ordered(logit); }
constexpr u32 NO_KEY = 0;                                  // of no logit, and below all: only a NaN could have it

// An expert with its comparison key; `before` is the order in which experts are chosen.
struct Candidate {
  u32 key, expert;
  MEM bool before(const Candidate& c) const { return (key > c.key) | ((key == c.key) & (expert < c.expert)); }
};
template <int M> DEV Candidate shfl_xor(Candidate v) { return {shfl_xor<M>(v.key), shfl_xor<M>(v.expert)}; }

constexpr u32 HELD = MAX_EXPERTS / 32;                     // experts of a lane: lane, lane + 32, ...

// Loads a lane's values of an array of `num` together. Values after the end repeat the last one.
DEV void load_held(float (&held)[HELD], const float* values, u32 num, u32 lane) {
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) held[i] = values[i * 32 + lane < num ? i * 32 + lane : num - 1];
  loads_first();
}

// Returns the lane's first candidate. Pairs are compared in a tree, whose steps are independent of each other. Among
// equals the earlier one stays, which has the lower index.
DEV Candidate first_of(const u32 (&keys)[HELD], u32 lane) {
  Candidate first[HELD];
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) first[i] = {keys[i], i * 32 + lane};
  #pragma unroll
  for (u32 d = 1; d < HELD; d <<= 1)
    #pragma unroll
    for (u32 i = 0; i < HELD; i += 2 * d) {
      const bool later = first[i + d].key > first[i].key;
      first[i].key = later ? first[i + d].key : first[i].key;
      first[i].expert = later ? first[i + d].expert : first[i].expert;
    }
  return first[0];
}

// Returns the weight of an expert (sigmoid) or a proportional number (softmax). `top` is the row's largest logit.
DEV float share_of(const ChooseExpertsArgs& a, float logit, float top) {
  if (a.gating == GATING_SOFTMAX) return exp_accurate(logit - top);
  return logit != logit ? logit : 1.f / (1.f + exp_accurate(-logit));
}

// Sums a number over a group of 32 lanes.
DEV float group_sum(float v) { return sum_lanes<32>(v); }

// The two largest keys of those seen so far.
struct TwoBest {
  u32 best, second;
  MEM TwoBest with(const TwoBest& o) const {
    const u32 smaller = o.best < best ? o.best : best, larger = o.second < second ? second : o.second;
    return {o.best < best ? best : o.best, smaller < larger ? larger : smaller};
  }
};
template <int M> DEV TwoBest shfl_xor(TwoBest v) { return {shfl_xor<M>(v.best), shfl_xor<M>(v.second)}; }

// Removes the keys of all experts outside of the row's best groups. A group's score is the sum of its two best experts.
// Lane g compares group g with the others.
DEV void keep_best_groups(const ChooseExpertsArgs& a, u32 (&keys)[HELD], u32 lane) {
  const u32 of_group = a.num / a.groups;
  u32 mine = NO_KEY;                                       // of the lane's group
  for (u32 group = 0; group < a.groups; group++) {
    TwoBest two{NO_KEY, NO_KEY};
    #pragma unroll
    for (u32 i = 0; i < HELD; i++) two = two.with({(i * 32 + lane) / of_group == group ? keys[i] : NO_KEY, NO_KEY});
    two = combine_lanes<32>(two, [](const TwoBest& a, const TwoBest& b) { return a.with(b); });
    const u32 sum = logit_key(unordered(two.best) + unordered(two.second));
    mine = group == lane ? sum : mine;
  }
  u32 before = 0;                                          // groups that are better than the lane's
  for (u32 group = 0; group < a.groups; group++) {
    const u32 other = shfl_u32(mine, (int)(((u32)lane_id() & ~31u) + group));
    before += (other > mine) | ((other == mine) & (group < lane));
  }
  u32 kept = lane < a.groups && before < a.used_groups ? 1u << lane : 0;
  kept = combine_lanes<32>(kept, [](u32 a, u32 b) { return a | b; });
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) {
    const u32 expert = i * 32 + lane;
    keys[i] = expert < a.num && (kept >> expert / of_group & 1) ? keys[i] : NO_KEY;
  }
}

// A group of 32 lanes has a row, in registers. Rows after the last repeat it, because all lanes of a wave take part in
// its shuffles, but are not stored. The step waits for this short kernel, so its loads and its choice have no branches.
KERNEL(32 * CHOOSE_EXPERTS_ROWS, choose_experts, ChooseExpertsArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x() * CHOOSE_EXPERTS_ROWS + (u32)tid_x() / 32, lane = (u32)tid_x() & 31;
  const float* logits = a.logits + (u64)(row < a.rows ? row : a.rows - 1) * a.num;
  float held[HELD];
  u32 keys[HELD];
  load_held(held, logits, a.num, lane);
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) keys[i] = i * 32 + lane < a.num ? logit_key(held[i]) : NO_KEY;

  // If only the chosen experts count, the largest logit is that of the first one.
  const bool by_weight = a.bias || a.groups, weighs_all = by_weight || !a.normalize;
  u32 largest = 0;
  float all = 1.f;
  if (weighs_all && a.gating == GATING_SOFTMAX) {
    largest = max_lanes<32>(first_of(keys, lane).key);
    all = 0.f;
    #pragma unroll
    for (u32 i = 0; i < HELD; i++) {
      const float share = share_of(a, held[i], unordered(largest));
      all += i * 32 + lane < a.num ? share : 0.f;
    }
    all = group_sum(all);
  }
  // Without a bias the weights have the order of the logits, which, unlike weights, do not round to equal numbers.
  if (by_weight) {
    float bias[HELD] = {};
    if (a.bias) load_held(bias, a.bias, a.num, lane);
    #pragma unroll
    for (u32 i = 0; i < HELD; i++) {
      const u32 key = logit_key(share_of(a, held[i], unordered(largest)) / all + bias[i]);
      keys[i] = i * 32 + lane < a.num ? key : NO_KEY;
    }
    if (a.groups) keep_best_groups(a, keys, lane);
  }

  Candidate mine{NO_KEY, 0};
  for (u32 rank = 0; rank < a.used; rank++) {
    const Candidate best = combine_lanes<32>(first_of(keys, lane), [](const Candidate& a, const Candidate& b) {
      const bool later = b.before(a);
      return Candidate{later ? b.key : a.key, later ? b.expert : a.expert};
    });
    if (rank == 0 && !weighs_all) largest = best.key;
    mine.key = rank == lane ? best.key : mine.key;
    mine.expert = rank == lane ? best.expert : mine.expert;
    #pragma unroll
    for (u32 i = 0; i < HELD; i++) keys[i] = i * 32 + lane == best.expert ? NO_KEY : keys[i];
  }

  float share = 0.f;
  if (lane < a.used) share = share_of(a, by_weight ? logits[mine.expert] : unordered(mine.key), unordered(largest));
  const float sum = a.normalize ? group_sum(share) : all;
  if (row >= a.rows || lane >= a.used) return;
  const u64 pair = (u64)row * a.used + lane;
  a.experts[pair] = mine.expert;
  a.weights[pair] = a.scale * (share / sum) * (a.factors ? a.factors[mine.expert] : 1.f);
  if (!a.uses || (a.slot_mapping && ld_step(a.slot_mapping + row) == NO_SLOT)) return;
  atomic_add_u32(a.uses + mine.expert, 1);
  if (ld_step(a.slots + mine.expert) != NOT_CACHED) atomic_add_u32(a.hits, 1);
}

// Calls `use(pair, expert)` for each pair of a thread. One block has all pairs and little other work, so a thread has
// several loads in flight.
template <class Use> DEV void for_pairs(const PlaceExpertsArgs& a, u32 thread, const Use& use) {
  constexpr u32 AHEAD = 8;
  for (u32 first = thread; first < a.pairs; first += AHEAD * PLACE_THREADS) {
    u32 experts[AHEAD];
    #pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      const u32 pair = first + i * PLACE_THREADS;
      experts[i] = ld_step(a.experts + (pair < a.pairs ? pair : a.pairs - 1));
    }
    loads_first();
    #pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      const u32 pair = first + i * PLACE_THREADS;
      if (pair < a.pairs) use(pair, experts[i]);
    }
  }
}

// The order of the atomics determines a pair's place among those of its expert. Results do not depend on it: the values
// of a place depend only on its row, and sums go by pairs.
KERNEL(PLACE_THREADS, place_experts, PlaceExpertsArgs) {
  SHARED u32 next[MAX_EXPERTS];                            // pairs of each expert, then the place of its next one
  SHARED u32 runs;                                         // number of runs needed
  pdl_launch(); pdl_wait();
  const u32 thread = (u32)tid_x();
  next[thread] = 0;
  block_sync();
  for_pairs(a, thread, [&](u32, u32 expert) { atomic_add_u32(&next[expert], 1); });
  block_sync();
  if (thread < WARP) {
    const u32 lane = thread & 31;                          // the wave's second group does the same, stores nothing
    u32 before[HELD], mine = 0;                            // runs of the experts HELD * lane ..
    #pragma unroll
    for (u32 i = 0; i < HELD; i++) {
      before[i] = mine;
      mine += (next[HELD * lane + i] + a.run - 1) / a.run;
    }
    u32 through = mine;                                    // of this lane and the previous lanes
    for (u32 d = 1; d < 32; d <<= 1) {
      const u32 other = shfl_u32(through, (int)(lane >= d ? thread - d : thread));
      through += lane >= d ? other : 0;
    }
    if (thread < 32) {
      #pragma unroll
      for (u32 i = 0; i < HELD; i++) next[HELD * lane + i] = (through - mine + before[i]) * a.run;
      if (lane == 31) runs = through;
    }
  }
  block_sync();
  for_pairs(a, thread, [&](u32 pair, u32 expert) {
    const u32 place = atomic_add_u32(&next[expert], 1);
    a.places[pair] = place;
    a.rows[place] = pair / a.used;
    if (place % a.run == 0) a.run_experts[place / a.run] = expert;
  });
  for (u32 run = runs + thread; run < a.runs; run += PLACE_THREADS) a.run_experts[run] = NO_EXPERT;
  for (u32 place = runs * a.run + thread; place < a.runs * a.run; place += PLACE_THREADS) a.rows[place] = NO_ROW;
  block_sync();
  for (u32 place = next[thread]; place % a.run; place++) a.rows[place] = NO_ROW;         // the rest of its last run
}

// The columns of a row for one step of a product: four of each 64 of a super-block. Columns outside the row are zero.
// Aligned loads have no branch, so that none waits for another.
struct StepColumns {
  u32 outer[4], inner[4];                                  // columns 0 and 2, and 1 and 3, of four
  template <bool ALIGNED> MEM void load(const float* row, u32 step, u32 cols, bool bf16) {
    Four fours[4];
    #pragma unroll
    for (u32 t = 0; t < 4; t++) {
      const u32 c = step / 16 * 256 + 64 * t + 4 * (step % 16);
      if constexpr (ALIGNED) {
        const v4 w = ld16(row + (c < cols ? c : 0));
        fours[t] = {{bits_f32(w.x), bits_f32(w.y), bits_f32(w.z), bits_f32(w.w)}};
      } else {
        fours[t] = load_four(row, false, c, cols);
      }
    }
    loads_first();
    #pragma unroll
    for (u32 t = 0; t < 4; t++) {
      const bool there = step / 16 * 256 + 64 * t + 4 * (step % 16) < cols;
      u32 half[4];
      #pragma unroll
      for (u32 i = 0; i < 4; i++) half[i] = !there ? 0 : bf16 ? f2bf(fours[t].v[i]) : f2h_sat(fours[t].v[i]);
      outer[t] = half[0] | half[2] << 16;
      inner[t] = half[1] | half[3] << 16;
    }
  }
  MEM void store(u16* out, u32 n, u32 step, u32 cols) const {
    const u32 c = step / 16 * 256 + 4 * (step % 16), super_blocks = (cols + 255) >> 8;
#if GPU_WGMMA
    u16* to = out + activation_index(n, c, super_blocks);
    *(v4*)to = {outer[0], outer[1], outer[2], outer[3]};
    *(v4*)(to + HALF_STEP) = {inner[0], inner[1], inner[2], inner[3]};
#else
    #pragma unroll
    for (u32 t = 0; t < 4; t++) *(v2*)(out + activation_index(n, c + 64 * t, super_blocks)) = {outer[t], inner[t]};
#endif
  }
};

template <bool ALIGNED> DEV void gather_pair(const GatherPairsArgs& a, u32 row, u32 place, u32 first) {
  const float* x = a.x + (u64)row * a.cols;
  const bool bf16 = is_bf16(a.format_out);
  #pragma unroll 2
  for (u32 step = first; step < (a.cols + 255) / 256 * 16; step += GATHER_PAIRS_THREADS / 8) {
    StepColumns columns;
    columns.load<ALIGNED>(x, step, a.cols, bf16);
    columns.store(a.out, place, step, a.cols);
  }
}

// Eight threads have one step of eight places. For wgmma these places are adjacent, so whole lines are stored.
KERNEL(GATHER_PAIRS_THREADS, gather_pairs, GatherPairsArgs) {
  pdl_launch(); pdl_wait();
  const u32 place = 8 * (u32)bid_x() + (u32)tid_x() % 8, row = ld_step(a.rows + place);
  if (row == NO_ROW) return;
  if (is_aligned(a.x, 16) && a.cols % 4 == 0) gather_pair<true>(a, row, place, (u32)tid_x() / 8);
  else gather_pair<false>(a, row, place, (u32)tid_x() / 8);
}

// Each thread adds up four columns, with the values of several pairs in flight.
KERNEL(ADD_EXPERTS_COLS / 4, add_experts, AddExpertsArgs) {
  constexpr u32 AHEAD = 8;
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = (u32)bid_y() * ADD_EXPERTS_COLS + 4 * (u32)tid_x();
  if (c >= a.cols) return;
  const bool aligned = is_aligned(a.values, 16) && a.cols % 4 == 0;
  float sum[4] = {0.f, 0.f, 0.f, 0.f};
  for (u32 first = 0; first < a.used; first += AHEAD) {
    const float* values[AHEAD];
    float weights[AHEAD];
    bool counts[AHEAD];
    Four fours[AHEAD];
    #pragma unroll
    for (u32 i = 0; i < AHEAD; i++) {
      const u64 pair = (u64)row * a.used + (first + i < a.used ? first + i : a.used - 1);
      values[i] = a.values + (a.places ? ld_step(a.places + pair) : pair) * a.cols;
      weights[i] = a.weights ? a.weights[pair] : 1.f;
      counts[i] = first + i < a.used && (!a.slots || ld_step(a.slots + ld_step(a.experts + pair)) != NOT_CACHED);
    }
    loads_first();
    if (aligned) {
      #pragma unroll
      for (u32 i = 0; i < AHEAD; i++) fours[i] = load_four(values[i], true, c, a.cols);
    } else {
      #pragma unroll
      for (u32 i = 0; i < AHEAD; i++) fours[i] = load_four(values[i], false, c, a.cols);
    }
    #pragma unroll
    for (u32 i = 0; i < AHEAD; i++)
      for (int k = 0; k < 4; k++) sum[k] = counts[i] ? fma_(weights[i], fours[i].v[k], sum[k]) : sum[k];
  }
  float* out = a.out + (u64)row * a.cols;
  for (u32 i = 0; i < 4 && c + i < a.cols; i++) out[c + i] = a.add ? out[c + i] + sum[i] : sum[i];
}
