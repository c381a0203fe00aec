// Gated delta nets over long texts, 64 tokens at a time, on the matrix units.
//
// Within a tile of 64 rows, g_i being the decay of the state by token i and those before it, the changes u_i that the
// tokens make to the state S_0 before the tile (S_i = g_i S_0 + sum_{j <= i} g_i / g_j k_j u_j^T) follow from
//   (I + A) U = beta (V - g K S_0),    A_ij = beta_i g_i / g_j k_i k_j below the diagonal, 0 elsewhere,
// and the outputs are O = g Q S_0 + P U with P_ij = g_i / g_j q_i k_j up to the diagonal (Yang et al., "Gated Delta
// Networks", 2024, and "Parallelizing Linear Transformers with the Delta Rule", 2024). T = (I + A)^-1 and P do not
// depend on the state: `delta_net_pairs` makes them for all tiles at once, then `delta_net_scan` goes from tile to
// tile. Tiles are of the step's rows; pairs of tokens of two sequences have nothing to do with each other.
//
// Operands are pairs of halves, 22 bits of a number, so that states stay as exact as those of the walk.
#include "delta_net.h"
#include "mma.h"

constexpr u32 TILE = DELTA_NET_TILE, KEY_SIZE = DELTA_NET_KEY_SIZE, COLUMNS = STATE_COLUMNS;
constexpr u32 WAVES = STATE_WALK_THREADS / WARP;
// Strips of 16 tokens that a wave has.
constexpr u32 STRIPS = TILE / 16 / WAVES;
// Columns of q and k that are in shared memory at a time. Strides are multiples of 16 bytes.
constexpr u32 SLICE = 32, SLICE_STRIDE = SLICE + 8, TILE_STRIDE = TILE + 8, KEY_STRIDE = KEY_SIZE + 8;
// Elements of one matrix of a tile in memory; T and P have two each, of high and of low halves.
constexpr u32 PAIRS = TILE * TILE;

DEV u32 wave() { return (u32)tid_x() / WARP; }

// ------------------------------------------------------------------------------------------------ pairs of halves
// Operands are multiplied by 8, so that the low halves of small ones (elements of q are about 0.01) keep their bits
// above the smallest half; sums of products hold UNIT for 1. Operands saturate at 8,000.
constexpr float OPERAND = 8.f, UNIT = OPERAND * OPERAND;

struct Halves { u16 high, low; };
DEV Halves halves(float x) {
  const float scaled = x * OPERAND;
  const u16 high = f2h_sat(scaled);
  return {high, f2h_sat(scaled - h2f(high))};
}

// Stores four numbers whose high halves go to `to`, the low ones `low` elements behind.
DEV void store_four(u16* to, u32 low, const Four& x) {
  const Halves a = halves(x.v[0]), b = halves(x.v[1]), c = halves(x.v[2]), d = halves(x.v[3]);
  *(v2*)to = v2{a.high | (u32)b.high << 16, c.high | (u32)d.high << 16};
  *(v2*)(to + low) = v2{a.low | (u32)b.low << 16, c.low | (u32)d.low << 16};
}

// acc[n] += UNIT * a * b[n]^T over 16 columns, the tiles of b lying one behind the other. What the low halves give with
// each other is below the last bit of the rest.
template <u32 N>
DEV void multiply(float (*acc)[MMA_ACC], const u16* a, u32 a_low, u32 a_stride, const u16* b, u32 b_low, u32 b_stride) {
  MmaA high, low;
  mma_load(high, a, a_stride);
  mma_load(low, a + a_low, a_stride);
  #pragma unroll
  for (u32 n = 0; n < N; n++) {
    MmaB of_high, of_low;
    mma_load(of_high, b + n * 16 * b_stride, b_stride);
    mma_load(of_low, b + b_low + n * 16 * b_stride, b_stride);
    mma<false>(acc[n], high, of_high);
    mma<false>(acc[n], high, of_low);
    mma<false>(acc[n], low, of_high);
  }
}

