// gemv_<type>: one activation row times a matrix, at the speed of reading the matrix. gemv_<type>_<type>: two matrices
// of one stack in one launch; each block computes one of the two.
//
// A block walks the tiles bid, bid + grid_x, ... of 16 rows. A tile is a row of pieces (256 columns; fewer for float
// types). The pieces of all the block's tiles, in order, are dealt to its groups of 32 lanes: piece u to group u %
// GROUPS. All groups are therefore busy for any number of columns, and each loads its next piece before it uses the
// current one.
//
// A round is one piece for each group. After a round that completes tiles, a barrier makes the partial sums visible,
// and the first threads add them in a fixed order. Partial sums use a ring of four places, because fast groups run
// ahead, but never past the next barrier. They write at most to the two tiles after the one that is still being read.
// If a round completes several tiles, they write to the next round.
//
// Gate and up together count as one tile with twice the pieces and two sums.
//
// Every block norms and quantises the activations into LDS. That costs less than a separate kernel, and the first
// weights arrive meanwhile. If the row does not fit LDS, the block takes CHUNK columns at a time, for BATCH tiles each,
// and adds up in LDS. Any number of columns is supported.
#include "activation.h"
#include "args.h"
#include "cached_experts.h"
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
    u32 bits = 0;                                      // of the largest magnitude; NaN wins and becomes the scale
    for (int i = 0; i < 4; i++) { const u32 b = f32_bits(v[i]) & 0x7fffffffu; bits = b > bits ? b : bits; }
    bits = max_lanes<4>(bits);
    const float largest = bits_f32(bits), d = largest * (1.f / 127.f);
    const bool usable = largest > 1e-35f && largest < 1e37f;           // else codes are 0: 1 / d would overflow
    const float inverse = 127.f * fast_rcp(largest);
    // Adding 1.5 * 2^23, whose last bit counts 1, rounds a number to the nearest integer, in the lowest byte.
    u32 packed = 0;
    for (int i = 0; i < 4; i++) packed |= (f32_bits(fma_(v[i], inverse, 12582912.f)) & 255u) << (8 * i);
    packed = usable ? packed : 0;
    const i32 sum = sum_lanes<4>(dot4(packed, 0x01010101u, 0));
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

// The LDS of a block. X is the type that holds its activations.
template <class X> struct Shared {
  X x;
  float partial[4][GROUPS][2][16];                         // ring, group, gate or up, row
  float sums[BATCH][2][16];                                // of the chunks so far
  float squares[GROUPS];
};
template <class T> using SharedFor = Shared<typename Staged<GemvPiece<T>::Type::FLOATS>::Type>;

// Vectors of four that a thread loads at once, STRIDE columns apart: the prologue takes as long as its loads. A thread
// keeps up to HELD vectors of a normed row, and as many of the norm's weights.
constexpr u32 STRIDE = 4 * GEMV_THREADS, IN_FLIGHT = WARP == 64 ? 4 : 8, HELD = 4;

// A thread's fours among the COUNT * STRIDE columns from `first` on of a row that is_whole, with zeros outside the row.
template <u32 COUNT> struct Span {
  Four fours[COUNT];
  MEM static u32 column(u32 u) { return 4 * recomputed(tid_x()) + u * STRIDE; }
  MEM void load(const float* row, u32 first, u32 cols) {
    #pragma unroll
    for (u32 u = 0; u < COUNT; u++) fours[u] = load_whole_four(row, first + column(u), cols);
  }
};

// Returns 1 / rms of a row from each thread's sum of squares.
template <class X> DEV float inverse_rms(Shared<X>& s, const GemvArgs& a, float sum) {
  sum = sum_lanes<32>(sum);
  if ((tid_x() & 31) == 0) s.squares[tid_x() >> 5] = sum;
  block_sync();
  sum = 0.f;
  for (int i = 0; i < GROUPS; i++) sum += s.squares[i];
  return fast_rsqrt(sum / (float)a.cols + a.eps);
}
DEV float square(const Four& f, float sum) {
  for (int i = 0; i < 4; i++) sum = fma_(f.v[i], f.v[i], sum);
  return sum;
}
// Returns the sum of squares of a thread's columns of a row.
DEV float squares_of(const float* x, u32 cols) {
  float sum = 0.f;
  if (is_whole(x, cols)) {
    for (u32 first = 0; first < cols; first += IN_FLIGHT * STRIDE) {
      Span<IN_FLIGHT> span;
      span.load(x, first, cols);
      #pragma unroll
      for (u32 u = 0; u < IN_FLIGHT; u++) sum = square(span.fours[u], sum);
    }
  } else {
    #pragma unroll 1
    for (u32 c = 4 * tid_x(); c < cols; c += STRIDE) sum = square(load_four(x, false, c, cols), sum);
  }
  return sum;
}

