// matmul_f32_n{4,8,64}: f32 weights times 4, 8 or 64 activation rows a block, on the vector units, because no matrix
// unit multiplies f32 exactly. `gemv_f32` reads the whole matrix for each row; these read it once for the rows of a
// block.
#include "activation.h"
#include "args.h"
#include "quant.h"

using Piece = FloatTile<1>;                                // 16 outputs x 64 columns: 16 in each quarter of a super-block
constexpr u32 TILE_PIECES = F32::COLS / Piece::COLS;

// The rows of a block. Rows beyond the last are the last one, and are not stored.
struct Rows {
  const float* x;
  u32 count, stride, cols;
  bool aligned;                                            // four columns of a row are one load
  MEM Rows(const MatmulF32Args& a, u32 first, u32 most)
      : x(a.x + (u64)first * a.x_stride), count(a.rows - first < most ? a.rows - first : most), stride(a.x_stride),
        cols(a.cols), aligned(is_aligned(a.x, 16) && a.x_stride % 4 == 0 && a.cols % 4 == 0) {}
  // Columns c .. c + 4 of a row, zeros beyond it. Aligned loads have no branch, so that none waits for another.
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

// Few rows: a block has a tile of 16 outputs. Its groups of 32 lanes share out the columns and keep the sums of all
// rows in registers, as the weights lie in the tile: those of outputs g and g + 8 for lane 4g + t.
//
// Adds the products of a piece, which begins at column `c` of this lane.
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
      sum += shfl_xor(sum, 1);
      sum += shfl_xor(sum, 2);
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

// Many rows: a block has four tiles. A quarter of its threads has the columns of a quarter of each super-block, and
// each thread of it the sums of 8 outputs and 8 rows. Half a piece of each tile, and as many columns of the rows, are
// in LDS, the next half on its way to the registers.
constexpr u32 SIDE = 64;                                   // outputs and rows of a block
constexpr u32 DEPTH = 8;                                   // columns of a quarter at a time
constexpr u32 QUARTER = DEPTH * SIDE + 8;                  // floats; those of the four quarters begin in other banks
static_assert(4 * SIDE == MATMUL_F32_THREADS_N64, "a thread has 8 x 8 sums of a quarter");

// Outputs or rows by column: [quarter][column][output or row].
struct Half { float values[4 * QUARTER]; };

KERNEL(MATMUL_F32_THREADS_N64, matmul_f32_n64, MatmulF32Args) {
  union Memory { struct { Half weights, x; } halves[2]; float sums[2][SIDE][SIDE]; };
  alignas(16) SHARED Memory memory;
  const u32 thread = (u32)tid_x(), first_row = (u32)bid_y() * SIDE;
  // For loads: two groups of 32 lanes have a tile of weights, each half of its outputs, and each group 8 rows.
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

  // For sums: outputs 4m .. 4m + 3 and those 32 behind, of the rows alike.
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

  // The sums of quarters 2 and 3 come to those of 0 and 1, and these two are stored as one.
  float* mine = &memory.sums[quarter % 2][0][0];
  #pragma unroll
  for (int step = 0; step < 2; step++) {
    if (quarter / 2 == 1 - step) {
      #pragma unroll
      for (u32 r = 0; r < 8; r++)
        #pragma unroll
        for (u32 o = 0; o < 8; o++) {
          float& place = mine[(4 * n + r % 4 + r / 4 * 32) * SIDE + 4 * m + o % 4 + o / 4 * 32];
          place = step ? sums[r][o] + place : sums[r][o];
        }
    }
    block_sync();
  }
  const u32 out_row = (u32)bid_x() * SIDE + thread % SIDE;
  if (out_row >= a.out_rows) return;
  for (u32 row = quarter; row < rows.count; row += 4) {
    const float sum = memory.sums[0][row][thread % SIDE] + memory.sums[1][row][thread % SIDE];
    store(a, first_row + row, out_row, sum);
  }
}
