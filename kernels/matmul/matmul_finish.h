// Turns the waves' sums into outputs: adds the sums of groups that share a tile and of splits, then bias, residual,
// store.
#pragma once
#include "arrival.h"
#include "matmul_shape.h"

DEV v4 pack_floats(const float* f) {
  v4 v;
  v.x = f32_bits(f[0]); v.y = f32_bits(f[1]); v.z = f32_bits(f[2]); v.w = f32_bits(f[3]);
  return v;
}
DEV void add_floats(float* f, const v4& v) {
  f[0] += bits_f32(v.x); f[1] += bits_f32(v.y); f[2] += bits_f32(v.z); f[3] += bits_f32(v.w);
}

// Adds the sums of waves that share tiles, in order of kw, in the waves with kw = 0.
template <int N> DEV void add_groups(MatmulSums<N>& sums, const MatmulPlace<N>& at) {
  typedef MatmulShape<N> S;
  if constexpr (S::KW > 1) {
    SHARED __attribute__((aligned(16))) float others[(S::KW - 1) * S::SUMS];
    float* v = &sums.v[0][0][0];
    v4* part = (v4*)others + at.row_wave * S::QUADS * WARP + lane_id();
    if (at.kw)
      #pragma unroll
      for (int q = 0; q < S::QUADS; q++) part[(at.kw - 1) * (S::SUMS / 4) + q * WARP] = pack_floats(v + 4 * q);
    block_sync();
    if (at.kw == 0)
      #pragma unroll
      for (int k = 0; k < S::KW - 1; k++)
        #pragma unroll
        for (int q = 0; q < S::QUADS; q++) add_floats(v + 4 * q, part[k * (S::SUMS / 4) + q * WARP]);
  }
}

// Adds the sums of all splits, in order of the splits, whichever block arrives last. Returns false in all other blocks.
template <int N> DEV bool add_splits(MatmulSums<N>& sums, const MatmulArgs& a, const MatmulPlace<N>& at) {
  typedef MatmulShape<N> S;
  float* v = &sums.v[0][0][0];
  v4* partial = (v4*)a.partial + (u64)at.block * a.splits * (S::SUMS / 4) + at.row_wave * S::QUADS * WARP + lane_id();
  if (at.kw == 0) {
    v4* mine = partial + (u64)bid_z() * (S::SUMS / 4);
    #pragma unroll
    for (int q = 0; q < S::QUADS; q++) mine[q * WARP] = pack_floats(v + 4 * q);
  }
  if (!last_to_arrive<S::THREADS>(a.counters + at.block, a.splits)) return false;
  if (at.kw == 0) {
    #pragma unroll
    for (int q = 0; q < 4 * S::QUADS; q++) v[q] = 0.f;
    for (u32 z = 0; z < a.splits; z++)
      #pragma unroll
      for (int q = 0; q < S::QUADS; q++) add_floats(v + 4 * q, partial[z * (S::SUMS / 4) + q * WARP]);
  }
  return true;
}

// Reads bias and residual completely before the first store. The compiler cannot know that a store does not change
// them, and one wait for memory per element would take longer than the product. Elements outside the matrix read the
// last one inside, which also belongs to this block, instead of branching.
template <int N> DEV void add_bias_and_residual(MatmulSums<N>& sums, const MatmulArgs& a, const MatmulPlace<N>& at,
                                                const float* out, u32 columns) {
  typedef MatmulShape<N> S;
  const int lane = lane_id();
  #pragma unroll
  for (int m = 0; m < S::WAVE_TILES; m++) {
    float bias[S::ACC], residual[S::NT][S::ACC] = {};
    u32 rows[S::ACC];
    #pragma unroll
    for (int i = 0; i < S::ACC; i++) {
      const u32 row = (at.first_tile + m) * 16 + mma_row(lane, i);
      rows[i] = row < a.out_rows ? row : a.out_rows - 1;
      bias[i] = a.bias ? a.bias[rows[i]] : 0.f;
    }
    if (a.flags & LINEAR_ADD)
      #pragma unroll
      for (int n = 0; n < S::NT; n++)
        #pragma unroll
        for (int i = 0; i < S::ACC; i++) {
          const u32 column = n * S::COLS + mma_col(lane, i);
          residual[n][i] = out[(u64)(column < columns ? column : columns - 1) * a.out_stride + rows[i]];
        }
    #pragma unroll
    for (int n = 0; n < S::NT; n++)
      #pragma unroll
      for (int i = 0; i < S::ACC; i++)
        sums.v[m][n][i] += bias[i] + residual[n][i];
  }
}

// Stores the block's sums in `to`, which has all rows. They are complete if no split is left.
template <int N> DEV void store_sums(MatmulSums<N>& sums, const MatmulArgs& a, const MatmulPlace<N>& at, float* to) {
  typedef MatmulShape<N> S;
  const int lane = lane_id();
  const u32 columns = a.rows - at.by * N < N ? a.rows - at.by * N : N;      // activation rows of this block
  float* out = to + (u64)at.by * N * a.out_stride;
  if (to == a.out && (a.bias || (a.flags & LINEAR_ADD))) add_bias_and_residual(sums, a, at, out, columns);
  #pragma unroll
  for (int m = 0; m < S::WAVE_TILES; m++)
    #pragma unroll
    for (int i = 0; i < S::ACC; i++) {
      const u32 row = (at.first_tile + m) * 16 + mma_row(lane, i);
      if (row >= a.out_rows) continue;
      #pragma unroll
      for (int n = 0; n < S::NT; n++) {
        const u32 column = n * S::COLS + mma_col(lane, i);
        if (column < columns) out[(u64)column * a.out_stride + row] = sums.v[m][n][i];
      }
    }
}

template <int N> DEV void finish(MatmulSums<N>& sums, const MatmulArgs& a, const MatmulPlace<N>& at) {
  add_groups(sums, at);
  const bool leaves = (a.flags & LINEAR_LEAVE) != 0;
  if (!leaves && a.splits > 1 && !add_splits(sums, a, at)) return;
  float* to = leaves ? a.partial + (u64)bid_z() * a.rows * a.out_stride : a.out;
  if (at.kw == 0) store_sums(sums, a, at, to);
}
