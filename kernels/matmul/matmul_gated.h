// Products with two matrices of one shape, gate and up, in one block, and their gated activation. Neither product is
// ever in memory.
#pragma once
#include "elementary.h"
#include "matmul_multiply.h"
#include "matmul_finish.h"

// A block has as many tiles of gate as of up, for the same outputs; its first waves have those of gate. A single wave
// of 64 lanes has a tile of each, for its two groups of lanes. Outputs include the padding of their format, so some
// blocks have tiles outside the matrices.
template <int N> struct GatedPlace : MatmulPlace<N> {
  typedef MatmulShape<N> S;
  static constexpr u32 TILES = S::TILES / 2;
  bool is_up;              // of this lane's weights
  MEM static u32 width(const MatmulArgs& a) { return ((a.out_rows + 255) / 256 * 16 + TILES - 1) / TILES; }
  MEM GatedPlace(const MatmulArgs& a, u32 x) : MatmulPlace<N>(a, x, width(a)) {
    if constexpr (S::ROW_WAVES == 1) {
      static_assert(WARP == 64 && S::TILES == 2, "a tile for each group of lanes");
      is_up = lane_id() >= 32;
      this->first_tile = this->bx - (is_up ? 1 : 0);     // `multiply` adds the group's number
    } else {
      static_assert(S::ROW_WAVES % 2 == 0, "half of the waves have tiles of gate");
      is_up = this->row_wave >= S::ROW_WAVES / 2;
      this->first_tile = this->bx * TILES + this->row_wave % (S::ROW_WAVES / 2) * S::WAVE_TILES;
    }
  }
};

// Products of a block in shared memory: [activation row][outputs of gate, then of up], some rows at a time. It reuses
// the memory of the block's operands.
template <int N> struct GatedRoom {
  typedef MatmulShape<N> S;
  static constexpr u32 COLS = S::TILES / 2 * 16, ROWS = S::NT * S::COLS < 32 ? S::NT * S::COLS : 32;
  static constexpr u32 STRIDE = 2 * COLS + 4;        // eight rows use different banks
  static constexpr u32 BYTES = ROWS * STRIDE * sizeof(float);
  MEM static float* get() {
#if GPU_WGMMA
    static_assert(BYTES <= MatmulBlock<N>::SHARED_BYTES, "the ring has room");
    extern __shared__ __align__(128) u8 ring[];
    return (float*)ring;
#elif GPU_NV
    SHARED __attribute__((aligned(16))) float room[BYTES / sizeof(float)];
    return room;
#else
    static_assert(BYTES <= TileRoom<N>::BYTES, "the tiles of weights have room");
    return (float*)TileRoom<N>::get();
#endif
  }
};

// Returns eight outputs, from column c on, from the products of a row in `room`; zeros from `cols` on.
DEV void gate_eight(const float* gate, const float* up, u32 activation, u32 c, u32 cols, float (&y)[8]) {
  v4 g[2], u[2];
  #pragma unroll
  for (u32 i = 0; i < 2; i++) { g[i] = ld16(gate + 4 * i); u[i] = ld16(up + 4 * i); }
  #pragma unroll
  for (u32 i = 0; i < 8; i++) {
    const float value = gated(activation, bits_f32(word(g[i / 4], i % 4)), bits_f32(word(u[i / 4], i % 4)));
    y[i] = c + i < cols ? value : 0.f;
  }
}

// Adds the biases of gate and up, which are null or [out_rows].
template <int N>
DEV void add_biases(MatmulSums<N>& sums, u32 out_rows, const float* gate, const float* up, const GatedPlace<N>& at) {
  typedef MatmulShape<N> S;
  #pragma unroll
  for (int m = 0; m < S::WAVE_TILES; m++) {
    const u32 tile = at.row_wave * S::WAVE_TILES + m, of_gate = S::TILES / 2;
    const float* bias = tile < of_gate ? gate : up;
    if (!bias) continue;
    #pragma unroll
    for (int i = 0; i < S::ACC; i++) {
      const u32 row = (at.bx * of_gate + tile % of_gate) * 16 + mma_row(lane_id(), i);
      const float b = bias[row < out_rows ? row : out_rows - 1];
      #pragma unroll
      for (int n = 0; n < S::NT; n++) sums.v[m][n][i] += b;
    }
  }
}

// Stores the activation of a block's products, in a tiled format for the matrix units. `a` is of gate.
template <int N> DEV void finish_gated(MatmulSums<N>& sums, const MatmulArgs& a, const float* bias_up,
                                       const GatedPlace<N>& at, u32 activation, u32 format) {
  typedef MatmulShape<N> S;
  typedef GatedRoom<N> Room;
  add_groups(sums, at);
  add_biases(sums, a.out_rows, a.bias, bias_up, at);
  float* room = Room::get();
  const int lane = lane_id();
  constexpr u32 ROWS = N < Room::ROWS ? N : Room::ROWS;              // the others are padding of the matrix unit
  constexpr int STEPS = N / ROWS, NT = S::NT / STEPS;
  #pragma unroll
  for (int step = 0; step < STEPS; step++) {
    block_sync();                      // the previous content has been read
    if (at.kw == 0)
      #pragma unroll
      for (int m = 0; m < S::WAVE_TILES; m++)
        #pragma unroll
        for (int n = 0; n < NT; n++)
          #pragma unroll
          for (int i = 0; i < S::ACC; i++)
            room[(n * S::COLS + mma_col(lane, i)) * Room::STRIDE
                 + (at.row_wave * S::WAVE_TILES + m) * 16 + mma_row(lane, i)] = sums.v[m][step * NT + n][i];
    block_sync();
    for (u32 i = (u32)tid_x(); i < ROWS * Room::COLS / 8; i += S::THREADS) {
      const u32 row = i % ROWS, first = i / ROWS * 8, c = at.bx * Room::COLS + first;
      const float* products = room + row * Room::STRIDE + first;
      float y[8];
      gate_eight(products, products + Room::COLS, activation, c, a.out_rows, y);
      if (c < (a.out_rows + 255) / 256 * 256)
        store_eight(a.out, format, at.by * N + step * ROWS + row, c, a.out_rows, y);
    }
  }
}
