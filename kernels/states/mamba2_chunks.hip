// Mamba-2 over long sequences, 64 tokens at a time, on the matrix units (Dao and Gu, "Transformers are SSMs", 2024,
// section 6).
//
// Within a tile of 64 rows, let g_i be the decay of the state by tokens 1 .. i, d_i the time steps, and S_0 the state
// before the tile. Then S_i = g_i S_0 + sum_{j <= i} g_i / g_j d_j B_j x_j^T, and the outputs are
//   Y = g C S_0 + P X + D X,    P_ij = g_i / g_j d_j (C_i . B_j) up to the diagonal, 0 elsewhere.
// `mamba2_pairs` computes C_i . B_j of all tiles at once, since the heads of a group share it; `mamba2_scan` then goes
// from tile to tile. Tiles consist of the step's rows; pairs of tokens of two sequences do not interact.
#include "mamba2.h"
#include "state_tiles.h"

constexpr u32 COLUMNS = MAMBA2_SCAN_COLUMNS, WAVES = STATE_WALK_THREADS / WARP;
// Strips of 16 tokens per wave.
constexpr u32 STRIPS = TILE / 16 / WAVES;
// Columns of B and C in shared memory at a time. Strides are multiples of 16 bytes.
constexpr u32 SLICE = 64, PAIR_SLICE = 32, PAIR_STRIDE = PAIR_SLICE + 8, TILE_STRIDE = TILE + 8;

// Returns four elements of B or C of a row, from `column` on; zeros if there is no row.
DEV Four four_of(const Mamba2Args& a, u32 row, u32 column) {
  Four x = {};
  if (row < a.rows) {
    const v4 words = ld16(a.convolved + (u64)row * channels(a) + column);
    x.v[0] = bits_f32(words.x); x.v[1] = bits_f32(words.y); x.v[2] = bits_f32(words.z); x.v[3] = bits_f32(words.w);
  }
  return x;
}
// The first column of B and of C of a group.
DEV u32 b_of(const Mamba2Args& a, u32 group) { return inner_cols(a) + group * a.state_size; }
DEV u32 c_of(const Mamba2Args& a, u32 group) { return b_of(a, group) + group_cols(a); }

DEV float* pairs_of(const Mamba2Args& a, u32 tile, u32 group) { return a.pairs + ((u64)tile * a.groups + group) * PAIRS; }

// ------------------------------------------------------------------------------------------------ pairs of tokens
struct PairsLds {
  alignas(16) u16 b[2][TILE * PAIR_STRIDE];
  u16 c[2][TILE * PAIR_STRIDE];
};

