// The division of work within a block of matmul_*_n<N>.
#pragma once
#include "mma.h"
#include "args.h"

template <int N> struct MatmulBlock;
#if GPU_WGMMA
template <int TILE_COUNT, int RING_BYTES, int BLOCKS> struct MatmulRingBlock {
  static constexpr int THREADS = 32 * TILE_COUNT, TILES = TILE_COUNT, KW = 1, SHARED_BYTES = RING_BYTES;
  static constexpr int AT_ONCE = BLOCKS;                             // blocks that fit a multiprocessor
};
#define RING_BLOCK(N, BLOCKS) \
  template <> struct MatmulBlock<N> : MatmulRingBlock<MATMUL_WGMMA_TILES_N##N, MATMUL_WGMMA_SHARED_N##N, BLOCKS> {};
RING_BLOCK(8, 4)
RING_BLOCK(16, 4)
RING_BLOCK(32, 2)
#if defined(MATMUL_OF_EXPERTS)
// Experts have few columns: one block multiplies while another waits for its first pieces or stores.
template <> struct MatmulBlock<64> : MatmulRingBlock<MATMUL_WGMMA_TILES_N64, MATMUL_EXPERTS_WGMMA_SHARED_N64, 2> {};
#elif defined(MATMUL_OF_GATE)
// More tiles share a block's activations. Fewer blocks than multiprocessors remain, where smaller blocks would run in
// turns.
template <> struct MatmulBlock<64> : MatmulRingBlock<MATMUL_GATED_WGMMA_TILES_N64, MATMUL_WGMMA_SHARED_N64, 1> {};
#else
RING_BLOCK(64, 1)
#endif
#define MATMUL_BLOCK(N, name, Args) KERNEL_AT_ONCE(MatmulBlock<N>::THREADS, MatmulBlock<N>::AT_ONCE, name, Args)
#else
#define MATMUL_BLOCK(N, name, Args) KERNEL(MATMUL_THREADS_N##N, name, Args)
template <> struct MatmulBlock<8> {
  static constexpr int THREADS = MATMUL_THREADS_N8, TILES = MATMUL_TILES_N8, KW = MATMUL_KW_N8;
};
template <> struct MatmulBlock<16> {
  static constexpr int THREADS = MATMUL_THREADS_N16;
#if defined(MATMUL_OF_EXPERTS)
  static constexpr int TILES = MATMUL_EXPERTS_TILES_N16, KW = THREADS / 32 / TILES;
#else
  static constexpr int TILES = MATMUL_TILES_N16, KW = MATMUL_KW_N16;
#endif
};
template <> struct MatmulBlock<32> {
  static constexpr int THREADS = MATMUL_THREADS_N32, TILES = MATMUL_TILES_N32, KW = MATMUL_KW_N32;
};
template <> struct MatmulBlock<64> {
  static constexpr int THREADS = MATMUL_THREADS_N64, TILES = MATMUL_TILES_N64, KW = MATMUL_KW_N64;
};
#endif

// Groups of 32 lanes load and dequantise weights, because a tile is laid out for 32 lanes; waves multiply. With WARP =
// 64 two groups, with neighbouring tiles, form a wave.
template <int N> struct MatmulShape {
  static constexpr int THREADS = MatmulBlock<N>::THREADS, TILES = MatmulBlock<N>::TILES, KW = MatmulBlock<N>::KW;
  static constexpr int GROUP_TILES = TILES * KW * 32 / THREADS;
  static constexpr int WAVE_TILES = TILES * KW * WARP / THREADS;
  static_assert(WAVE_TILES <= TILES && GROUP_TILES > 0, "a wave has one kw");
  static constexpr int ROW_WAVES = TILES / WAVE_TILES;               // waves that divide the tiles of a block
#if GPU_NV
  static constexpr int COLS = 8, ACC = 4;                            // a product: 16 weight rows x COLS activation rows
#else
  static constexpr int COLS = 16, ACC = MMA_ACC;
#endif
  static constexpr int NT = N < COLS ? 1 : N / COLS;                 // products side by side
  static constexpr int QUADS = WAVE_TILES * NT * ACC / 4;            // accumulators of a lane, in fours
  static constexpr int SUMS = TILES * 16 * NT * COLS;                // of a block
  static_assert(SUMS == TILES * 16 * (N < COLS ? COLS : N), "args.h says what the host allocates for partial sums");
};

// Element i of v[m][n] is row mma_row(lane, i) of the wave's tile m and activation row COLS * n + mma_col(lane, i).
template <int N> struct MatmulSums {
  typedef MatmulShape<N> S;
  float v[S::WAVE_TILES][S::NT][S::ACC];
};

template <int N> struct MatmulPlace {
  typedef MatmulShape<N> S;
  u32 bx, by;              // block of tiles, block of activation rows
  u32 block;               // their number in the grid
  u32 kw, row_wave;        // of the wave
  u32 first_tile;          // of the wave
  // Blocks of a matrix along x.
  MEM static u32 width(const MatmulArgs& a) { return ((a.out_rows + 15) / 16 + S::TILES - 1) / S::TILES; }
  // The place of block `x` among the blocks of the matrix.
  MEM MatmulPlace(const MatmulArgs& a, u32 x) : MatmulPlace(a, x, width(a)) {
    first_tile = bx * S::TILES + row_wave * S::WAVE_TILES;
  }

 protected:
  // The place without its tile, among `blocks_x` blocks along x.
  MEM MatmulPlace(const MatmulArgs& a, u32 x, u32 blocks_x) {
    const u32 wave = (u32)tid_x() / WARP;
    // Blocks start in the order of x.
    block = (u32)bid_y() * blocks_x + x;
#if defined(MATMUL_OF_EXPERTS)
    // Blocks of the same rows run together: the activations of all rows exceed a cache, and each block would read its
    // own from memory. Blocks of rows of one expert are adjacent, so its weights are still in a cache.
    bx = block % blocks_x;
    by = block / blocks_x;
#else
    // Blocks with the same weights run together, so that weights are read once.
    const u32 blocks_y = (a.rows + N - 1) / N;
    bx = block / blocks_y;
    by = block % blocks_y;
#endif
    kw = wave / S::ROW_WAVES;
    row_wave = wave % S::ROW_WAVES;
  }
};
