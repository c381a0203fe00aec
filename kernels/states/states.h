// Shared by the kernels of recurrent layers: the inputs of their convolutions, and the matrices of heads that a block
// carries along a sequence.
#pragma once
#include "activation.h"
#include "elementary.h"

DEV u32 min_(u32 x, u32 y) { return x < y ? x : y; }

// ------------------------------------------------------------------------------------------------ convolution
// The rows that go through a convolution, and the rows that states have kept.
struct Inputs {
  const float* x;         // [rows][stride], from the first channel on
  float* windows;         // [slots][window][channels]
  u32 stride, channels, window;
  u32 factor;             // distance in columns from a channel to its multiplier; 0: none

  // Returns the row for a tap of a token that is `offset` tokens after the first row of its sequence. It is a row of
  // the step, or a row kept in the state, or null if there was none.
  MEM const float* row_of(u32 row, u32 offset, u32 slot, u32 tap) const {
    const u32 at = offset + tap;
    if (at >= window) return x + (u64)(row + tap - window) * stride;
    return slot == NO_STATE ? nullptr : windows + ((u64)slot * window + at) * channels;
  }

  // Returns a row's input of a channel.
  MEM float input(u32 row, u32 c) const {
    const float* from = x + (u64)row * stride + c;
    return factor ? mul_rn(from[0], from[factor]) : from[0];
  }

  // Stores the last inputs of channels first, first + step .. in the slots that the step names. The slot that the
  // sequence begins with is written last: the other slots are computed from its content.
  MEM void keep(const StatesArgs& a, u32 sequence, u32 start, u32 first, u32 step) const {
    if (first >= channels) return;
    const u32 read = ld_step(a.reads + sequence);
    const u32 first_write = ld_step(a.write_starts + sequence), end = ld_step(a.write_starts + sequence + 1);
    for (u32 turn = 0; turn < 2; turn++) {
      for (u32 write = first_write; write < end; write++) {
        const u32 kept = ld_step(a.writes + 2 * write), slot = ld_step(a.writes + 2 * write + 1);
        if ((slot == read) != (turn == 1)) continue;
        float* to = windows + (u64)slot * window * channels;
        const float* old = read == NO_STATE ? nullptr : windows + (u64)read * window * channels;
        for (u32 c = first; c < channels; c += step) {
          // Rows move towards the start, so that none is overwritten before it is read. Several rows are loaded
          // together.
          constexpr u32 AHEAD = 4;
          for (u32 row = 0; row < window; row += AHEAD) {
            float values[AHEAD];
            #pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
              const u32 from = row + i + kept;
              values[i] = row + i >= window ? 0.f
                          : from >= window  ? input(start + from - window, c)
                          : old             ? old[(u64)from * channels + c]
                                            : 0.f;
            }
            #pragma unroll
            for (u32 i = 0; i < AHEAD; i++)
              if (row + i < window) to[(u64)(row + i) * channels + c] = values[i];
          }
        }
      }
    }
  }
};

// Stores the convolution and SiLU of channel `c` of a row.
DEV void convolve_silu(const StatesArgs& a, const Inputs& inputs, const float* taps, const float* bias, u32 row, u32 c,
                       float* out) {
  const u32 sequence = ld_step(a.sequences + row);
  if (sequence == NO_SEQUENCE || c >= inputs.channels) return;
  const u32 offset = row - ld_step(a.starts + sequence), slot = ld_step(a.reads + sequence);
  float y = bias ? bias[c] : 0.f;
  for (u32 tap = 0; tap <= inputs.window; tap++) {
    const float* input = inputs.row_of(row, offset, slot, tap);
    if (input) y = fma_(taps[(u64)tap * inputs.channels + c], input[c], y);
  }
  out[(u64)row * inputs.channels + c] = silu(y);
}

// ------------------------------------------------------------------------------------------------ matrices
// Tokens in shared memory at a time.
constexpr u32 TOKENS = 8;

// The layout of a layer's matrices: [slots][heads][key_size][value_size].
struct Matrices { float* values; u32 heads, key_size, value_size; };

// Groups of 32 lanes of a block.
constexpr u32 STATE_GROUPS = STATE_WALK_THREADS / 32;