// Puts columns `first` .. `first` + `count` of a row into LDS, with zeros outside the row. All lanes of a wave make the
// same number of iterations, as `put` requires: `count` is a multiple of 256, and a wave covers 128 or 256 columns.
template <class X> DEV void stage(Shared<X>& s, const float* x, const GemvArgs& a, float scale, u32 first, u32 count) {
  const auto put = [&](u32 c, Four four, bool whole) {
    if (a.norm) {
      const Four w = whole ? load_whole_four(a.norm, first + c, a.cols) : load_four(a.norm, false, first + c, a.cols);
      for (int i = 0; i < 4; i++) four.v[i] *= scale * w.v[i];
    }
    s.x.put(c, four.v);
  };
  if (is_whole(x, a.cols) && is_whole(a.norm, a.cols)) {
    for (u32 start = 0; start < count; start += IN_FLIGHT * STRIDE) {
      Span<IN_FLIGHT> span;
      span.load(x, first + start, a.cols);
      #pragma unroll
      for (u32 u = 0; u < IN_FLIGHT; u++) {
        const u32 c = start + Span<IN_FLIGHT>::column(u);
        if (c < count) put(c, span.fours[u], true);
      }
    }
  } else {
    #pragma unroll 1
    for (u32 c = 4 * tid_x(); c < count; c += STRIDE) put(c, load_four(x, false, first + c, a.cols), false);
  }
}

// Waits for the previous kernel. Then stages a normed row of up to HELD loads a thread in LDS. For other rows returns
// the factor for `stage`, which is 1 / rms of a normed row.
struct Begun { bool is_staged; float scale; };
template <class X> DEV Begun begin_row(Shared<X>& s, const float* x, const GemvArgs& a) {
  if (a.norm && a.cols <= HELD * STRIDE && a.cols <= X::CHUNK && is_whole(x, a.cols) && is_whole(a.norm, a.cols)) {
    Span<HELD> span, weights;
    weights.load(a.norm, 0, a.cols);                   // they depend on no earlier kernel
    pdl_launch();
    pdl_wait();
    span.load(x, 0, a.cols);
    float sum = 0.f;
    #pragma unroll
    for (u32 u = 0; u < HELD; u++) sum = square(span.fours[u], sum);
    const float scale = inverse_rms(s, a, sum);
    #pragma unroll
    for (u32 u = 0; u < HELD; u++) {
      const u32 c = Span<HELD>::column(u);
      for (int i = 0; i < 4; i++) span.fours[u].v[i] *= scale * weights.fours[u].v[i];
      if (c < ((a.cols + 255) & ~255u)) s.x.put(c, span.fours[u].v);
    }
    return {true, scale};
  }
  pdl_launch();
  pdl_wait();
  return {false, a.norm ? inverse_rms(s, a, squares_of(x, a.cols)) : 1.f};
}

// The walk of a group over the pieces of `tiles` tiles of `length` pieces each.
struct Walk {
  u32 tile, piece, step_tiles, step_pieces, length;
  MEM Walk(u32 start, u32 length_) : length(length_) {
    if (length >= GROUPS) {            // without divisions, since the first loads wait for this
      tile = 0; piece = start;
      step_tiles = length == GROUPS; step_pieces = length == GROUPS ? 0 : GROUPS;
    } else {
      tile = start / length; piece = start % length;
      step_tiles = GROUPS / length; step_pieces = GROUPS % length;
    }
  }
  MEM void next() {
    tile += step_tiles; piece += step_pieces;
    if (piece >= length) { piece -= length; tile++; }
  }
};

