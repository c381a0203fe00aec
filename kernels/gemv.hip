// gemv_<type>: one activation row times a matrix, at the speed of reading the matrix. gemv_<type>_<type>: two matrices
// of one stack in one launch, in which each block computes one of the two.
//
// A block walks the tiles bid, bid + grid_x, ... of 16 rows. A tile is a row of pieces (256 columns; the float types:
// less), and the pieces of all the block's tiles, in order, are dealt to its groups of 32 lanes: piece u to group
// u % GROUPS. So all groups are busy whatever the number of columns, and each has loaded its next piece before it uses
// the current one. After a round (one piece a group) that completes tiles, a barrier makes the partial sums visible and
// the first threads add them in a fixed order. Partial sums lie in a ring of four places, because fast groups run
// ahead; but never past the next barrier, so they write at most to the two tiles (where a round completes several: to
// the one round) after the one that is still being read.
//
// Gate and up together count as one tile of twice the pieces, with two sums.
//
// Every block norms, quantises and puts the activations into LDS: that costs less than a kernel of its own, and the
// first weights are on their way meanwhile. Where the row is longer than LDS allows, the block takes CHUNK columns at a
// time, for BATCH tiles each, and adds up in LDS: any number of columns will do.
#include "activation.h"
#include "args.h"
#include "elementary.h"
#include "quant.h"

constexpr int GROUPS = GEMV_THREADS / 32;
constexpr u32 BATCH = 16;

// The activations of a chunk in LDS.
struct Quantised {
  static constexpr u32 CHUNK = 16384;                  // 24 KB: int8 with {d, d * sum} per 16
  alignas(16) i8 q[CHUNK];
  alignas(16) xmeta meta[CHUNK / 16];
  // Puts columns c .. c + 3. All lanes of a wave call it at once: four neighbouring lanes hold a block of 16.
  MEM void put(u32 c, const float v[4]) {
    u32 bits = 0;                                      // of the largest magnitude: a NaN wins, and becomes the scale
    for (int i = 0; i < 4; i++) { const u32 b = f32_bits(v[i]) & 0x7fffffffu; bits = b > bits ? b : bits; }
    for (int m = 1; m <= 2; m <<= 1) { const u32 b = shfl_xor_u32(bits, m); bits = b > bits ? b : bits; }
    const float largest = bits_f32(bits);
    const bool usable = largest > 1e-35f && largest < 1e37f;           // else codes 0: 127 / largest would overflow
    const float inverse = usable ? 127.f / largest : 0.f, d = largest / 127.f;
    i32 sum = 0;
    u32 packed = 0;
    for (int i = 0; i < 4; i++) {
      const i32 code = usable ? (i32)rint_(v[i] * inverse) : 0;
      sum += code;
      packed |= (u32)(code & 255) << (8 * i);
    }
    for (int m = 1; m <= 2; m <<= 1) sum += shfl_xor(sum, m);
    *(u32*)(q + x_index(c)) = packed;
    if ((c & 12) == 0) meta[x_index(c) >> 4] = {d, d * (float)sum};
  }
  template <class P> MEM void dot(const P& w, u32 c, int lane, float& y0, float& y1) const {
    w.dot(q + c, meta + c / 16, lane, y0, y1);
  }
};
struct Floats {
  static constexpr u32 CHUNK = 8192;                   // 32 KB
  alignas(16) float x[CHUNK];
  MEM void put(u32 c, const float v[4]) {
    const u32 bits[4] = {f32_bits(v[0]), f32_bits(v[1]), f32_bits(v[2]), f32_bits(v[3])};
    store16((u8*)(x + float_index(c)), bits);
  }
  template <class P> MEM void dot(const P& w, u32 c, int lane, float& y0, float& y1) const {
    w.dot(x + c, lane, y0, y1);
  }
};
template <bool F> struct Staged { using Type = Quantised; };
template <> struct Staged<true> { using Type = Floats; };

// The LDS of a block. X: the type that holds its activations.
template <class X> struct Shared {
  X x;
  float partial[4][GROUPS][2][16];                         // ring, group, gate or up, row
  float sums[BATCH][2][16];                                // of the chunks so far
  float squares[GROUPS];
};
template <class T> using SharedFor = Shared<typename Staged<GemvPiece<T>::Type::FLOATS>::Type>;

// Vectors of four that a thread has on their way at once: the prologue takes as long as it waits for its loads.
constexpr u32 IN_FLIGHT = WARP == 64 ? 4 : 8;
constexpr u32 STRIDE = 4 * GEMV_THREADS;

