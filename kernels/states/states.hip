// Gated delta nets: each sequence has a state that is carried from token to token.
#include "delta_net.h"

// Sums over a group of 32 lanes, in one order.
DEV float group_sum(float v) { return sum_lanes<32>(v); }

// ------------------------------------------------------------------------------------------------ convolution
// Elements of a head that a lane of a group holds.
constexpr u32 HELD = 4;

// A group of 32 lanes takes a head of q, k or v.
KERNEL(32 * DELTA_NET_HEADS, delta_net_convolve, DeltaNetArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), sequence = ld_step(a.states.sequences + row);
  if (sequence == NO_SEQUENCE) return;
  const u32 offset = row - ld_step(a.states.starts + sequence), slot = ld_step(a.states.reads + sequence);
  const u32 head = (u32)bid_y() * DELTA_NET_HEADS + ((u32)tid_x() >> 5), lane = (u32)tid_x() & 31;
  const u32 keys = 2 * a.key_heads;
  const bool is_value = head >= keys;
  const u32 first = is_value ? 2 * key_cols(a) + (head - keys) * a.value_size : head * a.key_size;
  // Missing heads have no elements; their lanes take part in the sum.
  const u32 size = head >= keys + a.value_heads ? 0 : is_value ? a.value_size : a.key_size;
  const Inputs inputs = inputs_of(a);
  float y[HELD] = {};
  for (u32 tap = 0; tap < a.num_taps; tap++) {
    const float* input = inputs.row_of(row, offset, slot, tap);
    if (!input) continue;
    const float* weights = a.taps + (u64)tap * channels(a) + first;
    #pragma unroll
    for (u32 i = 0; i < HELD; i++) {
      const u32 c = lane + 32 * i;
      if (c < size) y[i] = fma_(weights[c], input[first + c], y[i]);
    }
  }
  float squares = 0.f;
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) {
    y[i] = silu(y[i]);
    squares = fma_(y[i], y[i], squares);
  }
  float scale = rsqrt_accurate(group_sum(squares) + a.eps);
  if (head < a.key_heads) scale *= rsqrt_accurate((float)a.key_size);
  float* out = a.convolved + (u64)row * channels(a) + first;
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) {
    const u32 c = lane + 32 * i;
    if (c < size) out[c] = is_value ? y[i] : y[i] * scale;
  }
}

