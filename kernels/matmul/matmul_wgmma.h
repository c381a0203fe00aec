// Products of weight tiles and activations with warpgroup instructions (Hopper). For its warp's 16 rows, a lane of a
// wgmma holds the same elements as a lane of mma.m16n8k16. Fragments of tiles are therefore operands without
// conversion. The activations for all warps of a block are in shared memory, read once for 64 rows of weights. The copy
// engine brings both, a few pieces ahead: memory speed depends on the number of bytes in flight.
#pragma once
#include "matmul_shape.h"
#include "activation.h"
#include "quant.h"
#include "wgmma.h"

// The ring of a block: a stage has a piece of each of its tiles, and the same columns of its activation rows. The room
// of a piece is free as soon as its warp has its fragments. The room of the rows is free after all warps have
// multiplied them.
template <class T, int N> struct MatmulRing {
  typedef MatmulShape<N> S;
  static_assert(S::WAVE_TILES == 1 && S::KW == 1 && N / 8 <= S::ROW_WAVES, "a warp has a tile, and eight rows at most");
  using Piece = typename MatmulPiece<T>::Type;
  static constexpr int STEPS = Piece::COLS / 16;                     // products of 16 columns
  // Fragments of a whole piece and the sums of 64 rows need more registers than each of 512 threads has.
  static constexpr int PARTS = N >= 64 && S::THREADS * MatmulBlock<N>::AT_ONCE >= 512 ? 2 : 1;
  static constexpr u32 PIECES = 256 / Piece::COLS;                   // of a super-block
  static constexpr u32 ROWS_BYTES = 8 * 2 * Piece::COLS;             // of 8 activation rows
  static constexpr u32 WEIGHT_BYTES = S::TILES * Piece::BYTES, BYTES = WEIGHT_BYTES + N / 8 * ROWS_BYTES;
  static constexpr u32 MOST_STAGES = 8, FIT = MatmulBlock<N>::SHARED_BYTES / BYTES;
  static constexpr u32 STAGES = FIT < 2 ? 2 : FIT < MOST_STAGES ? FIT : MOST_STAGES;
  // If two stages do not fit, they share one room for pieces.
  static constexpr u32 ROOMS = FIT < 2 ? 1 : STAGES, STEP_BYTES = FIT < 2 ? BYTES - WEIGHT_BYTES : BYTES;
  static_assert(WEIGHT_BYTES + STAGES * (BYTES - WEIGHT_BYTES) <= MatmulBlock<N>::SHARED_BYTES,
                "one stage is filled while another one is read");
};

// A warp copies its own tile, and eight of the activation rows, if any are left for it. Only its first lane copies:
// copies by several lanes would run one after the other.
template <class T, int N> struct MatmulCopies {
  using Ring = MatmulRing<T, N>;
  using Piece = typename Ring::Piece;
  const u8* weights;                                                 // of piece 0
  const u8* rows;
  u32 to_weights, to_rows;                                           // places in a stage
  bool has_rows;
  MEM MatmulCopies(const MatmulArgs& a, const MatmulPlace<N>& at) {
    const u32 super_blocks = (a.cols + 255) / 256, tiles = (a.out_rows + 15) / 16;
    // A tile outside the matrix is computed as the last one and not stored. Sums of missing rows use the ring's old
    // content, and are not stored either.
    const u32 tile = at.first_tile < tiles ? at.first_tile : tiles - 1, row = at.by * N + at.row_wave * 8;
    has_rows = at.row_wave < N / 8 && row < a.rows;
    weights = a.weights + (u64)tile * super_blocks * Ring::PIECES * Piece::BYTES;
    rows = (const u8*)a.x + (u64)(row / 8) * super_blocks * 4096;
    to_weights = at.row_wave * Piece::BYTES;
    to_rows = Ring::WEIGHT_BYTES + at.row_wave * Ring::ROWS_BYTES;
  }
  MEM void copy_weights(u32 piece, u32 stage, u32 full) const {
    barrier_expect(full, Piece::BYTES + (has_rows ? Ring::ROWS_BYTES : 0));
    bulk_copy(stage + to_weights, weights + (u64)piece * Piece::BYTES, Piece::BYTES, full);
  }
  MEM void copy_rows(u32 piece, u32 stage, u32 full) const {
    bulk_copy(stage + to_rows, rows + (u64)piece * Ring::ROWS_BYTES, Ring::ROWS_BYTES, full);
  }
};