KERNEL(STATE_WALK_THREADS, mamba2_pairs, Mamba2Args) {
  SHARED PairsLds lds;
  pdl_launch(); pdl_wait();
  const u32 tile = (u32)bid_x(), group = (u32)bid_y();
  constexpr u32 LOW = TILE * PAIR_STRIDE;
  float acc[STRIPS][TILE / 16][MMA_ACC] = {};
  #pragma unroll 1
  for (u32 slice = 0; slice < a.state_size; slice += PAIR_SLICE) {
    block_sync();                                        // the previous slice was read
    #pragma unroll
    for (u32 i = (u32)tid_x(); i < TILE * PAIR_SLICE / 4; i += STATE_WALK_THREADS) {
      const u32 token = i / (PAIR_SLICE / 4), column = i % (PAIR_SLICE / 4) * 4, row = tile * TILE + token;
      const u32 at = token * PAIR_STRIDE + column;
      store_four(lds.b[0] + at, LOW, four_of(a, row, b_of(a, group) + slice + column));
      store_four(lds.c[0] + at, LOW, four_of(a, row, c_of(a, group) + slice + column));
    }
    block_sync();                                        // the slice is in shared memory
    #pragma unroll
    for (u32 s = 0; s < STRIPS; s++) {
      const u32 strip = wave() * STRIPS + s;
      #pragma unroll
      for (u32 n = 0; n < TILE / 16; n++) {
        if (n > strip) continue;                         // later tokens do not affect earlier ones
        #pragma unroll
        for (u32 c = 0; c < PAIR_SLICE; c += 16)
          multiply<1>(&acc[s][n], lds.c[0] + strip * 16 * PAIR_STRIDE + c, LOW, PAIR_STRIDE,
                      lds.b[0] + n * 16 * PAIR_STRIDE + c, LOW, PAIR_STRIDE);
      }
    }
  }
  float* pairs = pairs_of(a, tile, group);
  #pragma unroll
  for (u32 s = 0; s < STRIPS; s++) {
    const u32 strip = wave() * STRIPS + s;
    #pragma unroll
    for (u32 n = 0; n < TILE / 16; n++) {
      if (n > strip) continue;                           // nobody reads it
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) {
        const u32 row = strip * 16 + (u32)mma_row(lane_id(), (int)i), column = n * 16 + (u32)mma_col(lane_id(), (int)i);
        pairs[row * TILE + column] = acc[s][n][i] / UNIT;
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------ from tile to tile
template <u32 D> struct ScanLds {
  alignas(16) u16 state[2][COLUMNS * (D + 8)];           // S_0 transposed, divided by `scale`
  u16 rows[TILE / 16][2 * 16 * TILE_STRIDE];             // of each strip: a slice of C, then P; then all tokens' B
  u16 x[2][COLUMNS * TILE_STRIDE];                       // transposed; 0 for tokens of other sequences
  u32 age[TILE];
  float time_step[TILE];
  float until[TILE];                                     // d_j, decayed until the next state
  float peaks[WAVES];
};

template <u32 D> struct Scan {
  static constexpr u32 STATE_TILES = D / 16 / WAVES, STATE_STRIDE = D + 8;
  static constexpr u32 STATE_LOW = COLUMNS * STATE_STRIDE, ROWS_LOW = 16 * TILE_STRIDE, X_LOW = COLUMNS * TILE_STRIDE;
  const Mamba2Args& a;
  u32 head, group, first_column;
  // The rows of the tile that belong to the sequence.
  u32 tile, first, last;
  // 16 rows by 16 columns of the state, for the rows of this wave.
  float s[STATE_TILES][1][MMA_ACC];

  MEM u32 row_of(u32 m, u32 i) const { return (wave() * STATE_TILES + m) * 16 + (u32)mma_row(lane_id(), (int)i); }
  MEM u32 column_of(u32 i) const { return (u32)mma_col(lane_id(), (int)i); }
  MEM u32 token_of(u32 strip, u32 i) const { return strip * 16 + (u32)mma_row(lane_id(), (int)i); }
  MEM bool is_own(u32 token) const { return token >= first && token < last; }

  MEM float* place(u32 slot, u32 m, u32 i) const {
    const u64 row = ((u64)slot * a.heads + head) * D + row_of(m, i);
    return a.states.matrices + row * a.head_size + first_column + column_of(i);
  }

  MEM void load(u32 slot) {
    #pragma unroll
    for (u32 m = 0; m < STATE_TILES; m++)
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) s[m][0][i] = slot == NO_STATE ? 0.f : *place(slot, m, i);
  }

  // Stores the largest number of this wave's part of the state.
  MEM void measure(ScanLds<D>& lds) const {
    float peak = 0.f;
    #pragma unroll
    for (u32 m = 0; m < STATE_TILES; m++)
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) peak = fmax_(peak, fabs_(s[m][0][i]));
    peak = warp_max(peak);
    if (lane_id() == 0) lds.peaks[wave()] = peak;
  }

  // Returns the power of two by which the state is divided, so that it does not saturate as an operand. Unlike B, C and
  // x, it grows with the text.
  MEM float scale_of(const ScanLds<D>& lds) const {
    float peak = 0.f;
    #pragma unroll
    for (u32 w = 0; w < WAVES; w++) peak = fmax_(peak, lds.peaks[w]);
    constexpr u32 MOST = 9;                              // 2^9 .. 2^10 stay
    const u32 exponent = f32_bits(peak) >> 23;
    return exponent > 127 + MOST ? bits_f32((exponent - MOST) << 23) : 1.f;
  }

  // Copies the state into shared memory, for its product with C.
  MEM void share(ScanLds<D>& lds, float scale) const {
    #pragma unroll
    for (u32 m = 0; m < STATE_TILES; m++)
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) {
        const Halves x = halves(s[m][0][i] / scale);
        const u32 at = column_of(i) * STATE_STRIDE + row_of(m, i);
        lds.state[0][at] = x.high;
        lds.state[1][at] = x.low;
      }
  }

  // The first wave computes the steps; 32 lanes have two tokens each.
  MEM void make_steps(ScanLds<D>& lds) const {
    if (wave() != 0) return;
    const u32 token = (u32)lane_id() % 32 * 2;
    u32 age[2];
    HeadStep steps[2];
    #pragma unroll
    for (u32 i = 0; i < 2; i++) {
      steps[i] = {0.f, 0.f};
      if (is_own(token + i)) steps[i] = head_step(a, tile * TILE + token + i, head);
      age[i] = age_of(steps[i].log_decay);
    }
    add_up_ages(age);
    if (lane_id() >= 32) return;
    #pragma unroll
    for (u32 i = 0; i < 2; i++) {
      lds.age[token + i] = age[i];
      lds.time_step[token + i] = steps[i].time_step;
    }
  }

  // A lane's share of some columns of C of a strip, between memory and shared memory.
  struct Slices {
    static constexpr u32 COUNT = 16 * SLICE / 4 / WARP;
    Four c[COUNT];
  };
  MEM void ask(u32 strip, u32 slice, Slices& to) const {
    #pragma unroll
    for (u32 i = 0; i < Slices::COUNT; i++) {
      const u32 j = (u32)lane_id() + i * WARP;
      to.c[i] = four_of(a, tile * TILE + strip * 16 + j / (SLICE / 4), c_of(a, group) + slice + j % (SLICE / 4) * 4);
    }
  }
  MEM void put(const Slices& from, u16* to) const {
    #pragma unroll
    for (u32 i = 0; i < Slices::COUNT; i++) {
      const u32 j = (u32)lane_id() + i * WARP;
      store_four(to + j / (SLICE / 4) * TILE_STRIDE + j % (SLICE / 4) * 4, ROWS_LOW, from.c[i]);
    }
  }

  // acc = UNIT * C S_0 for a strip of tokens, whose first slice is already loading.
  MEM void multiply_state(ScanLds<D>& lds, u32 strip, Slices& next, float (*acc)[MMA_ACC]) const {
    u16* rows = lds.rows[strip];
    #pragma unroll 1
    for (u32 slice = 0; slice < D; slice += SLICE) {
      put(next, rows);
      warp_sync();                                       // the slice is in shared memory
      if (slice + SLICE < D) ask(strip, slice + SLICE, next);
      #pragma unroll 1
      for (u32 c = 0; c < SLICE; c += 16)
        multiply<1>(acc, rows + c, ROWS_LOW, TILE_STRIDE, lds.state[0] + slice + c, STATE_LOW, STATE_STRIDE);
      warp_sync();                                       // the slice was read
    }
  }

  // acc += UNIT * P X for a strip of tokens.
  MEM void multiply_pairs(ScanLds<D>& lds, u32 strip, float (*acc)[MMA_ACC]) const {
    u16* rows = lds.rows[strip];
    const float* pairs = pairs_of(a, tile, group) + strip * 16 * TILE;
    const u32 fours = (strip + 1) * 4;                   // of a row, up to the diagonal's block
    #pragma unroll 1
    for (u32 j = (u32)lane_id(); j < 16 * fours; j += WARP) {
      const u32 token = j / fours, column = j % fours * 4, row = strip * 16 + token;
      const v4 words = ld16(pairs + token * TILE + column);
      const float of_pairs[4] = {bits_f32(words.x), bits_f32(words.y), bits_f32(words.z), bits_f32(words.w)};
      Four p = {};
      #pragma unroll
      for (u32 c = 0; c < 4; c++)
        if (column + c <= row && is_own(row) && is_own(column + c))
          p.v[c] = of_pairs[c] * decay_between(lds.age[column + c], lds.age[row]) * lds.time_step[column + c];
      store_four(rows + token * TILE_STRIDE + column, ROWS_LOW, p);
    }
    warp_sync();                                         // P is in shared memory
    #pragma unroll 1
    for (u32 n = 0; n <= strip; n++)
      multiply<1>(acc, rows + n * 16, ROWS_LOW, TILE_STRIDE, lds.x[0] + n * 16, X_LOW, TILE_STRIDE);
    warp_sync();                                         // P was read
  }

  // Returns the columns of x of this block in a row, which the outputs replace.
  MEM float* value_of(u32 token) const {
    return a.convolved + (u64)(tile * TILE + token) * channels(a) + head * a.head_size + first_column;
  }

  // Computes the state after the tokens before `end`, and stores it in a slot or continues with it.
  MEM void advance(ScanLds<D>& lds, u32 end, bool is_kept, u32 slot) {
    const u32 thread = (u32)tid_x(), age = lds.age[end - 1];
    if (thread < TILE)
      lds.until[thread] = thread < end ? decay_between(lds.age[thread], age) * lds.time_step[thread] : 0.f;
    block_sync();                                        // all decays are stored
    const float decay = decay_between(0, age);
    u16* rows = lds.rows[wave() * STRIPS];
    #pragma unroll
    for (u32 m = 0; m < STATE_TILES; m++) {
      warp_sync();                                       // the previous rows of B were read
      #pragma unroll 4                                   // fully unrolled, the loads fill the registers
      for (u32 i = 0; i < TILE * 4 / WARP; i++) {
        const u32 j = (u32)lane_id() + i * WARP, token = j % TILE, four = j / TILE * 4;
        const u32 column = b_of(a, group) + (wave() * STATE_TILES + m) * 16 + four;
        const Four x = is_own(token) ? four_of(a, tile * TILE + token, column) : Four{};
        #pragma unroll
        for (u32 c = 0; c < 4; c++) {
          const Halves b = halves(x.v[c] * lds.until[token]);
          rows[(four + c) * TILE_STRIDE + token] = b.high;
          rows[ROWS_LOW + (four + c) * TILE_STRIDE + token] = b.low;
        }
      }
      warp_sync();                                       // the rows of B are in shared memory
      float acc[1][MMA_ACC];
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) acc[0][i] = UNIT * decay * s[m][0][i];
      #pragma unroll 1
      for (u32 c = 0; c < TILE; c += 16)
        multiply<1>(acc, rows + c, ROWS_LOW, TILE_STRIDE, lds.x[0] + c, X_LOW, TILE_STRIDE);
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++)
        if (is_kept) *place(slot, m, i) = acc[0][i] / UNIT;
        else s[m][0][i] = acc[0][i] / UNIT;
    }
    block_sync();                                        // the decays were read
  }
};