// ------------------------------------------------------------------------------------------------ gates
// What a state has decayed by from the beginning of a tile to the end of each of its tokens, as -ln in whole numbers of
// 2^-21: differences are exact, so that a long decay before two tokens costs nothing between them. A token's own is cut
// at 30, where e^-30 leaves nothing.
constexpr float AGE_UNIT = 1.f / 2097152.f, MOST_AGE = 30.f;

struct Gates {
  float beta[TILE];
  u32 age[TILE];
  u32 sequence[TILE];
};

DEV float decay_between(u32 younger, u32 older) { return exp_accurate(-(float)(older - younger) * AGE_UNIT); }

// The first wave's work; 32 lanes have two tokens each.
DEV void load_gates(const DeltaNetArgs& a, u32 tile, u32 head, Gates& gates) {
  if (wave() != 0) return;
  const u32 lane = (u32)lane_id(), token = lane % 32 * 2;
  u32 age[2];
  #pragma unroll
  for (u32 i = 0; i < 2; i++) {
    const u32 row = tile * TILE + token + i;
    HeadGates own = {0.f, 0.f};
    u32 sequence = NO_SEQUENCE;
    if (row < a.rows) {
      own = head_gates(a, row, head);
      sequence = ld_step(a.states.sequences + row);
    }
    const float decayed = -own.log_decay;
    age[i] = (u32)((decayed < MOST_AGE ? decayed : MOST_AGE) / AGE_UNIT + 0.5f);
    if (lane < 32) {
      gates.beta[token + i] = own.beta;
      gates.sequence[token + i] = sequence;
    }
  }
  u32 sum = age[0] + age[1];
  #pragma unroll
  for (int m = 1; m < 32; m <<= 1) {
    const u32 before = shfl_u32(sum, (int)lane - m);
    if (lane % 32 >= (u32)m) sum += before;
  }
  if (lane < 32) {
    gates.age[token] = sum - age[1];
    gates.age[token + 1] = sum;
  }
}

// Four elements of q or k of a row, from its column on; zeros where there is no row.
DEV Four key_four(const DeltaNetArgs& a, u32 row, u32 column) {
  Four x = {};
  if (row < a.rows) {
    const v4 words = ld16(a.convolved + (u64)row * channels(a) + column);
    x.v[0] = bits_f32(words.x); x.v[1] = bits_f32(words.y); x.v[2] = bits_f32(words.z); x.v[3] = bits_f32(words.w);
  }
  return x;
}

// T of a tile and head, with P behind it: each the high halves of [TILE][TILE], then the low ones.
DEV u16* pairs_of(const DeltaNetArgs& a, u32 tile, u32 head) {
  return a.pairs + ((u64)tile * a.value_heads + head) * 4 * PAIRS;
}

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
};

// Column c of the inverse, by substitution from row to row; two lanes share a column.
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
    all += shfl_xor(all, 1);
    if (part == 0) lds.inverse[row][column] = (row == column ? 1.f : 0.f) - all;
    warp_sync();
  }
}

