// Gated delta nets over long sequences, 64 tokens at a time, on the matrix units.
//
// Within a tile of 64 rows, let g_i be the decay of the state by tokens 1 .. i, and S_0 the state before the tile. The
// tokens change the state by u_i: S_i = g_i S_0 + sum_{j <= i} g_i / g_j k_j u_j^T. The changes follow from
//   (I + A) U = beta (V - g K S_0),    A_ij = beta_i g_i / g_j k_i k_j below the diagonal, 0 elsewhere,
// and the outputs are O = g Q S_0 + P U with P_ij = g_i / g_j q_i k_j up to the diagonal (Yang et al., "Gated Delta
// Networks", 2024, and "Parallelizing Linear Transformers with the Delta Rule", 2024). T = (I + A)^-1 and P do not
// depend on the state. `delta_net_pairs` computes them for all tiles at once; `delta_net_scan` then goes from tile to
// tile. Tiles consist of the step's rows; pairs of tokens of two sequences do not interact.
#include "delta_tiles.h"

constexpr u32 COLUMNS = STATE_COLUMNS, WAVES = STATE_WALK_THREADS / WARP;
// Strips of 16 tokens per wave.
constexpr u32 STRIPS = TILE / 16 / WAVES;
// Columns of q and k in shared memory at a time. Strides are multiples of 16 bytes.
constexpr u32 SLICE = 32, SLICE_STRIDE = SLICE + 8, TILE_STRIDE = TILE + 8, KEY_STRIDE = KEY_SIZE + 8;

// ------------------------------------------------------------------------------------------------ pairs of tokens
struct SliceLds {
  alignas(16) u16 k[2][TILE * SLICE_STRIDE];
  u16 q[2][TILE * SLICE_STRIDE];
};
struct PairsLds {
  union {
    SliceLds slice;
    float inverse[TILE][TILE + 1];                       // T
  };
  float below[TILE][TILE + 4];         // A
  Gates gates;
  u32 sequences[TILE];
};

// Computes one column of the inverse, by substitution from row to row; two lanes share a column.
DEV void invert(PairsLds& lds) {
  static_assert(STATE_WALK_THREADS == 2 * TILE, "two lanes have a column");
  const u32 column = (u32)tid_x() >> 1, part = (u32)tid_x() & 1;
  for (u32 row = 0; row < TILE; row++) {
    float sum[2] = {};
    for (u32 j = part; j < row; j += 4) {
      sum[0] = fma_(lds.below[row][j], lds.inverse[j][column], sum[0]);
      if (j + 2 < row) sum[1] = fma_(lds.below[row][j + 2], lds.inverse[j + 2][column], sum[1]);
    }
    float all = sum[0] + sum[1];
    all += shfl_xor<1>(all);
    if (part == 0) lds.inverse[row][column] = (row == column ? 1.f : 0.f) - all;
    warp_sync();
  }
}