// Multiplies the super-blocks of this block's split.
template <class T, int N> DEV void multiply(MatmulSums<N>& sums, const MatmulArgs& a, const MatmulPlace<N>& at) {
  typedef MatmulShape<N> S;
  using Ring = MatmulRing<T, N>;
  using Piece = typename Ring::Piece;
  constexpr u32 STAGES = Ring::STAGES, ROOMS = Ring::ROOMS;
  extern __shared__ __align__(128) u8 ring[];
  SHARED __attribute__((aligned(8))) u64 barriers[2 * STAGES];
  const u32 full = shared_address(barriers), empty = full + 8 * STAGES, slots = shared_address(ring);
  if (tid_x() == 0) {
    for (u32 s = 0; s < STAGES; s++) {
      barrier_init(full + 8 * s, S::THREADS / WARP);
      barrier_init(empty + 8 * s, S::THREADS / WARP);
    }
    barriers_made();
  }
  block_sync();
  const u32 super_blocks = (a.cols + 255) / 256;
  const u32 first = (u64)super_blocks * bid_z() / a.splits * Ring::PIECES;
  const u32 last = (u64)super_blocks * (bid_z() + 1) / a.splits * Ring::PIECES;
  const int lane = lane_id();
  const MatmulCopies<T, N> copies(a, at);
  if (lane == 0)
    for (u32 s = 0; s < ROOMS && first + s < last; s++)
      copies.copy_weights(first + s, slots + s * Ring::STEP_BYTES, full + 8 * s);
  pdl_launch();
  pdl_wait();                          // weights depend on no earlier kernel, activations do
  if (lane == 0 && copies.has_rows)
    for (u32 s = 0; s < STAGES && first + s < last; s++)
      copies.copy_rows(first + s, slots + s * Ring::STEP_BYTES, full + 8 * s);
  #pragma unroll
  for (int i = 0; i < 4 * S::QUADS; i++) (&sums.v[0][0][0])[i] = 0.f;

  u32 stage = 0, parity = 0;
  for (u32 p = first; p < last; p++) {
    barrier_wait(full + 8 * stage, parity);
    const u32 room = ROOMS == 1 ? 0 : stage * Ring::STEP_BYTES;
    Piece tile;
    tile.load(ring + room + copies.to_weights, lane);
    tile.prepare();
    // The shuffle from the first lane shows the compiler that the value is uniform. Otherwise the compiler moves it,
    // between two products, to the register that they read.
    const u32 staged = shfl_u32(slots + stage * Ring::STEP_BYTES + Ring::WEIGHT_BYTES, 0);
    const u64 rows = wgmma_operand(staged, Ring::ROWS_BYTES);
    #pragma unroll
    for (int part = 0; part < Ring::PARTS; part++) {
      // All fragments come first, then their products: instructions between two products would delay the second.
      constexpr int STEPS = Ring::STEPS / Ring::PARTS;
      const int from = part * STEPS;
      u32 w[STEPS][4];
      #pragma unroll
      for (int s = 0; s < STEPS; s++) tile.fragment((from + s) / 4, (from + s) % 4, w[s]);
      // The previous stage gets new rows after the slowest warp has left it.
      if (part == 0 && lane == 0 && copies.has_rows && p > first && p - 1 + STAGES < last) {
        const u32 before = stage == 0 ? STAGES - 1 : stage - 1;
        barrier_wait(empty + 8 * before, stage == 0 ? parity ^ 1 : parity);
        copies.copy_rows(p - 1 + STAGES, slots + before * Ring::STEP_BYTES, full + 8 * before);
      }
      warpgroup_sync();
      wgmma_begin();
      #pragma unroll
      for (int s = 0; s < STEPS; s++)
        wgmma<MatmulPiece<T>::IS_BF16>(sums.v[0], w[s], rows + (from + s) * (256 >> 4));
      wgmma_commit();
      // Products of all fragments have begun, so the fragments are in registers. Loads of the piece that are still in
      // flight would read the bytes of the next copy.
      if (part == Ring::PARTS - 1 && lane == 0 && p + ROOMS < last)
        copies.copy_weights(p + ROOMS, slots + room, full + 8 * (ROOMS == 1 ? stage ^ 1 : stage));
      wgmma_wait<0>();
    }
    if (lane == 0) barrier_arrive(empty + 8 * stage);
    if (++stage == STAGES) { stage = 0; parity ^= 1; }
  }
  wgmma_sums_there(sums.v[0]);
}
