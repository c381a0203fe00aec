// Prefill on NVIDIA's matrix units: the softmax of rows, between the products q * K and weights * V, and the store of
// rows. A warp has TILES times 16 rows. Its lane l has rows l / 4 and l / 4 + 8 of every 16 ("halves"), and two columns
// of every 8. That holds for scores, whose columns are keys, and for values.
#pragma once
#include "attention_prefill.h"
#include "attention_nv.h"

template <u32 TILES, u32 EIGHTS> using RowsOfLane = float[TILES][EIGHTS][4];

// A capped score is already scaled.
DEV float score_to_log2(const AttentionArgs& a) { return a.softcap != 0.f ? LOG2E : a.scale * LOG2E; }

// Applies the soft cap and the biases of distances to scores, and masks keys that a row does not see. The keys of the
// tile begin with `key`, and the warp's rows with `position`; no row sees `end` or later keys.
template <u32 TILES, u32 EIGHTS>
DEV void finish_scores(RowsOfLane<TILES, EIGHTS>& score, const AttentionArgs& a, const RowTile& tile, u32 key,
                       u32 position, u32 end) {
  const u32 window = tile.window;
  if (a.softcap != 0.f)
    #pragma unroll
    for (u32 i = 0; i < TILES * EIGHTS * 4; i++) {
      float& x = score[i / (EIGHTS * 4)][i / 4 % EIGHTS][i % 4];
      x = soft_cap(x * a.scale, a.softcap);
    }
  if (a.alibi != 0.f) {
    const DistanceBias bias = distance_bias(a, tile.head, score_to_log2(a));
    #pragma unroll
    for (u32 i = 0; i < TILES * EIGHTS * 4; i++) {
      const u32 row = position + i / (EIGHTS * 4) * 16 + i % 4 / 2 * 8 + (u32)lane_id() / 4;
      const u32 k = key + i / 4 % EIGHTS * 8 + (u32)lane_id() % 4 * 2 + i % 2;
      float& x = score[i / (EIGHTS * 4)][i / 4 % EIGHTS][i % 4];
      x = bias.add(x, k, row);
    }
  }
  if (key + 8 * EIGHTS > min_(position + 1 + a.ahead, end) || key < first_key(position + 16 * TILES - 1, window))
    #pragma unroll
    for (u32 half = 0; half < 2 * TILES; half++) {
      const u32 row = position + 8 * half + (u32)lane_id() / 4, from = first_key(row, window);
      const u32 to = min_(row + 1 + a.ahead, end);
      #pragma unroll
      for (u32 i = 0; i < EIGHTS * 2; i++) {
        const u32 k = key + i / 2 * 8 + (u32)lane_id() % 4 * 2 + i % 2;
        if (k < from || k >= to) score[half / 2][i / 2][half % 2 * 2 + i % 2] = MASKED;
      }
    }
}

// The running softmax of the warp's rows, one tile of keys after the other.
template <u32 TILES> struct RowsSoftmax {
  float top[TILES][2], sum[TILES][2];    // of each row; the sum is this lane's, those of a quad are added at the end
  float factor[TILES][2];                // for the values of earlier tiles

  MEMBER void start() {
    #pragma unroll
    for (u32 i = 0; i < 2 * TILES; i++) { top[i / 2][i % 2] = NOTHING; sum[i / 2][i % 2] = 0.f; }
  }
  // Turns a tile's scores into weights. Returns true if the values of earlier tiles must be multiplied by `factor`.
  template <u32 EIGHTS> MEMBER bool weigh(RowsOfLane<TILES, EIGHTS>& score, float to_log2) {
    bool risen = false;
    #pragma unroll
    for (u32 half = 0; half < 2 * TILES; half++) {
      float& old = top[half / 2][half % 2];
      float highest = MASKED;
      #pragma unroll
      for (u32 i = 0; i < EIGHTS * 2; i++) highest = fmax_(highest, score[half / 2][i / 2][half % 2 * 2 + i % 2]);
      highest = fmax_(highest, shfl_xor<1>(highest));
      highest = fmax_(highest, shfl_xor<2>(highest));
      const bool rises = (highest - old) * to_log2 > RISE;
      factor[half / 2][half % 2] = rises ? fast_exp2((old - highest) * to_log2) : 1.f;
      old = rises ? highest : old;
      risen |= rises;
    }
    #pragma unroll
    for (u32 half = 0; half < 2 * TILES; half++) {
      const float base = top[half / 2][half % 2] * to_log2;
      float& total = sum[half / 2][half % 2];
      total *= factor[half / 2][half % 2];
      #pragma unroll
      for (u32 i = 0; i < EIGHTS * 2; i++) {
        float& x = score[half / 2][i / 2][half % 2 * 2 + i % 2];
        x = fast_exp2(fma_(x, to_log2, -base));
        total += x;
      }
    }
    return warp_any(risen);
  }
  template <u32 EIGHTS> MEMBER void rescale(RowsOfLane<TILES, EIGHTS>& values) const {
    #pragma unroll
    for (u32 half = 0; half < 2 * TILES; half++)
      #pragma unroll
      for (u32 i = 0; i < EIGHTS * 2; i++)
        values[half / 2][i / 2][half % 2 * 2 + i % 2] *= factor[half / 2][half % 2];
  }
};