KERNEL(STATE_WALK_THREADS, delta_net_pairs, DeltaNetArgs) {
  SHARED PairsLds lds;
  pdl_launch(); pdl_wait();
  const u32 tile = (u32)bid_x(), head = (u32)bid_y(), thread = (u32)tid_x(), key = key_head_of(a, head) * KEY_SIZE;
  load_gates(a, tile, head, lds.gates);
  float of_k[STRIPS][TILE / 16][MMA_ACC] = {}, of_q[STRIPS][TILE / 16][MMA_ACC] = {};
  #pragma unroll 1
  for (u32 slice = 0; slice < KEY_SIZE; slice += SLICE) {
    block_sync();                                        // the slice before was read; the gates are there
    #pragma unroll
    for (u32 i = thread; i < TILE * SLICE / 4; i += STATE_WALK_THREADS) {
      const u32 token = i / (SLICE / 4), column = i % (SLICE / 4) * 4, row = tile * TILE + token;
      const u32 at = token * SLICE_STRIDE + column;
      store_four(lds.slice.q[0] + at, TILE * SLICE_STRIDE, key_four(a, row, key + slice + column));
      store_four(lds.slice.k[0] + at, TILE * SLICE_STRIDE, key_four(a, row, key_cols(a) + key + slice + column));
    }
    block_sync();                                        // the slice is there
    #pragma unroll
    for (u32 s = 0; s < STRIPS; s++) {
      const u32 strip = wave() * STRIPS + s, at = strip * 16 * SLICE_STRIDE;
      #pragma unroll
      for (u32 n = 0; n < TILE / 16; n++) {
        if (n > strip) continue;                         // later tokens do nothing to earlier ones
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
  const int lane = lane_id();
  #pragma unroll
  for (u32 s = 0; s < STRIPS; s++) {
    const u32 strip = wave() * STRIPS + s;
    #pragma unroll
    for (u32 n = 0; n < TILE / 16; n++)
      #pragma unroll
      for (u32 i = 0; i < MMA_ACC; i++) {
        const u32 row = strip * 16 + (u32)mma_row(lane, (int)i), column = n * 16 + (u32)mma_col(lane, (int)i);
        const bool is_pair = column <= row && lds.gates.sequence[row] == lds.gates.sequence[column];
        const float decay = is_pair ? decay_between(lds.gates.age[column], lds.gates.age[row]) : 0.f;
        const bool is_below = is_pair && column < row;
        lds.below[row][column] = is_below ? lds.gates.beta[row] * decay * of_k[s][n][i] / UNIT : 0.f;
        if (n > strip) continue;                         // nobody reads it
        const Halves p = halves(is_pair ? decay * of_q[s][n][i] / UNIT : 0.f);
        pairs[2 * PAIRS + row * TILE + column] = p.high;
        pairs[3 * PAIRS + row * TILE + column] = p.low;
      }
  }
  block_sync();                                          // A is there; q and k were read
  invert(lds);
  block_sync();                                          // all columns are there
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
  u16 rows[TILE / 16][4 * 16 * SLICE_STRIDE];            // of each strip: a slice of k and of q; keys of all tokens
  u16 changes[2][COLUMNS * TILE_STRIDE];                 // what T is to multiply, then decayed U: transposed both
  Gates gates;
};
static_assert(2 * 16 * TILE_STRIDE <= 4 * 16 * SLICE_STRIDE, "keys of all tokens fit the place of a strip");

struct Scan {
  static constexpr u32 KEY_TILES = KEY_SIZE / 16 / WAVES;
  static constexpr u32 STATE_LOW = COLUMNS * KEY_STRIDE, ROWS_LOW = 16 * SLICE_STRIDE;
  static constexpr u32 CHANGES_LOW = COLUMNS * TILE_STRIDE;
  u32 head, key, first_column;
  // Rows of the tile that are the sequence's, and the age before the first of them.
  u32 tile, first, last, age_before;
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

  // Puts the state into shared memory, for the products with k and q.
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

  // A lane's share of some columns of k and q of a strip, on its way to shared memory.
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

  // of_k = UNIT * K S_0, of_q = UNIT * Q S_0 for a strip of tokens.
  MEM void multiply_state(const DeltaNetArgs& a, ScanLds& lds, u32 strip, float (*of_k)[MMA_ACC],
                          float (*of_q)[MMA_ACC]) {
    u16* rows = lds.rows[strip];
    Slices next;
    ask(a, strip, 0, next);
    #pragma unroll 1
    for (u32 slice = 0; slice < KEY_SIZE; slice += SLICE) {
      put(next, rows);
      warp_sync();                                       // the slice is there
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

  // The columns of v of this block in a row, which the outputs take the place of.
  MEM float* value_of(const DeltaNetArgs& a, u32 token) const {
    const u64 row = tile * TILE + token;
    return a.convolved + row * channels(a) + 2 * key_cols(a) + head * a.value_size + first_column;
  }

  // Brings T's or P's rows of a strip together with the columns in shared memory; later tokens have no part in it.
  MEM void multiply_pairs(const u16* pairs, u32 strip, const u16* with, u32 with_low, float (*acc)[MMA_ACC]) const {
    #pragma unroll 1
    for (u32 n = 0; n <= strip; n++)
      multiply<2>(acc, pairs + strip * 16 * TILE + n * 16, PAIRS, TILE, with + n * 16, with_low, TILE_STRIDE);
  }

  // The state behind the tokens before `end`: kept in a slot, or gone on with.
  MEM void advance(const DeltaNetArgs& a, ScanLds& lds, const float (*u)[2][MMA_ACC], u32 end, bool is_kept, u32 slot) {
    const u32 age = lds.gates.age[end - 1];
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++)
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) {
          const u32 token = token_of(t, i);
          const Halves x = halves(token < end ? u[t][n][i] * decay_between(lds.gates.age[token], age) : 0.f);
          const u32 at = column_of(n, i) * TILE_STRIDE + token;
          lds.changes[0][at] = x.high;
          lds.changes[1][at] = x.low;
        }
    block_sync();                                        // all changes are there
    const float decay = decay_between(age_before, age);
    u16* keys = lds.rows[wave() * STRIPS];
    #pragma unroll
    for (u32 m = 0; m < KEY_TILES; m++) {
      warp_sync();                                       // the keys before were read
      #pragma unroll 4                                   // unrolled whole, the loads fill the registers
      for (u32 i = 0; i < TILE * 4 / WARP; i++) {
        const u32 j = (u32)lane_id() + i * WARP, token = j % TILE, four = j / TILE * 4;
        const u32 column = key_cols(a) + key + (wave() * KEY_TILES + m) * 16 + four;
        const Four x = is_own(token) ? key_four(a, tile * TILE + token, column) : Four{};
        #pragma unroll
        for (u32 c = 0; c < 4; c++) {
          const Halves k = halves(x.v[c]);
          keys[(four + c) * TILE_STRIDE + token] = k.high;
          keys[16 * TILE_STRIDE + (four + c) * TILE_STRIDE + token] = k.low;
        }
      }
      warp_sync();                                       // the keys are there
      float acc[2][MMA_ACC];
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) acc[n][i] = UNIT * decay * s[m][n][i];
      #pragma unroll 1
      for (u32 c = 0; c < TILE; c += 16)
        multiply<2>(acc, keys + c, 16 * TILE_STRIDE, TILE_STRIDE, lds.changes[0] + c, CHANGES_LOW, TILE_STRIDE);
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
    load_gates(a, scan.tile, scan.head, lds.gates);
    scan.share(lds);
    block_sync();                                        // state and gates are there
    scan.age_before = scan.first ? lds.gates.age[scan.first - 1] : 0;
    float of_q[STRIPS][2][MMA_ACC] = {}, u[STRIPS][2][MMA_ACC] = {};
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++) {
      float of_k[2][MMA_ACC] = {};
      scan.multiply_state(a, lds, wave() * STRIPS + t, of_k, of_q[t]);
      #pragma unroll
      for (u32 n = 0; n < 2; n++)
        #pragma unroll
        for (u32 i = 0; i < MMA_ACC; i++) {
          const u32 token = scan.token_of(t, i), column = scan.column_of(n, i);
          const bool is_own = scan.is_own(token);
          const float decay = is_own ? decay_between(scan.age_before, lds.gates.age[token]) : 0.f;
          of_q[t][n][i] *= decay;
          const float v = is_own ? scan.value_of(a, token)[column] : 0.f;
          const Halves x = halves(is_own ? lds.gates.beta[token] * fma_(-decay / UNIT, of_k[n][i], v) : 0.f);
          lds.changes[0][column * TILE_STRIDE + token] = x.high;
          lds.changes[1][column * TILE_STRIDE + token] = x.low;
        }
    }
    block_sync();                                        // what T multiplies is there; the state was read
    const u16* pairs = pairs_of(a, scan.tile, scan.head);
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++) {
      scan.multiply_pairs(pairs, wave() * STRIPS + t, lds.changes[0], Scan::CHANGES_LOW, u[t]);
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
    block_sync();                                        // the changes are there, undecayed
    #pragma unroll
    for (u32 t = 0; t < STRIPS; t++) {
      scan.multiply_pairs(pairs + 2 * PAIRS, wave() * STRIPS + t, lds.state[0], Scan::STATE_LOW, of_q[t]);
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