KERNEL(STATE_WALK_THREADS, delta_net_pairs, DeltaNetArgs) {
  SHARED PairsLds lds;
  pdl_launch(); pdl_wait();
  const u32 tile = (u32)bid_x(), head = (u32)bid_y(), thread = (u32)tid_x(), key = key_head_of(a, head) * KEY_SIZE;
  make_gates(a, tile, head, lds.gates, lds.sequences);
  float of_k[STRIPS][TILE / 16][MMA_ACC] = {}, of_q[STRIPS][TILE / 16][MMA_ACC] = {};
  #pragma unroll 1
  for (u32 slice = 0; slice < KEY_SIZE; slice += SLICE) {
    block_sync();                                        // the previous slice was read; the gates are complete
    #pragma unroll
    for (u32 i = thread; i < TILE * SLICE / 4; i += STATE_WALK_THREADS) {
      const u32 token = i / (SLICE / 4), column = i % (SLICE / 4) * 4, row = tile * TILE + token;
      const u32 at = token * SLICE_STRIDE + column;
      store_four(lds.slice.q[0] + at, TILE * SLICE_STRIDE, key_four(a, row, key + slice + column));
      store_four(lds.slice.k[0] + at, TILE * SLICE_STRIDE, key_four(a, row, key_cols(a) + key + slice + column));
    }
    block_sync();                                        // the slice is in shared memory
    #pragma unroll
    for (u32 s = 0; s < STRIPS; s++) {
      const u32 strip = wave() * STRIPS + s, at = strip * 16 * SLICE_STRIDE;
      #pragma unroll
      for (u32 n = 0; n < TILE / 16; n++) {
        if (n > strip) continue;                         // later tokens do not affect earlier ones
        #pragma unroll
        for (u32 c = 0; c < SLICE; c += 16) {
          const u16* k = lds.slice.k[0] + n * 16 * SLICE_STRIDE + c;
          constexpr u32 LOW = TILE * SLICE_STRIDE;
          multiply<1>(&of_k[s][n], lds.slice.k[0] + at + c, LOW, SLICE_STRIDE, k, LOW, SLICE_STRIDE);
          multiply<1>(&of_q[s][n], lds.slice.q[0] + at + c, LOW, SLICE_STRIDE, k, LOW, SLICE_STRIDE);
        }
      }
    }
  }
  u16* pairs = pairs_of(a, tile, head);
  if (thread < TILE) {
    gates_of(pairs)->beta[thread] = lds.gates.beta[thread];
    gates_of(pairs)->age[thread] = lds.gates.age[thread];
  }
  const int lane = lane_id();
  #pragma unroll
  for (u32 s = 0; s < STRIPS; s++) {
    const u32 strip = wave() * STRIPS + s;
    #pragma unroll
    for (u32 n = 0; n < TILE / 16; n++)
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) {
        const u32 row = strip * 16 + (u32)mma_row(lane, (int)i), column = n * 16 + (u32)mma_col(lane, (int)i);
        const bool is_pair = column <= row && lds.sequences[row] == lds.sequences[column];
        const float decay = is_pair ? decay_between(lds.gates.age[column], lds.gates.age[row]) : 0.f;
        const bool is_below = is_pair && column < row;
        lds.below[row][column] = is_below ? lds.gates.beta[row] * decay * of_k[s][n][i] / UNIT : 0.f;
        if (n > strip) continue;                         // nobody reads it
        const Halves p = halves(is_pair ? decay * of_q[s][n][i] / UNIT : 0.f);
        pairs[2 * PAIRS + row * TILE + column] = p.high;
        pairs[3 * PAIRS + row * TILE + column] = p.low;
      }
  }
  block_sync();                                          // A is complete; q and k were read
  invert(lds);
  block_sync();                                          // all columns are complete
  #pragma unroll 1
  for (u32 i = thread; i < PAIRS / 4; i += STATE_WALK_THREADS) {
    const u32 row = i / (TILE / 4), column = i % (TILE / 4) * 4;
    if (column / 16 > row / 16) continue;                // nobody reads it
    Four x;
    #pragma unroll
    for (u32 j = 0; j < 4; j++) x.v[j] = lds.inverse[row][column + j];
    store_four(pairs + i * 4, PAIRS, x);
  }
}

// ------------------------------------------------------------------------------------------------ from tile to tile
struct ScanLds {
  alignas(16) u16 state[2][COLUMNS * KEY_STRIDE];        // S transposed; then U transposed, in rows of TILE_STRIDE
  u16 rows[TILE / 16][4 * 16 * SLICE_STRIDE];            // of each strip: a slice of k and of q; then all tokens' keys
  u16 changes[2][COLUMNS * TILE_STRIDE];                 // the right operand of T, then decayed U; both transposed
  Gates gates;
  float since[TILE];                                     // decay of S_0 by each token; 0 for tokens of other sequences
  float until[TILE];                                     // decay of each token's change until the next state
};
static_assert(2 * 16 * TILE_STRIDE <= 4 * 16 * SLICE_STRIDE, "keys of all tokens fit the place of a strip");

struct Scan {
  // How many rows of T and P of a strip are prefetched: as many as fit the registers.
  static constexpr u32 AHEAD = sizeof(Rows) > 32 ? 1 : TILE / 16;
  static constexpr u32 KEY_TILES = KEY_SIZE / 16 / WAVES;
  static constexpr u32 STATE_LOW = COLUMNS * KEY_STRIDE, ROWS_LOW = 16 * SLICE_STRIDE;
  static constexpr u32 CHANGES_LOW = COLUMNS * TILE_STRIDE;
  u32 head, key, first_column;
  // The rows of the tile that belong to the sequence.
  u32 tile, first, last;
  // 16 keys by 16 columns of the state, for the keys of this wave.
  float s[KEY_TILES][2][MMA_ACC];

