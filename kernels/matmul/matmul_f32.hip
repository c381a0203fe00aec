// matmul_f32_n{4,8,64}: f32 weights times 4, 8 or 64 activation rows a block. They use the vector units, because no
// matrix unit multiplies f32 exactly. On NVIDIA, blocks of 64 rows split numbers into parts that the matrix units
// multiply exactly. `gemv_f32` reads the whole matrix for each row; these kernels read it once for the rows of a block.
#include "activation.h"
#include "args.h"
#include "quant.h"
#if GPU_NV
  #include "matmul_f32_nv.h"
  #include "mma.h"
#endif

using Piece = FloatTile<1>;                                // 16 outputs x 64 columns, 16 of each quarter of a
                                                           // super-block
constexpr u32 TILE_PIECES = F32::COLS / Piece::COLS;

// The rows of a block. Rows after the last repeat it, and are not stored.
struct Rows {
  const float* x;
  u32 count, stride, cols;
  bool aligned;                                            // four columns of a row are one load
  MEM Rows(const MatmulF32Args& a, u32 first, u32 most)
      : x(a.x + (u64)first * a.x_stride), count(a.rows - first < most ? a.rows - first : most), stride(a.x_stride),
        cols(a.cols), aligned(is_aligned(a.x, 16) && a.x_stride % 4 == 0 && a.cols % 4 == 0) {}
  // Returns columns c .. c + 4 of a row, with zeros outside. Aligned loads have no branch, so that none waits for
  // another.
  template <bool ALIGNED> MEM v4 four(u32 row, u32 c) const {
    const float* from = x + (u64)(row < count ? row : count - 1) * stride;
    if constexpr (!ALIGNED) {
      const Four f = load_four(from, false, c, cols);
      return {f32_bits(f.v[0]), f32_bits(f.v[1]), f32_bits(f.v[2]), f32_bits(f.v[3])};
    }
    const v4 w = ld16(from + (c < cols ? c : 0));
    const u32 mask = c < cols ? ~0u : 0;
    return {w.x & mask, w.y & mask, w.z & mask, w.w & mask};
  }
};

DEV void store(const MatmulF32Args& a, u32 row, u32 out_row, float value) {
  float* out = a.out + (u64)row * a.out_stride + out_row;
  if (a.bias) value += a.bias[out_row];
  *out = a.flags & LINEAR_ADD ? *out + value : value;
}

// Few rows: a block has a tile of 16 outputs. Its groups of 32 lanes divide the columns and keep the sums of all rows
// in registers. As in the tile, lane 4g + t has the weights of outputs g and g + 8.
//
// Adds the products of a piece, whose columns for this lane begin at `c`.
template <bool ALIGNED, u32 FEW>
DEV void add_piece(float (&sums)[FEW][2], const Piece& w, const Rows& rows, u32 c) {
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    v4 x[FEW];
    #pragma unroll
    for (u32 r = 0; r < FEW; r++) x[r] = rows.four<ALIGNED>(r, c + 4 * i);
    #pragma unroll
    for (u32 r = 0; r < FEW; r++)
      #pragma unroll
      for (int p = 0; p < 4; p++) {
        sums[r][0] = fma_(bits_f32(word(w.w[0][i], p)), bits_f32(word(x[r], p)), sums[r][0]);
        sums[r][1] = fma_(bits_f32(word(w.w[0][4 + i], p)), bits_f32(word(x[r], p)), sums[r][1]);
      }
  }
}

template <u32 FEW, u32 GROUPS> DEV void multiply_few(const MatmulF32Args& a, float (*partial)[FEW][16]) {
  const u32 thread = (u32)tid_x(), group = thread / 32, first_row = (u32)bid_y() * FEW;
  const int lane = (int)(thread % 32);
  const u32 pieces = (a.cols + 255) / 256 * TILE_PIECES;
  const u8* weights = a.weights + (u64)bid_x() * pieces * Piece::BYTES;
  Piece next{};
  if (group < pieces) next.load(weights + (u64)group * Piece::BYTES, lane);
  loads_first();
  pdl_launch(); pdl_wait();
  const Rows rows(a, first_row, FEW);
  float sums[FEW][2] = {};
  for (u32 piece = group; piece < pieces; piece += GROUPS) {
    const Piece w = next;
    if (piece + GROUPS < pieces) next.load(weights + (u64)(piece + GROUPS) * Piece::BYTES, lane);
    loads_first();
    const u32 c = piece / TILE_PIECES * 256 + 64 * (lane & 3) + 16 * (piece % TILE_PIECES);
    if (rows.aligned) add_piece<true, FEW>(sums, w, rows, c);
    else add_piece<false, FEW>(sums, w, rows, c);
  }
  #pragma unroll
  for (u32 r = 0; r < FEW; r++)
    #pragma unroll
    for (int h = 0; h < 2; h++) {
      float sum = sums[r][h];
      sum += shfl_xor<1>(sum);
      sum += shfl_xor<2>(sum);
      if ((lane & 3) == 0) partial[group][r][lane / 4 + 8 * h] = sum;
    }
  block_sync();
  const u32 row = thread / 16, out_row = (u32)bid_x() * 16 + thread % 16;
  if (row >= rows.count || out_row >= a.out_rows) return;
  float sum = 0.f;
  #pragma unroll
  for (u32 i = 0; i < GROUPS; i++) sum += partial[i][row][thread % 16];
  store(a, first_row + row, out_row, sum);
}