template <u32 D> DEV void mamba2_scan(const Mamba2Args& a) {
  SHARED ScanLds<D> lds;
  pdl_launch(); pdl_wait();
  const u32 sequence = (u32)bid_z(), start = ld_step(a.states.starts + sequence);
  const u32 end = ld_step(a.states.starts + sequence + 1);
  if (start >= end || end - start < a.chunked_from) return;
  Scan<D> scan{a, (u32)bid_y(), group_of(a, (u32)bid_y()), (u32)bid_x() * COLUMNS, 0, 0, 0, {}};
  scan.load(ld_step(a.states.reads + sequence));
  u32 write = ld_step(a.states.write_starts + sequence);
  const u32 last_write = ld_step(a.states.write_starts + sequence + 1);
  const float skip = a.skip[scan.head];
  for (scan.tile = start / TILE; scan.tile * TILE < end; scan.tile++) {
    const u32 first_row = scan.tile * TILE;
    scan.first = start > first_row ? start - first_row : 0;
    scan.last = min_(end - first_row, TILE);
    // A block has few waves, and the chip few blocks: loads start long before their data is used.
    typename Scan<D>::Slices slices;
    scan.ask(wave() * STRIPS, 0, slices);
    float x[STRIPS][MMA_ACC];
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++)
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) {
        const u32 token = scan.token_of(wave() * STRIPS + t, i), at = scan.column_of(i) * TILE_STRIDE + token;
        x[t][i] = scan.is_own(token) ? scan.value_of(token)[scan.column_of(i)] : 0.f;
        const Halves h = halves(x[t][i]);
        lds.x[0][at] = h.high;
        lds.x[1][at] = h.low;
      }
    scan.make_steps(lds);
    scan.measure(lds);
    block_sync();                                        // x, the steps and the peaks are in shared memory
    const float scale = scan.scale_of(lds);
    scan.share(lds, scale);
    block_sync();                                        // the state is in shared memory
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++) {
      const u32 strip = wave() * STRIPS + t;
      float y[1][MMA_ACC] = {};
      if (t > 0) scan.ask(strip, 0, slices);
      scan.multiply_state(lds, strip, slices, y);
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) y[0][i] *= scale * decay_between(0, lds.age[scan.token_of(strip, i)]);
      scan.multiply_pairs(lds, strip, y);
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) {
        const u32 token = scan.token_of(strip, i);
        if (scan.is_own(token)) scan.value_of(token)[scan.column_of(i)] = fma_(skip, x[t][i], y[0][i] / UNIT);
      }
    }
    for (; write < last_write; write++) {
      const u32 kept = start + ld_step(a.states.writes + 2 * write);
      if (kept > first_row + scan.last) break;
      scan.advance(lds, kept - first_row, true, ld_step(a.states.writes + 2 * write + 1));
    }
    if (end > first_row + TILE) scan.advance(lds, TILE, false, 0);
  }
  keep_inputs(a.states, matrices_of(a), inputs_of(a), sequence, start);
}

KERNEL(STATE_WALK_THREADS, mamba2_scan_d128, Mamba2Args) { mamba2_scan<128>(a); }
KERNEL(STATE_WALK_THREADS, mamba2_scan_d256, Mamba2Args) { mamba2_scan<256>(a); }