// Returns 1 / rms of the row.
template <class X> DEV float inverse_rms(Shared<X>& s, const float* x, const GemvArgs& a) {
  const bool aligned = is_aligned(x, 16);
  float sum = 0.f;
  for (u32 c = 4 * tid_x(); c < a.cols; c += IN_FLIGHT * STRIDE) {
    Four fours[IN_FLIGHT];
    #pragma unroll
    for (u32 u = 0; u < IN_FLIGHT; u++) fours[u] = load_four(x, aligned, c + u * STRIDE, a.cols);
    #pragma unroll
    for (u32 u = 0; u < IN_FLIGHT; u++)
      for (int i = 0; i < 4; i++) sum = fma_(fours[u].v[i], fours[u].v[i], sum);
  }
  for (int m = 16; m; m >>= 1) sum += shfl_xor(sum, m);
  if ((tid_x() & 31) == 0) s.squares[tid_x() >> 5] = sum;
  block_sync();
  sum = 0.f;
  for (int i = 0; i < GROUPS; i++) sum += s.squares[i];
  return fast_rsqrt(sum / (float)a.cols + a.eps);
}

// Puts columns first .. first + count (a multiple of 256, zeros beyond the row) into LDS.
template <class X>
DEV void stage(Shared<X>& s, const float* x, const GemvArgs& a, float scale, u32 first, u32 count) {
  const bool aligned = is_aligned(x, 16), norm_aligned = is_aligned(a.norm, 16);
  // All lanes of a wave make the same trips, as `put` demands: count is a multiple of 256, a wave covers 128 or 256.
  for (u32 start = 4 * tid_x(); start < count; start += IN_FLIGHT * STRIDE) {
    Four fours[IN_FLIGHT];
    #pragma unroll
    for (u32 u = 0; u < IN_FLIGHT; u++) fours[u] = load_four(x, aligned, first + start + u * STRIDE, a.cols);
    #pragma unroll
    for (u32 u = 0; u < IN_FLIGHT; u++) {
      const u32 c = start + u * STRIDE;
      if (c >= count) break;
      if (a.norm) {
        const Four w = load_four(a.norm, norm_aligned, first + c, a.cols);
        for (int i = 0; i < 4; i++) fours[u].v[i] *= scale * w.v[i];
      }
      s.x.put(c, fours[u].v);
    }
  }
  block_sync();
}

// The walk of a group over the pieces of `tiles` tiles of `length` pieces.
struct Walk {
  u32 tile, piece, step_tiles, step_pieces, length;
  MEM Walk(u32 start, u32 length_) : length(length_) {
    tile = start / length; piece = start % length;
    step_tiles = GROUPS / length; step_pieces = GROUPS % length;
  }
  MEM void next() {
    tile += step_tiles; piece += step_pieces;
    if (piece >= length) { piece -= length; tile++; }
  }
};

// Adds up row r of a tile from the partial sums of the groups that had pieces of it, one of each group.
template <class X>
DEV void add_partials(const Shared<X>& s, u32 length, u32 tile, u32 r, bool is_gated, float sums[2]) {
  sums[0] = sums[1] = 0.f;
  for (u32 i = 0; i < (length < GROUPS ? length : GROUPS); i++) {
    const u32 u = tile * length + i;
    const float (*place)[16] = length < GROUPS ? s.partial[(u / GROUPS) & 3][u % GROUPS] : s.partial[tile & 3][i];
    sums[0] += place[0][r];
    if (is_gated) sums[1] += place[1][r];
  }
}
DEV void store(const GemvArgs& a, float* out, u32 row, u32 expert, bool is_gated, const float sums[2]) {
  float v = sums[0], up = sums[1];
  if (a.bias) v += a.bias[(u64)expert * a.out_rows + row];
  if (is_gated) {
    if (a.bias_up) up += a.bias_up[(u64)expert * a.out_rows + row];
    v = gated(a.activation, v, up);
  }
  if (a.flags & LINEAR_ADD) v += out[row];
  out[row] = v;
}