#define MATMUL_F32_OF_FEW(N) \
  KERNEL(MATMUL_F32_THREADS_N##N, matmul_f32_n##N, MatmulF32Args) { \
    SHARED float partial[MATMUL_F32_THREADS_N##N / 32][N][16]; \
    multiply_few<N, MATMUL_F32_THREADS_N##N / 32>(a, partial); \
  }
MATMUL_F32_OF_FEW(4)
MATMUL_F32_OF_FEW(8)

// Many rows: a block has four tiles. A quarter of its threads has the columns of a quarter of each super-block.
constexpr u32 SIDE = 64;                                   // outputs and rows of a block
static_assert(MATMUL_F32_TILES_N64 * 16 == SIDE, "a block has as many outputs as rows");

// Adds the sums of quarters 2 and 3 to those of 0 and 1, and stores the sum of these two. `visit(use)` calls use(row,
// output, sum) for each of a thread's sums.
template <class Visit>
DEV void store_quarters(const MatmulF32Args& a, float (*sums)[SIDE][SIDE], u32 quarter, const Rows& rows, u32 first_row,
                        const Visit& visit) {
  #pragma unroll
  for (u32 step = 0; step < 2; step++) {
    if (quarter / 2 == 1 - step)
      visit([&](u32 row, u32 output, float sum) {
        float& place = sums[quarter % 2][row][output];
        place = step ? sum + place : sum;
      });
    block_sync();
  }
  const u32 thread = (u32)tid_x(), out_row = (u32)bid_x() * SIDE + thread % SIDE;
  if (out_row >= a.out_rows) return;
  for (u32 row = thread / SIDE; row < rows.count; row += 4)
    store(a, first_row + row, out_row, sums[0][row][thread % SIDE] + sums[1][row][thread % SIDE]);
}

#if GPU_NV
// Two warps have a quarter of each super-block: all tiles, and half of the rows each.
template <bool ALIGNED>
DEV void multiply_many(const MatmulF32Args& a, const Rows& rows, const u8* weights, u32 tiles_left,
                       float (&sums)[4][4][4], u32 quarter, u32 first) {
  const u32 lane = (u32)tid_x() % 32, super_blocks = (a.cols + 255) / 256;
  v4 w[4][2], x[4], next_w[4][2], next_x[4];
  const auto load = [&](v4 (&w)[4][2], v4 (&x)[4], u32 step) {       // four columns of each group of the quarter
    #pragma unroll
    for (u32 m = 0; m < 4; m++)
      #pragma unroll
      for (u32 h = 0; h < 2; h++)
        w[m][h] = ld16s(weights + (u64)(m < tiles_left ? m : tiles_left - 1) * super_blocks * F32::BYTES
                        + (u64)(step / 4) * F32::BYTES + quarter * Piece::BYTES + (4 * h + step % 4) * 512 + lane * 16);
    const u32 c = step / 4 * 256 + 64 * (lane & 3) + 16 * quarter + 4 * (step % 4);
    #pragma unroll
    for (u32 n = 0; n < 4; n++) x[n] = rows.four<ALIGNED>(first + 8 * n + lane / 4, c);
  };
  load(w, x, 0);
  for (u32 step = 0; step < 4 * super_blocks; step++) {
    if (step + 1 < 4 * super_blocks) load(next_w, next_x, step + 1);
    loads_first();
    add_columns(sums, w, x);
    #pragma unroll
    for (u32 m = 0; m < 4; m++) { w[m][0] = next_w[m][0]; w[m][1] = next_w[m][1]; x[m] = next_x[m]; }
  }
}

KERNEL(MATMUL_F32_THREADS_N64, matmul_f32_n64, MatmulF32Args) {
  SHARED float memory[2][SIDE][SIDE];
  const u32 warp = (u32)tid_x() / 32, quarter = warp / 2, first = warp % 2 * (SIDE / 2);
  const u32 first_row = (u32)bid_y() * SIDE;
  const u32 super_blocks = (a.cols + 255) / 256, tile = (u32)bid_x() * 4, tiles = (a.out_rows + 15) / 16;
  const u8* weights = a.weights + (u64)tile * super_blocks * F32::BYTES;
  pdl_launch(); pdl_wait();
  const Rows rows(a, first_row, SIDE);
  float sums[4][4][4] = {};
  if (rows.aligned) multiply_many<true>(a, rows, weights, tiles - tile, sums, quarter, first);
  else multiply_many<false>(a, rows, weights, tiles - tile, sums, quarter, first);
  store_quarters(a, memory, quarter, rows, first_row, [&](const auto& use) {
    const int lane = lane_id();
    #pragma unroll
    for (u32 m = 0; m < 4; m++)
      #pragma unroll
      for (u32 n = 0; n < 4; n++)
        #pragma unroll
        for (u32 i = 0; i < 4; i++)
          use(first + 8 * n + mma_col(lane, i), 16 * m + mma_row(lane, i), sums[m][n][i]);
  });
}
#else
// Each thread has the sums of 8 outputs and 8 rows of its quarter. LDS holds half a piece of each tile, and as many
// columns of the rows; the next half is loading into registers.
constexpr u32 DEPTH = 8;                                   // columns of a quarter at a time
constexpr u32 QUARTER = DEPTH * SIDE + 8;                  // floats; the four quarters begin in different banks
static_assert(4 * SIDE == MATMUL_F32_THREADS_N64, "a thread has 8 x 8 sums of a quarter");

// Outputs or rows by column: [quarter][column][output or row].
struct Half { float values[4 * QUARTER]; };

KERNEL(MATMUL_F32_THREADS_N64, matmul_f32_n64, MatmulF32Args) {
  union Memory { struct { Half weights, x; } halves[2]; float sums[2][SIDE][SIDE]; };
  alignas(16) SHARED Memory memory;
  const u32 thread = (u32)tid_x(), first_row = (u32)bid_y() * SIDE;
  // For loads: two groups of 32 lanes have a tile of weights, each half of its outputs; each group has 8 rows.
  const u32 group = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const u32 super_blocks = (a.cols + 255) / 256, tiles = (a.out_rows + 15) / 16, halves = super_blocks * 8;
  const u32 tile = (u32)bid_x() * 4 + group / 2;
  const u8* weights = a.weights + (u64)(tile < tiles ? tile : tiles - 1) * super_blocks * F32::BYTES
                      + group % 2 * 2048 + lane * 16;
  v4 w[2], x[2];
  const auto load_weights = [&](u32 half) {
    #pragma unroll
    for (u32 i = 0; i < 2; i++) w[i] = ld16s(weights + (u64)(half / 2) * Piece::BYTES + (half % 2 * 2 + i) * 512);
  };
  load_weights(0);
  pdl_launch(); pdl_wait();
  const Rows rows(a, first_row, SIDE);
  const auto load_x = [&](u32 half) {
    const u32 c = half / 8 * 256 + 64 * t + 8 * (half % 8), row = 8 * group + g;
    if (rows.aligned) {
      x[0] = rows.four<true>(row, c);
      x[1] = rows.four<true>(row, c + 4);
    } else {
      x[0] = rows.four<false>(row, c);
      x[1] = rows.four<false>(row, c + 4);
    }
  };
  const auto put = [&](u32 half) {
    auto& to = memory.halves[half % 2];
    #pragma unroll
    for (u32 i = 0; i < 2; i++)
      #pragma unroll
      for (u32 p = 0; p < 4; p++) {
        const u32 at = t * QUARTER + (4 * i + p) * SIDE + 8 * group + g;
        to.weights.values[at] = bits_f32(word(w[i], p));
        to.x.values[at] = bits_f32(word(x[i], p));
      }
  };
  load_x(0);
  put(0);
  block_sync();

  // For sums: outputs 4m .. 4m + 3 and the same + 32; likewise for rows.
  const u32 quarter = thread / SIDE, m = thread % 8, n = thread / 8 % 8;
  float sums[8][8] = {};                                   // [row][output]
  for (u32 half = 0; half < halves; half++) {
    if (half + 1 < halves) { load_weights(half + 1); load_x(half + 1); }
    loads_first();
    const auto& from = memory.halves[half % 2];
    const float* of_weights = from.weights.values + quarter * QUARTER + 4 * m;
    const float* of_x = from.x.values + quarter * QUARTER + 4 * n;
    #pragma unroll
    for (u32 k = 0; k < DEPTH; k++) {
      const v4 w0 = ld16(of_weights + k * SIDE), w1 = ld16(of_weights + k * SIDE + 32);
      const v4 x0 = ld16(of_x + k * SIDE), x1 = ld16(of_x + k * SIDE + 32);
      #pragma unroll
      for (int r = 0; r < 8; r++)
        #pragma unroll
        for (int o = 0; o < 8; o++)
          sums[r][o] = fma_(bits_f32(word(o < 4 ? w0 : w1, o % 4)), bits_f32(word(r < 4 ? x0 : x1, r % 4)), sums[r][o]);
    }
    if (half + 1 < halves) put(half + 1);
    block_sync();
  }

  store_quarters(a, memory.sums, quarter, rows, first_row, [&](const auto& use) {
    #pragma unroll
    for (u32 r = 0; r < 8; r++)
      #pragma unroll
      for (u32 o = 0; o < 8; o++) use(4 * n + r % 4 + r / 4 * 32, 4 * m + o % 4 + o / 4 * 32, sums[r][o]);
  });
}
#endif