// Some columns of one head's matrix in the registers of a block. A lane has four columns. Eight lanes therefore have a
// whole row of these columns, which is read and written at once. Of the rows, a lane has D / 16 consecutive ones.
template <u32 D> struct Columns {
  static constexpr u32 ROWS = D / 16, COLS = 4;
  u32 head, first, count, column, row;
  float s[ROWS][COLS];

  MEM void start(const Matrices& m) {
    head = (u32)bid_y();
    first = (u32)bid_x() * STATE_COLUMNS;
    count = min_(STATE_COLUMNS, m.value_size - first);
    column = ((u32)tid_x() & 7) * COLS;
    row = ((u32)tid_x() >> 3) * ROWS;
  }

  // Returns the address of this lane's columns in one of its rows, or null if there are none.
  MEM float* place(const Matrices& m, u32 slot, u32 i) const {
    if (row + i >= m.key_size || column >= count) return nullptr;
    return m.values + (((u64)slot * m.heads + head) * m.key_size + row + i) * m.value_size + first + column;
  }

  // True if columns are a multiple of four, so that four are loaded and stored at once.
  static MEM bool in_fours(const Matrices& m) { return m.value_size % 4 == 0; }

  MEM void load(const Matrices& m, u32 slot) {
    #pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
      const float* from = slot == NO_STATE ? nullptr : place(m, slot, i);
      v4 four = {0, 0, 0, 0};
      if (from && in_fours(m)) four = ld16_once(from);
      s[i][0] = bits_f32(four.x);
      s[i][1] = bits_f32(four.y);
      s[i][2] = bits_f32(four.z);
      s[i][3] = bits_f32(four.w);
      if (!from || in_fours(m)) continue;
      #pragma unroll
      for (u32 c = 0; c < COLS; c++) s[i][c] = column + c < count ? from[c] : 0.f;
    }
  }

  MEM void store(const Matrices& m, u32 slot) const {
    #pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
      float* to = place(m, slot, i);
      if (!to) continue;
      if (in_fours(m)) {
        st16_once(to, v4{f32_bits(s[i][0]), f32_bits(s[i][1]), f32_bits(s[i][2]), f32_bits(s[i][3])});
        continue;
      }
      #pragma unroll
      for (u32 c = 0; c < COLS; c++)
        if (column + c < count) to[c] = s[i][c];
    }
  }

  // Returns this lane's rows of a staged row of a token.
  MEM void of_rows(const float* staged, float (&out)[ROWS]) const {
    if constexpr (ROWS == 1) {
      out[0] = staged[row];
      return;
    }
    #pragma unroll
    for (u32 i = 0; i + 1 < ROWS; i += 2) {
      const v2 two = ld8(staged + row + i);
      out[i] = bits_f32(two.x);
      out[i + 1] = bits_f32(two.y);
    }
  }
};

// Sums over the rows of a matrix, which are spread over lanes and groups of lanes. Two buffers alternate between
// tokens, so that a token needs only one barrier.
template <u32 N> struct RowSums {
  alignas(16) float of_groups[2][STATE_GROUPS][N][STATE_COLUMNS];

  // Adds up N numbers for each of this lane's columns, in one order. All threads of the block call it.
  MEM void add_up(float (&x)[N][4], u32 turn, u32 column) {
    #pragma unroll
    for (u32 n = 0; n < N; n++)
      #pragma unroll
      for (u32 c = 0; c < 4; c++) {
        x[n][c] += shfl_xor<8>(x[n][c]);
        x[n][c] += shfl_xor<16>(x[n][c]);
      }
    const u32 thread = (u32)tid_x();
    if ((thread & 31) < 8)
      #pragma unroll
      for (u32 n = 0; n < N; n++)
        *(v4*)&of_groups[turn][thread >> 5][n][column] =
            v4{f32_bits(x[n][0]), f32_bits(x[n][1]), f32_bits(x[n][2]), f32_bits(x[n][3])};
    block_sync();                                      // the sums of all groups are stored
    #pragma unroll
    for (u32 n = 0; n < N; n++) {
      #pragma unroll
      for (u32 c = 0; c < 4; c++) x[n][c] = 0.f;
      #pragma unroll
      for (u32 group = 0; group < STATE_GROUPS; group++) {
        const v4 four = ld16(&of_groups[turn][group][n][column]);
        x[n][0] += bits_f32(four.x);
        x[n][1] += bits_f32(four.y);
        x[n][2] += bits_f32(four.z);
        x[n][3] += bits_f32(four.w);
      }
    }
  }
};