  MEM u32 key_of(u32 m, u32 i) const { return (wave() * KEY_TILES + m) * 16 + (u32)mma_row(lane_id(), (int)i); }
  MEM u32 column_of(u32 n, u32 i) const { return n * 16 + (u32)mma_col(lane_id(), (int)i); }
  MEM u32 token_of(u32 strip, u32 i) const { return (wave() * STRIPS + strip) * 16 + (u32)mma_row(lane_id(), (int)i); }

  MEM float* place(const DeltaNetArgs& a, u32 slot, u32 m, u32 n, u32 i) const {
    const u64 row = ((u64)slot * a.value_heads + head) * KEY_SIZE + key_of(m, i);
    return a.states.matrices + row * a.value_size + first_column + column_of(n, i);
  }

  MEM void load(const DeltaNetArgs& a, u32 slot) {
    #pragma unroll
    for (u32 m = 0; m < KEY_TILES; m++)
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) s[m][n][i] = slot == NO_STATE ? 0.f : *place(a, slot, m, n, i);
  }

  // Copies the state into shared memory, for the products with k and q.
  MEM void share(ScanLds& lds) const {
    #pragma unroll
    for (u32 m = 0; m < KEY_TILES; m++)
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) {
          const Halves x = halves(s[m][n][i]);
          const u32 at = column_of(n, i) * KEY_STRIDE + key_of(m, i);
          lds.state[0][at] = x.high;
          lds.state[1][at] = x.low;
        }
  }

  MEM bool is_own(u32 token) const { return token >= first && token < last; }

  // A lane's share of some columns of k and q of a strip, between memory and shared memory.
  struct Slices {
    static constexpr u32 COUNT = 16 * SLICE / 4 / WARP;
    Four k[COUNT], q[COUNT];
  };
  MEM void ask(const DeltaNetArgs& a, u32 strip, u32 slice, Slices& to) const {
    #pragma unroll
    for (u32 i = 0; i < Slices::COUNT; i++) {
      const u32 j = (u32)lane_id() + i * WARP, row = tile * TILE + strip * 16 + j / (SLICE / 4);
      const u32 column = key + slice + j % (SLICE / 4) * 4;
      to.q[i] = key_four(a, row, column);
      to.k[i] = key_four(a, row, key_cols(a) + column);
    }
  }
  MEM void put(const Slices& from, u16* to) const {
    #pragma unroll
    for (u32 i = 0; i < Slices::COUNT; i++) {
      const u32 j = (u32)lane_id() + i * WARP, at = j / (SLICE / 4) * SLICE_STRIDE + j % (SLICE / 4) * 4;
      store_four(to + at, ROWS_LOW, from.k[i]);
      store_four(to + 2 * ROWS_LOW + at, ROWS_LOW, from.q[i]);
    }
  }

  // of_k = UNIT * K S_0, of_q = UNIT * Q S_0 for a strip of tokens, whose first slice is already loading.
  MEM void multiply_state(const DeltaNetArgs& a, ScanLds& lds, u32 strip, Slices& next, float (*of_k)[MMA_ACC],
                          float (*of_q)[MMA_ACC]) {
    u16* rows = lds.rows[strip];
    #pragma unroll 1
    for (u32 slice = 0; slice < KEY_SIZE; slice += SLICE) {
      put(next, rows);
      warp_sync();                                       // the slice is in shared memory
      if (slice + SLICE < KEY_SIZE) ask(a, strip, slice + SLICE, next);
      #pragma unroll 1
      for (u32 c = 0; c < SLICE; c += 16) {
        const u16* state = lds.state[0] + slice + c;
        multiply<2>(of_k, rows + c, ROWS_LOW, SLICE_STRIDE, state, STATE_LOW, KEY_STRIDE);
        multiply<2>(of_q, rows + 2 * ROWS_LOW + c, ROWS_LOW, SLICE_STRIDE, state, STATE_LOW, KEY_STRIDE);
      }
      warp_sync();                                       // the slice was read
    }
  }

  // Returns the columns of v of this block in a row, which the outputs replace.
  MEM float* value_of(const DeltaNetArgs& a, u32 token) const {
    const u64 row = tile * TILE + token;
    return a.convolved + row * channels(a) + 2 * key_cols(a) + head * a.value_size + first_column;
  }

  // The first rows of a strip of T or P, loading from memory.
  using Strip = Rows[AHEAD];
  MEM void ask_strip(const u16* pairs, u32 strip, Strip& to) const {
    #pragma unroll
    for (u32 n = 0; n < AHEAD; n++)
      if (n <= strip) load_rows(to[n], pairs + strip * 16 * TILE + n * 16, PAIRS, TILE);
  }
  // Multiplies these rows and the columns in shared memory; later tokens do not take part.
  MEM void multiply_strip(const Strip& first, const u16* pairs, u32 strip, const u16* with, u32 with_low,
                          float (*acc)[MMA_ACC]) const {
    #pragma unroll
    for (u32 n = 0; n < AHEAD; n++)
      if (n <= strip) multiply<2>(acc, first[n], with + n * 16, with_low, TILE_STRIDE);
    #pragma unroll 1
    for (u32 n = AHEAD; n <= strip; n++)
      multiply<2>(acc, pairs + strip * 16 * TILE + n * 16, PAIRS, TILE, with + n * 16, with_low, TILE_STRIDE);
  }

  // Computes the state after the tokens before `end`, and stores it in a slot or continues with it.
  MEM void advance(const DeltaNetArgs& a, ScanLds& lds, const float (*u)[2][MMA_ACC], u32 end, bool is_kept, u32 slot) {
    const u32 thread = (u32)tid_x(), age = lds.gates.age[end - 1];
    if (thread < TILE) lds.until[thread] = thread < end ? decay_between(lds.gates.age[thread], age) : 0.f;
    block_sync();                                        // all decays are stored
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++)
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) {
          const u32 token = token_of(t, i), at = column_of(n, i) * TILE_STRIDE + token;
          const Halves x = halves(u[t][n][i] * lds.until[token]);
          lds.changes[0][at] = x.high;
          lds.changes[1][at] = x.low;
        }
    block_sync();                                        // all changes are stored
    const float decay = lds.since[end - 1];
    u16* rows = lds.rows[wave() * STRIPS];
    #pragma unroll
    for (u32 m = 0; m < KEY_TILES; m++) {
      warp_sync();                                       // the previous keys were read
      #pragma unroll 4                                   // fully unrolled, the loads fill the registers
      for (u32 i = 0; i < TILE * 4 / WARP; i++) {
        const u32 j = (u32)lane_id() + i * WARP, token = j % TILE, four = j / TILE * 4;
        const u32 column = key_cols(a) + key + (wave() * KEY_TILES + m) * 16 + four;
        const Four x = is_own(token) ? key_four(a, tile * TILE + token, column) : Four{};
        #pragma unroll
        for (u32 c = 0; c < 4; c++) {
          const Halves k = halves(x.v[c]);
          rows[(four + c) * TILE_STRIDE + token] = k.high;
          rows[16 * TILE_STRIDE + (four + c) * TILE_STRIDE + token] = k.low;
        }
      }
      warp_sync();                                       // the keys are in shared memory
      float acc[2][MMA_ACC];
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) acc[n][i] = UNIT * decay * s[m][n][i];
      #pragma unroll 1
      for (u32 c = 0; c < TILE; c += 16)
        multiply<2>(acc, rows + c, 16 * TILE_STRIDE, TILE_STRIDE, lds.changes[0] + c, CHANGES_LOW, TILE_STRIDE);
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++)
          if (is_kept) *place(a, slot, m, n, i) = acc[n][i] / UNIT;
          else s[m][n][i] = acc[n][i] / UNIT;
    }
    block_sync();                                        // the changes were read
  }
};