// Adds up row r of a tile from the partial sums of its groups, one per group.
template <class X>
DEV void add_partials(const Shared<X>& s, u32 length, u32 tile, u32 r, bool is_gated, float sums[2]) {
  sums[0] = sums[1] = 0.f;
  if (length >= GROUPS) {
    const float (*place)[2][16] = s.partial[tile & 3];
    #pragma unroll
    for (int i = 0; i < GROUPS; i++) sums[0] += place[i][0][r];
    if (!is_gated) return;
    #pragma unroll
    for (int i = 0; i < GROUPS; i++) sums[1] += place[i][1][r];
    return;
  }
  #pragma unroll 1
  for (u32 i = 0; i < length; i++) {
    const u32 u = tile * length + i;
    const float (*place)[16] = s.partial[(u / GROUPS) & 3][u % GROUPS];
    sums[0] += place[0][r];
    if (is_gated) sums[1] += place[1][r];
  }
}
// Stores an output; `before` is added to it.
DEV void store(const GemvArgs& a, float* out, u32 row, u32 expert, bool is_gated, const float sums[2], float before) {
  float v = sums[0], up = sums[1];
  if (a.bias) v += a.bias[(u64)expert * a.out_rows + row];
  if (is_gated) {
    if (a.bias_up) up += a.bias_up[(u64)expert * a.out_rows + row];
    v = gated(a.activation, v, up);
  }
  out[row] = v + before;
}

// Computes block `bid` of the a.grid_x blocks of a matrix of type T. With EXPERTS, each row may have its own matrix.
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
  Begun begun = {false, 1.f};
  u32 expert = 0;
  const u8 *weights = a.weights, *weights_up = a.weights_up;
  if (EXPERTS && a.experts) {          // chosen by an earlier kernel
    pdl_wait();
    expert = ld_step(a.experts + bid_y());
    const u32 slot = slot_of(a.cached, expert);
    if (!is_here(a.cached, slot)) return;
    weights = tiles_of(a.cached, slot, a.cached.tiles, weights, expert * a.expert_bytes);
    weights_up = tiles_of(a.cached, slot, a.cached.tiles_up, weights_up, expert * a.expert_bytes);
    x = a.x + (u64)((u32)bid_y() / a.share) * a.x_stride;
  }

  for (u32 first_tile = 0; first_tile < my_tiles; first_tile += batch)
    for (u32 first_block = 0; first_block < super_blocks; first_block += chunk_blocks) {
      const u32 tiles = my_tiles - first_tile < batch ? my_tiles - first_tile : batch;
      const u32 blocks = super_blocks - first_block < chunk_blocks ? super_blocks - first_block : chunk_blocks;
      const u32 pieces = blocks * PIECES, length = is_gated ? 2 * pieces : pieces;
      const bool first_chunk = first_block == 0, last_chunk = first_block + blocks == super_blocks;
      const u64 tile_bytes = (u64)row_pieces * Piece::BYTES;
      const u64 begin = (bid + (u64)grid * first_tile) * tile_bytes + first_block * PIECES * Piece::BYTES;
      const auto address = [&](const Walk& w) {
        const bool up = w.piece >= pieces;
        const u32 piece = up ? w.piece - pieces : w.piece;
        return (up ? weights_up : weights) + begin + w.tile * (grid * tile_bytes) + piece * Piece::BYTES;
      };

      Walk mine(group, length), round = mine;                              // that of group 0
      round.tile = round.piece = 0;
      Piece next = Piece{};
      if (mine.tile < tiles) next.load(address(mine), lane);
      loads_first();
      if (first_tile == 0 && first_chunk) begun = begin_row(s, x, a);
      // No thread still reads the previous chunk: its last round completed tiles, so all threads have passed a barrier
      // since.
      if (!begun.is_staged && (first_tile == 0 || chunk_blocks < super_blocks))
        stage(s, x, a, begun.scale, first_block * 256, blocks * 256);
      block_sync();

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
            sums[k] += shfl_xor<1>(sums[k]);
            sums[k] += shfl_xor<2>(sums[k]);
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
        const u32 tile = done + (tid_x() >> 4), r = tid_x() & 15, row = (bid + grid * (first_tile + tile)) * 16 + r;
        const bool adds = tid_x() < (int)completed * 16;
        float before = 0.f;            // loads while this waits for the other groups
        if (adds && last_chunk && row < a.out_rows && (a.flags & LINEAR_ADD)) before = out[row];
        block_sync();
        if (!adds) continue;
        float sums[2];
        add_partials(s, length, tile, r, is_gated, sums);
        if (!first_chunk) { sums[0] += s.sums[tile][0][r]; sums[1] += s.sums[tile][1][r]; }
        if (!last_chunk) { s.sums[tile][0][r] = sums[0]; s.sums[tile][1][r] = sums[1]; }
        else if (row < a.out_rows) store(a, out, row, expert, is_gated, sums, before);
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