// Returns this thread's number, counted from thread `first` of the block. Waves that begin with different parts of a
// block's work wait for the loads of all parts at once.
DEV u32 thread_from(u32 first) { return ((u32)tid_x() + STATE_WALK_THREADS - first) % STATE_WALK_THREADS; }

// Copies two rows of each of `count` tokens into shared memory. `first` and `second` are those of the first token, of
// `size` columns. The next token's rows are at distance `stride` columns.
template <u32 D> DEV void stage_rows(const float* first, const float* second, u32 stride, u32 count, u32 size,
                                     float (*a)[D], float (*b)[D]) {
  for (u32 i = (u32)tid_x(); i < TOKENS * D / 4; i += STATE_WALK_THREADS) {
    const u32 token = i / (D / 4), c = i % (D / 4) * 4;
    if (token >= count) break;
    const float *of_a = first + (u64)token * stride, *of_b = second + (u64)token * stride;
    Four fours[2] = {};
    if (c < size) {
      fours[0] = load_four(of_a, is_aligned(of_a, 16), c, size);
      fours[1] = load_four(of_b, is_aligned(of_b, 16), c, size);
    }
    *(Four*)&a[token][c] = fours[0];
    *(Four*)&b[token][c] = fours[1];
  }
}

// Copies the block's columns of each token into shared memory, with zeros after them.
DEV void stage_columns(const float* rows, u32 stride, u32 count, u32 size, float (*staged)[STATE_COLUMNS]) {
  for (u32 i = thread_from(96); i < TOKENS * STATE_COLUMNS; i += STATE_WALK_THREADS) {
    const u32 token = i / STATE_COLUMNS, c = i % STATE_COLUMNS;
    if (token >= count) break;
    staged[token][c] = c < size ? rows[(u64)token * stride + c] : 0.f;
  }
}

// Stores the last convolution inputs of a sequence; each of its blocks takes some channels.
DEV void keep_inputs(const StatesArgs& a, const Matrices& m, const Inputs& inputs, u32 sequence, u32 start) {
  const u32 blocks = (m.value_size + STATE_COLUMNS - 1) / STATE_COLUMNS * m.heads;
  const u32 block = (u32)bid_x() * m.heads + (u32)bid_y();
  inputs.keep(a, sequence, start, block * STATE_WALK_THREADS + (u32)tid_x(), blocks * STATE_WALK_THREADS);
}

// A block walks along the tokens of a sequence with some columns of one head's matrix in registers. The rule defines
// the effect of a token: `stage` copies tokens into shared memory, and `step` applies one of them. Sequences of more
// than `longest` tokens belong to other kernels.
template <class Rule> DEV void walk(const StatesArgs& a, const Matrices& m, const Inputs& inputs, Rule& rule,
                                    u32 longest = 0xffffffffu) {
  SHARED typename Rule::Staged staged[2];
  pdl_launch(); pdl_wait();
  const u32 sequence = (u32)bid_z();
  // None of these loads waits for another.
  const u32 start = ld_step(a.starts + sequence), end = ld_step(a.starts + sequence + 1);
  const u32 read = ld_step(a.reads + sequence), last_write = ld_step(a.write_starts + sequence + 1);
  u32 write = ld_step(a.write_starts + sequence);
  loads_first();
  if (start >= end || end - start > longest) return;
  rule.columns.start(m);
  rule.columns.load(m, read);
  // The row after which the next state is stored, and its slot.
  u32 kept = 0, slot = 0;
  const auto find_next = [&] {
    kept = write < last_write ? start + ld_step(a.writes + 2 * write) : 0;
    slot = write < last_write ? ld_step(a.writes + 2 * write + 1) : 0;
  };
  find_next();
  rule.stage(start, min_(TOKENS, end - start), staged[0]);
  // A step of one token waits for little but loads. These run together with those of the matrix.
  keep_inputs(a, m, inputs, sequence, start);
  block_sync();                                        // the first tokens are staged
  for (u32 row = start, turn = 0; row < end; row += TOKENS, turn ^= 1) {
    const u32 next = row + TOKENS;
    if (next < end) rule.stage(next, min_(TOKENS, end - next), staged[turn ^ 1]);
    for (u32 token = 0; token < TOKENS && row + token < end; token++) {
      rule.step(row + token, token, staged[turn]);
      while (kept == row + token + 1) {
        rule.columns.store(m, slot);
        write++;
        find_next();
      }
    }
    block_sync();                                      // these tokens were read, and the next ones are staged
  }
}