// ------------------------------------------------------------------------------------------------ delta rule
template <u32 D> struct DeltaRule {
  struct Staged {
    alignas(16) float q[TOKENS][D];
    alignas(16) float k[TOKENS][D];
    float v[TOKENS][STATE_COLUMNS];
    float beta[TOKENS], decay[TOKENS];
    float k_dot_q[2][STATE_GROUPS];
    RowSums<2> sums;
  };
  const DeltaNetArgs& a;
  u32 key_head;
  Columns<D> columns;

  // Copies the tokens in rows `row` .. `row` + count into shared memory.
  MEM void stage(u32 row, u32 count, Staged& staged) const {
    const float* q = a.convolved + (u64)row * channels(a) + key_head * a.key_size;
    stage_rows<D>(q, q + key_cols(a), channels(a), count, a.key_size, staged.q, staged.k);
    stage_columns(value_of(row), channels(a), count, columns.count, staged.v);
    const u32 thread = thread_from(64);
    if (thread < count) {
      const HeadGates gates = head_gates(a, row + thread, columns.head);
      staged.beta[thread] = gates.beta;
      staged.decay[thread] = exp_accurate(gates.log_decay);
    }
  }

  // Returns the block's columns of a row's v, which its outputs replace.
  MEM float* value_of(u32 row) const {
    return a.convolved + (u64)row * channels(a) + 2 * key_cols(a) + columns.head * a.value_size + columns.first;
  }

  MEM void step(u32 row, u32 token, Staged& staged) {
    constexpr u32 ROWS = Columns<D>::ROWS;
    float (&s)[ROWS][4] = columns.s;
    float k[ROWS], q[ROWS], sums[2][4] = {}, k_dot_q = 0.f;         // of k and q with the columns, and with each other
    columns.of_rows(staged.k[token], k);
    columns.of_rows(staged.q[token], q);
    #pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
      k_dot_q = fma_(k[i], q[i], k_dot_q);
      #pragma unroll
      for (u32 c = 0; c < 4; c++) {
        sums[0][c] = fma_(k[i], s[i][c], sums[0][c]);
        sums[1][c] = fma_(q[i], s[i][c], sums[1][c]);
      }
    }
    k_dot_q += shfl_xor<8>(k_dot_q);
    k_dot_q += shfl_xor<16>(k_dot_q);
    if (((u32)tid_x() & 31) == 0) staged.k_dot_q[token & 1][(u32)tid_x() >> 5] = k_dot_q;
    staged.sums.add_up(sums, token & 1, columns.column);
    k_dot_q = 0.f;
    #pragma unroll
    for (u32 group = 0; group < STATE_GROUPS; group++) k_dot_q += staged.k_dot_q[token & 1][group];
    const float beta = staged.beta[token], decay = staged.decay[token];
    float change[4];
    #pragma unroll
    for (u32 c = 0; c < 4; c++) {
      const u32 column = columns.column + c;
      change[c] = beta * fma_(-decay, sums[0][c], staged.v[token][column]);
      if (columns.row == 0 && column < columns.count)
        value_of(row)[column] = fma_(k_dot_q, change[c], decay * sums[1][c]);
    }
    #pragma unroll
    for (u32 i = 0; i < ROWS; i++)
      #pragma unroll
      for (u32 c = 0; c < 4; c++) s[i][c] = fma_(k[i], change[c], decay * s[i][c]);
  }
};

template <u32 D> DEV void delta_net_walk(const DeltaNetArgs& a) {
  DeltaRule<D> rule{a, key_head_of(a, (u32)bid_y()), {}};
  walk(a.states, matrices_of(a), inputs_of(a), rule, a.chunked_from - 1);
}

KERNEL(STATE_WALK_THREADS, delta_net_walk_d32, DeltaNetArgs) { delta_net_walk<32>(a); }
// Blocks wait for memory, so a large number of them run at once.
KERNEL_AT_ONCE(STATE_WALK_THREADS, 5, delta_net_walk_d128, DeltaNetArgs) { delta_net_walk<128>(a); }

// ------------------------------------------------------------------------------------------------ norm and gate
// A group of 32 lanes takes a head.
KERNEL(32 * DELTA_NET_HEADS, delta_net_gate, DeltaNetArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), head = (u32)bid_y() * DELTA_NET_HEADS + ((u32)tid_x() >> 5), lane = (u32)tid_x() & 31;
  const bool is_row = ld_step(a.states.sequences + row) != NO_SEQUENCE;
  const u32 size = head < a.value_heads ? a.value_size : 0, first = head * a.value_size;
  const float* x = a.convolved + (u64)row * channels(a) + 2 * key_cols(a) + first;
  const float* z = a.x + (u64)row * projected_cols(a) + channels(a) + first;
  float y[HELD] = {}, squares = 0.f;
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) {
    const u32 c = lane + 32 * i;
    if (c < size && is_row) y[i] = x[c];
    squares = fma_(y[i], y[i], squares);
  }
  const float scale = rsqrt_accurate(group_sum(squares) / (float)a.value_size + a.eps);
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) {
    const u32 c = lane + 32 * i;
    if (c >= size) continue;
    const float value = is_row ? y[i] * scale * a.norm[c] * silu(z[c]) : 0.f;
    store_activation(a.out, a.format_out, row, first + c, value_cols(a), value);
  }
  if (a.format_out == FORMAT_F32 || head + 1 != a.value_heads) return;
  const u32 padded = (value_cols(a) + 255) & ~255u;
  for (u32 c = value_cols(a) + lane; c < padded; c += 32)
    store_activation(a.out, a.format_out, row, c, value_cols(a), 0.f);
}
