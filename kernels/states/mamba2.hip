// Mamba-2 mixers: each sequence has a state that is carried from token to token.
#include "mamba2.h"
#include "block_sum.h"

// A thread has a channel.
KERNEL(CONVOLUTION_THREADS, mamba2_convolve, Mamba2Args) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = (u32)bid_y() * CONVOLUTION_THREADS + (u32)tid_x();
  convolve_silu(a.states, inputs_of(a), a.taps, a.taps_bias, row, c, a.convolved);
}

// ------------------------------------------------------------------------------------------------ recurrence
template <u32 D> struct Recurrence {
  struct Staged {
    alignas(16) float b[TOKENS][D];
    alignas(16) float c[TOKENS][D];
    float x[TOKENS][STATE_COLUMNS];
    float time_step[TOKENS], decay[TOKENS];
    RowSums<1> sums;
  };
  const Mamba2Args& a;
  u32 group;
  Columns<D> columns;

  // Copies the tokens in rows `row` .. `row` + count into shared memory.
  MEM void stage(u32 row, u32 count, Staged& staged) const {
    const float* b = a.convolved + (u64)row * channels(a) + inner_cols(a) + group * a.state_size;
    stage_rows<D>(b, b + group_cols(a), channels(a), count, a.state_size, staged.b, staged.c);
    stage_columns(value_of(row), channels(a), count, columns.count, staged.x);
    const u32 thread = thread_from(64);
    if (thread < count) {
      const HeadStep step = head_step(a, row + thread, columns.head);
      staged.time_step[thread] = step.time_step;
      staged.decay[thread] = exp_accurate(step.log_decay);
    }
  }

  // Returns the block's columns of a row's x, which its outputs replace.
  MEM float* value_of(u32 row) const {
    return a.convolved + (u64)row * channels(a) + columns.head * a.head_size + columns.first;
  }

  MEM void step(u32 row, u32 token, Staged& staged) {
    constexpr u32 ROWS = Columns<D>::ROWS;
    float (&s)[ROWS][4] = columns.s;
    const float time_step = staged.time_step[token], decay = staged.decay[token];
    float b[ROWS], c[ROWS], change[4], of_c[1][4] = {};
    columns.of_rows(staged.b[token], b);
    columns.of_rows(staged.c[token], c);
    #pragma unroll
    for (u32 j = 0; j < 4; j++) change[j] = time_step * staged.x[token][columns.column + j];
    #pragma unroll
    for (u32 i = 0; i < ROWS; i++)
      #pragma unroll
      for (u32 j = 0; j < 4; j++) {
        s[i][j] = fma_(b[i], change[j], decay * s[i][j]);
        of_c[0][j] = fma_(c[i], s[i][j], of_c[0][j]);
      }
    staged.sums.add_up(of_c, token & 1, columns.column);
    if (columns.row != 0) return;
    #pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const u32 column = columns.column + j;
      if (column < columns.count)
        value_of(row)[column] = fma_(a.skip[columns.head], staged.x[token][column], of_c[0][j]);
    }
  }
};

template <u32 D> DEV void mamba2_walk(const Mamba2Args& a) {
  Recurrence<D> rule{a, group_of(a, (u32)bid_y()), {}};
  walk(a.states, matrices_of(a), inputs_of(a), rule, a.chunked_from - 1);
}

KERNEL(STATE_WALK_THREADS, mamba2_walk_d32, Mamba2Args) { mamba2_walk<32>(a); }
// Blocks wait for memory, so a large number of them run at once.
KERNEL_AT_ONCE(STATE_WALK_THREADS, 5, mamba2_walk_d128, Mamba2Args) { mamba2_walk<128>(a); }
KERNEL(STATE_WALK_THREADS, mamba2_walk_d256, Mamba2Args) { mamba2_walk<256>(a); }

// ------------------------------------------------------------------------------------------------ gate and norm
// A block has a group.
KERNEL(MAMBA2_GATE_THREADS, mamba2_gate, Mamba2Args) {
  SHARED float waves[MAMBA2_GATE_THREADS / WARP];
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), group = (u32)bid_y(), thread = (u32)tid_x();
  const u32 size = inner_cols(a) / a.groups, first = group * size;
  const bool is_row = ld_step(a.states.sequences + row) != NO_SEQUENCE;
  float* y = a.convolved + (u64)row * channels(a) + first;
  const float* z = a.x + (u64)row * projected_cols(a) + first;
  float squares = 0.f;
  for (u32 c = thread; c < size && is_row; c += MAMBA2_GATE_THREADS) {
    const float gated = y[c] * silu(z[c]);
    y[c] = gated;
    squares = fma_(gated, gated, squares);
  }
  const float scale = rsqrt_accurate(block_sum<MAMBA2_GATE_THREADS>(squares, waves) / (float)size + a.eps);
  for (u32 c = thread; c < size; c += MAMBA2_GATE_THREADS) {
    const float value = !is_row ? 0.f : a.norm ? y[c] * scale * a.norm[first + c] : y[c];
    store_activation(a.out, a.format_out, row, first + c, inner_cols(a), value);
  }
  if (a.format_out == FORMAT_F32 || group + 1 != a.groups) return;
  const u32 padded = (inner_cols(a) + 255) & ~255u;
  for (u32 c = inner_cols(a) + thread; c < padded; c += MAMBA2_GATE_THREADS)
    store_activation(a.out, a.format_out, row, c, inner_cols(a), 0.f);
}