KERNEL(STATE_WALK_THREADS, delta_net_scan, DeltaNetArgs) {
  SHARED ScanLds lds;
  pdl_launch(); pdl_wait();
  const u32 sequence = (u32)bid_z(), start = ld_step(a.states.starts + sequence);
  const u32 end = ld_step(a.states.starts + sequence + 1);
  if (start >= end || end - start < a.chunked_from) return;
  Scan scan;
  scan.head = (u32)bid_y();
  scan.key = key_head_of(a, scan.head) * KEY_SIZE;
  scan.first_column = (u32)bid_x() * COLUMNS;
  scan.load(a, ld_step(a.states.reads + sequence));
  u32 write = ld_step(a.states.write_starts + sequence);
  const u32 last_write = ld_step(a.states.write_starts + sequence + 1);
  for (scan.tile = start / TILE; scan.tile * TILE < end; scan.tile++) {
    const u32 first_row = scan.tile * TILE;
    scan.first = start > first_row ? start - first_row : 0;
    scan.last = min_(end - first_row, TILE);
    u16* pairs = pairs_of(a, scan.tile, scan.head);
    const Gates* gates = gates_of(pairs);
    // A block has few waves, and the chip few blocks: loads start long before their data is used.
    Scan::Slices slices;
    scan.ask(a, wave() * STRIPS, 0, slices);
    const u32 thread = (u32)tid_x(), age_before = scan.first ? gates->age[scan.first - 1] : 0;
    if (thread < TILE) {
      const u32 age = gates->age[thread];
      lds.gates.beta[thread] = gates->beta[thread];
      lds.gates.age[thread] = age;
      lds.since[thread] = scan.is_own(thread) ? decay_between(age_before, age) : 0.f;
    }
    float v[STRIPS][2][MMA_ACC];
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++) {
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) {
          const u32 token = scan.token_of(t, i);
          v[t][n][i] = scan.is_own(token) ? scan.value_of(a, token)[scan.column_of(n, i)] : 0.f;
        }
    }
    scan.share(lds);
    block_sync();                                        // state and gates are in shared memory
    Scan::Strip strips[STRIPS];
    float of_q[STRIPS][2][MMA_ACC] = {}, u[STRIPS][2][MMA_ACC] = {};
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++) {
      float of_k[2][MMA_ACC] = {};
      if (t > 0) scan.ask(a, wave() * STRIPS + t, 0, slices);
      scan.multiply_state(a, lds, wave() * STRIPS + t, slices, of_k, of_q[t]);
      scan.ask_strip(pairs, wave() * STRIPS + t, strips[t]);
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) {
          const u32 token = scan.token_of(t, i), at = scan.column_of(n, i) * TILE_STRIDE + token;
          const float since = lds.since[token];
          of_q[t][n][i] *= since;
          const float change = lds.gates.beta[token] * fma_(-since / UNIT, of_k[n][i], v[t][n][i]);
          const Halves x = halves(scan.is_own(token) ? change : 0.f);
          lds.changes[0][at] = x.high;
          lds.changes[1][at] = x.low;
        }
    }
    block_sync();                                        // the right operand of T is complete; the state was read
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++) {
      const u32 strip = wave() * STRIPS + t;
      scan.multiply_strip(strips[t], pairs, strip, lds.changes[0], Scan::CHANGES_LOW, u[t]);
      scan.ask_strip(pairs + 2 * PAIRS, strip, strips[t]);
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) {
          const u32 token = scan.token_of(t, i), at = scan.column_of(n, i) * TILE_STRIDE + token;
          u[t][n][i] = scan.is_own(token) ? u[t][n][i] / UNIT : 0.f;
          const Halves x = halves(u[t][n][i]);
          lds.state[0][at] = x.high;
          lds.state[1][at] = x.low;
        }
    }
    block_sync();                                        // the changes are complete, undecayed
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++) {
      scan.multiply_strip(strips[t], pairs + 2 * PAIRS, wave() * STRIPS + t, lds.state[0], Scan::STATE_LOW, of_q[t]);
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) {
          const u32 token = scan.token_of(t, i);
          if (scan.is_own(token)) scan.value_of(a, token)[scan.column_of(n, i)] = of_q[t][n][i] / UNIT;
        }
    }
    for (; write < last_write; write++) {
      const u32 kept = start + ld_step(a.states.writes + 2 * write);
      if (kept > first_row + scan.last) break;
      scan.advance(a, lds, u, kept - first_row, true, ld_step(a.states.writes + 2 * write + 1));
    }
    if (end > first_row + TILE) scan.advance(a, lds, u, TILE, false, 0);
  }
  keep_inputs(a.states, matrices_of(a), inputs_of(a), sequence, start);
}
