// Products of weight tiles and activations in the accumulators of a wave.
#pragma once
#include "matmul_shape.h"
#include "activation.h"
#include "quant.h"

// The weights that a lane works on at a time: a piece of each of its group's tiles. The next piece loads while this one
// is multiplied. Two whole tiles of a float type do not fit the registers: its pieces are quarters.
template <class T> struct MatmulPiece { using Type = T; static constexpr bool IS_BF16 = false; };
template <> struct MatmulPiece<F16> { using Type = HalfTile<false, 1>; static constexpr bool IS_BF16 = false; };
template <> struct MatmulPiece<BF16> { using Type = HalfTile<true, 1>; static constexpr bool IS_BF16 = true; };

#if GPU_WGMMA
#include "matmul_wgmma.h"
#else
template <class T, int N> struct MatmulWeights {
  using Piece = typename MatmulPiece<T>::Type;
  static constexpr bool IS_BF16 = MatmulPiece<T>::IS_BF16;
  static constexpr int TILES = MatmulShape<N>::GROUP_TILES;
  Piece tile[TILES];
  MEM void load(const u8* const* rows, u32 piece, int lane32) {
    #pragma unroll
    for (int m = 0; m < TILES; m++) tile[m].load(rows[m] + (u64)piece * Piece::BYTES, lane32);
  }
  MEM void prepare() {
    #pragma unroll
    for (int m = 0; m < TILES; m++) tile[m].prepare();
  }
};

#if GPU_NV
// A fragment of a tile is an operand of mma.m16n8k16 without conversion. The activations in memory have the order of
// the other operand (activation_index), so nothing goes through shared memory.
template <int N> struct MatmulActivations {
  typedef MatmulShape<N> S;
  const u16* x;
  MEM MatmulActivations(const MatmulArgs& a, const MatmulPlace<N>& at) {
    const u32 super_blocks = (a.cols + 255) / 256, row = at.by * N;
    x = a.x + activation_index(row, 0, super_blocks) + lane_id() * 8;
  }
  // Multiplies columns 64t + 16j + (0..15), t = 0..3, of super-block sb; they are group `piece_j` of the piece in
  // `weights`.
  template <class T>
  MEM void multiply(MatmulSums<N>& sums, const MatmulWeights<T, N>& weights, u32 sb, int j, int piece_j) const {
    const u16* group = x + ((u64)sb * 4 + j) * 4096;
    #pragma unroll
    for (int h = 0; h < 2; h++) {
      v4 b[S::NT];
      #pragma unroll
      for (int n = 0; n < S::NT; n++) b[n] = ld16(group + h * 2048 + n * 256);
      #pragma unroll
      for (int m = 0; m < S::WAVE_TILES; m++)
        #pragma unroll
        for (int i = 0; i < 2; i++) {
          u32 w[4];
          weights.tile[m].fragment(piece_j, 2 * h + i, w);
          #pragma unroll
          for (int n = 0; n < S::NT; n++)
            mma_16x8x16<MatmulWeights<T, N>::IS_BF16>(sums.v[m][n], w, i ? b[n].z : b[n].x, i ? b[n].w : b[n].y);
        }
    }
  }
};
#else
// Fragments go through LDS, where every lane finds its part of an operand for any matrix unit. A wave writes and reads
// only its own tiles: no block barrier. Activations are rows in memory, in the column order of fragments.
constexpr int TILE_STRIDE = 64 + 8;          // 16 bytes more than the columns: eight rows then use different banks
template <int N> struct TileRoom {
  typedef MatmulShape<N> S;
  static constexpr u32 BYTES = S::TILES * S::KW * 16 * TILE_STRIDE * sizeof(u16);
  MEM static u16* get() {
    SHARED __attribute__((aligned(16))) u16 tiles[BYTES / sizeof(u16)];
    return tiles;
  }
};
template <int N> struct MatmulActivations {
  typedef MatmulShape<N> S;
  static constexpr int STRIDE = TILE_STRIDE;
  const u16* x;
  u32 stride;
  u16* wave_tiles;         // [WAVE_TILES][16][STRIDE]
  MEM MatmulActivations(const MatmulArgs& a, const MatmulPlace<N>& at) {
    stride = (a.cols + 255) / 256 * 256;
    x = a.x + (u64)at.by * N * stride;
    wave_tiles = TileRoom<N>::get() + (tid_x() / WARP) * S::WAVE_TILES * 16 * STRIDE;
  }
  template <class T>
  MEM void multiply(MatmulSums<N>& sums, const MatmulWeights<T, N>& weights, u32 sb, int j, int piece_j) const {
    const int lane = lane_id(), g = (lane & 31) >> 2, t = lane & 3;
    warp_sync();                       // the wave has read the previous columns
    #pragma unroll
    for (int m = 0; m < S::GROUP_TILES; m++) {
      u16* row = wave_tiles + (((lane >> 5) * S::GROUP_TILES + m) * 16 + g) * STRIDE + 16 * t;
      #pragma unroll
      for (int h = 0; h < 2; h++) {
        u32 w[2][4];
        weights.tile[m].fragment(piece_j, 2 * h, w[0]);
        weights.tile[m].fragment(piece_j, 2 * h + 1, w[1]);
        #pragma unroll
        for (int r = 0; r < 2; r++) {                                // rows g and g + 8
          v4 v;
          v.x = w[0][r]; v.y = w[0][2 + r]; v.z = w[1][r]; v.w = w[1][2 + r];
          *(v4*)(row + r * 8 * STRIDE + 8 * h) = v;
        }
      }
    }
    warp_sync();
    const u16* columns = x + (u64)sb * 256 + 16 * j;
    #pragma unroll 1                   // k indexes no register, and early loads of activations would fill the registers
    for (int k = 0; k < 4; k++) {
      MmaB b[S::NT];
      #pragma unroll
      for (int n = 0; n < S::NT; n++)
        mma_load<N < 16 ? N : 16>(b[n], columns + n * 16 * stride + 64 * k, stride);
      #pragma unroll
      for (int m = 0; m < S::WAVE_TILES; m++) {
        MmaA w;
        mma_load(w, wave_tiles + m * 16 * STRIDE + 16 * k, STRIDE);
        mma_strip<MatmulWeights<T, N>::IS_BF16, S::NT>(sums.v[m], w, b);
      }
    }
  }
};
#endif

