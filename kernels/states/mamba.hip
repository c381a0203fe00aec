// Mamba mixers of the first version: each channel has its own time step, and its state a decay for each row.
#include "states.h"

// Columns of a row of projections.
DEV u32 projected_cols(const MambaArgs& a) { return 2 * a.channels; }
DEV Inputs inputs_of(const MambaArgs& a) {
  return {a.x, a.states.windows, projected_cols(a), a.channels, a.num_taps - 1, 0};
}

// A thread has a channel.
KERNEL(CONVOLUTION_THREADS, mamba_convolve, MambaArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = (u32)bid_y() * CONVOLUTION_THREADS + (u32)tid_x();
  convolve_silu(a.states, inputs_of(a), a.taps, a.taps_bias, row, c, a.convolved);
}

// ------------------------------------------------------------------------------------------------ recurrence
template <u32 D> struct Recurrence {
  struct Staged {
    alignas(16) float b[TOKENS][D];
    alignas(16) float c[TOKENS][D];
    float x[TOKENS][STATE_COLUMNS], time_steps[TOKENS][STATE_COLUMNS];
    RowSums<1> sums;
  };
  const MambaArgs& a;
  Columns<D> columns;
  float rates[Columns<D>::ROWS][4];      // of the decays of this lane's elements

  MEM void load_rates() {
    #pragma unroll
    for (u32 i = 0; i < Columns<D>::ROWS; i++)
      #pragma unroll
      for (u32 j = 0; j < 4; j++) {
        const u32 row = columns.row + i, column = columns.column + j;
        const bool is_there = row < a.state_size && column < columns.count;
        rates[i][j] = is_there ? a.decay[(u64)row * a.channels + columns.first + column] : 0.f;
      }
  }

  // Copies the tokens in rows `row` .. `row` + count into shared memory.
  MEM void stage(u32 row, u32 count, Staged& staged) const {
    const u64 first = (u64)row * a.state_size;
    stage_rows<D>(a.b + first, a.c + first, a.state_size, count, a.state_size, staged.b, staged.c);
    stage_columns(value_of(row), a.channels, count, columns.count, staged.x);
    const float* steps = a.time_steps + (u64)row * a.channels + columns.first;
    for (u32 i = (u32)tid_x(); i < count * STATE_COLUMNS; i += STATE_WALK_THREADS) {
      const u32 token = i / STATE_COLUMNS, c = i % STATE_COLUMNS;
      staged.time_steps[token][c] = c < columns.count ? softplus(steps[(u64)token * a.channels + c]) : 0.f;
    }
  }

  // Returns the block's columns of a row's x, which its outputs replace.
  MEM float* value_of(u32 row) const { return a.convolved + (u64)row * a.channels + columns.first; }

  MEM void step(u32 row, u32 token, Staged& staged) {
    constexpr u32 ROWS = Columns<D>::ROWS;
    float (&s)[ROWS][4] = columns.s;
    float b[ROWS], c[ROWS], time[4], change[4], of_c[1][4] = {};
    columns.of_rows(staged.b[token], b);
    columns.of_rows(staged.c[token], c);
    #pragma unroll
    for (u32 j = 0; j < 4; j++) {
      time[j] = staged.time_steps[token][columns.column + j];
      change[j] = time[j] * staged.x[token][columns.column + j];
    }
    #pragma unroll
    for (u32 i = 0; i < ROWS; i++)
      #pragma unroll
      for (u32 j = 0; j < 4; j++) {
        s[i][j] = fma_(b[i], change[j], exp_accurate(rates[i][j] * time[j]) * s[i][j]);
        of_c[0][j] = fma_(c[i], s[i][j], of_c[0][j]);
      }
    staged.sums.add_up(of_c, token & 1, columns.column);
    if (columns.row != 0) return;
    #pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const u32 column = columns.column + j;
      if (column < columns.count)
        value_of(row)[column] = fma_(a.skip[columns.first + column], staged.x[token][column], of_c[0][j]);
    }
  }
};

template <u32 D> DEV void mamba_walk(const MambaArgs& a) {
  const Matrices matrices = {a.states.matrices, 1, a.state_size, a.channels};
  Recurrence<D> rule{a, {}, {}};
  rule.columns.start(matrices);
  rule.load_rates();                                   // weights: they do not wait for the previous kernel
  walk(a.states, matrices, inputs_of(a), rule);
}

KERNEL(STATE_WALK_THREADS, mamba_walk_d16, MambaArgs) { mamba_walk<16>(a); }
KERNEL(STATE_WALK_THREADS, mamba_walk_d32, MambaArgs) { mamba_walk<32>(a); }

// ------------------------------------------------------------------------------------------------ gate
// A thread has a column, or one of the zeros after the last column.
KERNEL(CONVOLUTION_THREADS, mamba_gate, MambaArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = (u32)bid_y() * CONVOLUTION_THREADS + (u32)tid_x();
  const bool is_row = ld_step(a.states.sequences + row) != NO_SEQUENCE && c < a.channels;
  if (c >= a.channels && a.format_out == FORMAT_F32) return;
  const float y = is_row ? a.convolved[(u64)row * a.channels + c] : 0.f;
  const float z = is_row ? a.x[(u64)row * projected_cols(a) + a.channels + c] : 0.f;
  store_activation(a.out, a.format_out, row, c, a.channels, y * silu(z));
}