// Computes block `bid` of the a.grid_x of a matrix of type T; with EXPERTS, each row may have a matrix of its own.
template <class T, bool EXPERTS> DEV void gemv(SharedFor<T>& s, const GemvArgs& a, u32 bid) {
  using Piece = typename GemvPiece<T>::Type;
  constexpr u32 PIECES = 256 / Piece::COLS;                  // of a super-block
  constexpr u32 CHUNK = decltype(s.x)::CHUNK;
  const int group = tid_x() >> 5, lane = tid_x() & 31;
  const u32 grid = a.grid_x, all_tiles = (a.out_rows + 15) >> 4;
  const u32 super_blocks = (a.cols + 255) >> 8, row_pieces = super_blocks * PIECES;
  const u32 my_tiles = bid < all_tiles ? (all_tiles - bid + grid - 1) / grid : 0;
  if (my_tiles == 0) return;
  const bool is_gated = a.weights_up != nullptr;
  const u32 chunk_blocks = CHUNK / 256 < super_blocks ? CHUNK / 256 : super_blocks;
  const u32 batch = chunk_blocks == super_blocks ? my_tiles : BATCH;
  const float* x = a.x + (u64)bid_y() * a.x_stride;
  float* out = a.out + (u64)bid_y() * a.out_stride;
  float scale = 1.f;
  u32 expert = 0;
  if (EXPERTS && a.experts) {          // chosen by a kernel before
    pdl_wait();
    expert = ld_step(a.experts + bid_y());
    x = a.x + (u64)((u32)bid_y() / a.share) * a.x_stride;
  }

  for (u32 first_tile = 0; first_tile < my_tiles; first_tile += batch)
    for (u32 first_block = 0; first_block < super_blocks; first_block += chunk_blocks) {
      const u32 tiles = my_tiles - first_tile < batch ? my_tiles - first_tile : batch;
      const u32 blocks = super_blocks - first_block < chunk_blocks ? super_blocks - first_block : chunk_blocks;
      const u32 pieces = blocks * PIECES, length = is_gated ? 2 * pieces : pieces;
      const bool first_chunk = first_block == 0, last_chunk = first_block + blocks == super_blocks;
      const auto address = [&](const Walk& w) {
        const bool up = w.piece >= pieces;
        const u64 tile = bid + (u64)grid * (first_tile + w.tile);
        return (up ? a.weights_up : a.weights) + (EXPERTS ? expert * a.expert_bytes : 0)
               + (tile * row_pieces + first_block * PIECES + (up ? w.piece - pieces : w.piece)) * Piece::BYTES;
      };

      Walk mine(group, length), round(0, length);
      Piece next = Piece{};
      if (mine.tile < tiles) next.load(address(mine), lane);
      loads_first();
      if (first_tile == 0 && first_chunk) {
        pdl_launch();
        pdl_wait();
        if (a.norm) scale = inverse_rms(s, x, a);
      }
      // Nobody reads the chunk before any more: its last round completed tiles, so all have passed a barrier since.
      if (first_tile == 0 || chunk_blocks < super_blocks) stage(s, x, a, scale, first_block * 256, blocks * 256);

      float y0 = 0.f, y1 = 0.f, gate0 = 0.f, gate1 = 0.f;
      for (u32 n = 0; round.tile < tiles; n++) {
        const Walk now = mine;
        const bool busy = now.tile < tiles;
        mine.next();
        const Piece w = next;
        if (mine.tile < tiles) next.load(address(mine), lane);
        loads_first();
        const bool up = now.piece >= pieces;
        if (busy) s.x.dot(w, (up ? now.piece - pieces : now.piece) * Piece::COLS, lane, y0, y1);
        const bool leaves = busy && mine.tile != now.tile;
        if (!up && (leaves || mine.piece >= pieces)) { gate0 = y0; gate1 = y1; y0 = y1 = 0.f; }
        if (warp_any(leaves)) {                                        // all lanes of a wave take part in its shuffles
          float sums[4] = {gate0, gate1, y0, y1};
          for (int k = 0; k < 4; k++) {
            if (k >= 2 && !is_gated) break;
            sums[k] += shfl_xor(sums[k], 1);
            sums[k] += shfl_xor(sums[k], 2);
          }
          if (leaves) {
            float (*place)[16] = s.partial[(length < GROUPS ? n : now.tile) & 3][group];
            if ((lane & 3) == 0)
              for (int k = 0; k < 4; k++) place[k >> 1][(lane >> 2) + 8 * (k & 1)] = sums[k];
            y0 = y1 = gate0 = gate1 = 0.f;
          }
        }
        const u32 done = round.tile;
        round.next();
        const u32 completed = (round.tile < tiles ? round.tile : tiles) - done;
        if (completed == 0) continue;
        block_sync();
        if (tid_x() >= (int)completed * 16) continue;
        const u32 tile = done + (tid_x() >> 4), r = tid_x() & 15, row = (bid + grid * (first_tile + tile)) * 16 + r;
        float sums[2];
        add_partials(s, length, tile, r, is_gated, sums);
        if (!first_chunk) { sums[0] += s.sums[tile][0][r]; sums[1] += s.sums[tile][1][r]; }
        if (!last_chunk) { s.sums[tile][0][r] = sums[0]; s.sums[tile][1][r] = sums[1]; }
        else if (row < a.out_rows) store(a, out, row, expert, is_gated, sums);
      }
    }
}

#ifndef SECOND
TYPED_KERNEL(GEMV_THREADS, gemv_, GemvArgs) {
  SHARED SharedFor<Tile> s;
  gemv<Tile, true>(s, a, bid_x());
}
#else
TYPED_KERNEL(GEMV_THREADS, gemv_, GemvPairArgs) {
  SHARED SharedFor<Tile> s;
  const u32 bid = bid_x(), blocks = a.first.grid_x;
  if (bid < blocks) gemv<Tile, false>(s, a.first, bid);
  else gemv<SecondTile, false>(s, a.second, bid - blocks);
}
#endif