// Multiplies the super-blocks of this block's split that belong to this wave.
template <class T, int N> DEV void multiply(MatmulSums<N>& sums, const MatmulArgs& a, const MatmulPlace<N>& at) {
  typedef MatmulShape<N> S;
  using Piece = typename MatmulPiece<T>::Type;
  constexpr int PIECES = 256 / Piece::COLS;      // of a tile
  constexpr int PIECE_GROUPS = Piece::COLS / 64; // groups j of 64 columns of a piece
  const u32 super_blocks = (a.cols + 255) / 256, tiles = (a.out_rows + 15) / 16;
  const u32 first = (u64)super_blocks * bid_z() / a.splits + at.kw;
  const u32 last = (u64)super_blocks * (bid_z() + 1) / a.splits;
  const int lane32 = tid_x() & 31;
  const u8* rows[S::GROUP_TILES];
  #pragma unroll
  for (int m = 0; m < S::GROUP_TILES; m++) {
    const u32 tile = at.first_tile + (lane_id() >> 5) * S::GROUP_TILES + m;
    // a tile outside the matrix is computed as the last one and not stored
    rows[m] = a.weights + (u64)(tile < tiles ? tile : tiles - 1) * super_blocks * PIECES * Piece::BYTES;
  }
  #pragma unroll
  for (int i = 0; i < 4 * S::QUADS; i++) (&sums.v[0][0][0])[i] = 0.f;

  // The next piece is loaded before this one is used up. That happens at once if memory is the limit. With 64 rows it
  // happens half way: these keep the matrix units busy long enough, and the registers of the used half are needed.
  constexpr int LOAD_AT = N >= 64 ? PIECE_GROUPS / 2 : 0;
  MatmulWeights<T, N> weights, next;
  if (first < last) weights.load(rows, first * PIECES, lane32);
  pdl_launch();
  pdl_wait();                          // weights depend on no earlier kernel, activations do
  const MatmulActivations<N> activations(a, at);
  for (u32 sb = first; sb < last; sb += S::KW) {
    #pragma unroll 1
    for (int p = 0; p < PIECES; p++) {
      const bool same = p + 1 < PIECES;
      const u32 next_sb = same ? sb : sb + S::KW, next_p = same ? p + 1 : 0;
      #pragma unroll
      for (int g = 0; g < PIECE_GROUPS; g++) {
        if (g == LOAD_AT) {
          if (next_sb < last) next.load(rows, next_sb * PIECES + next_p, lane32);
          loads_first();
        }
        if (g == 0) weights.prepare();
        activations.multiply(sums, weights, sb, p * PIECE_GROUPS + g, g);
      }
      weights = next;
    }
  }
}
#endif