// Converts the weights of keys 16 * n .. of the tile to an operand: results and operands have the same layout.
template <u32 EIGHTS> DEV void weights_of(const float (&score)[EIGHTS][4], u32 n, u32* weights) {
  #pragma unroll
  for (u32 i = 0; i < 4; i++) {
    const float* x = &score[2 * n + i / 2][i % 2 * 2];
    weights[i] = pack(x[0], x[1]);
  }
}

// Returns, for each half, the final factor of its values.
template <u32 TILES>
DEV void last_factors(const AttentionArgs& a, u32 head, const RowsSoftmax<TILES>& softmax, float to_log2,
                      float (&factors)[2 * TILES]) {
  #pragma unroll
  for (u32 half = 0; half < 2 * TILES; half++) {
    float total = softmax.sum[half / 2][half % 2];
    total += shfl_xor<1>(total);
    total += shfl_xor<2>(total);
    factors[half] = softmax_factor(a, head, softmax.top[half / 2][half % 2] * to_log2, total);
  }
}

// Stores the warp's rows, from `first_row` of the tile and column `first_value` of the head on. They go through `room`
// in shared memory, eight rows at a time, so that a lane stores eight adjacent columns.
template <u32 EIGHTS> constexpr u32 OUT_ROW = 8 * EIGHTS + 8;                // floats
template <u32 TILES, u32 EIGHTS>
DEV void store_rows(const AttentionArgs& a, const RowTile& tile, const float (&factors)[2 * TILES],
                    const RowsOfLane<TILES, EIGHTS>& values, u32 first_row, u32 first_value, float* room) {
  const u32 lane = (u32)lane_id();
  constexpr u32 STEP = OUT_ROW<EIGHTS>;
  #pragma unroll
  for (u32 half = 0; half < 2 * TILES; half++) {
    #pragma unroll
    for (u32 i = 0; i < EIGHTS; i++) {
      const float* x = &values[half / 2][i][half % 2 * 2];
      *(v2*)&room[lane / 4 * STEP + 8 * i + lane % 4 * 2] = {f32_bits(x[0] * factors[half]),
                                                             f32_bits(x[1] * factors[half])};
    }
    warp_sync();
    #pragma unroll 1
    for (u32 i = lane; i < 8 * EIGHTS; i += 32) {
      const u32 row = i / EIGHTS, column = i % EIGHTS * 8, r = first_row + 8 * half + row;
      const float* x = &room[row * STEP + column];
      const v4 low = ld16(x), high = ld16(x + 4);
      const float eight[8] = {bits_f32(low.x), bits_f32(low.y), bits_f32(low.z), bits_f32(low.w),
                              bits_f32(high.x), bits_f32(high.y), bits_f32(high.z), bits_f32(high.w)};
      if (r < tile.rows) store_eight(a, tile.row + r, tile.head, first_value + column, eight);
    }
    warp_sync();
  }
}
