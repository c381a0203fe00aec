// Gated delta nets: a state of each sequence, carried from token to token.
#include "activation.h"
#include "elementary.h"

DEV u32 min_(u32 x, u32 y) { return x < y ? x : y; }

// Sums over a group of 32 lanes, in one order.
DEV float group_sum(float v) {
  for (int m = 16; m; m >>= 1) v += shfl_xor(v, m);
  return v;
}

DEV u32 key_cols(const DeltaNetArgs& a) { return a.key_heads * a.key_size; }
DEV u32 value_cols(const DeltaNetArgs& a) { return a.value_heads * a.value_size; }
DEV u32 channels(const DeltaNetArgs& a) { return 2 * key_cols(a) + value_cols(a); }
// Columns of a row of projections.
DEV u32 projected_cols(const DeltaNetArgs& a) { return channels(a) + value_cols(a) + 2 * a.value_heads; }

// ------------------------------------------------------------------------------------------------ convolution
// Elements of a head that a lane of a group holds.
constexpr u32 HELD = 4;

// The input that a tap of the convolution takes, for a token `offset` tokens behind the first row of its sequence: a
// row of the step, or one that the state has kept; null where there was none.
DEV const float* input_row(const DeltaNetArgs& a, u32 row, u32 offset, u32 slot, u32 tap) {
  const u32 window = a.num_taps - 1, at = offset + tap;
  if (at >= window) return a.x + (u64)(row + tap - window) * projected_cols(a);
  return slot == NO_STATE ? nullptr : a.windows + ((u64)slot * window + at) * channels(a);
}

// A group of 32 lanes takes a head of q, k or v.
KERNEL(32 * DELTA_NET_HEADS, delta_net_convolve, DeltaNetArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), sequence = ld_step(a.sequences + row);
  if (sequence == NO_SEQUENCE) return;
  const u32 offset = row - ld_step(a.starts + sequence), slot = ld_step(a.reads + sequence);
  const u32 head = (u32)bid_y() * DELTA_NET_HEADS + ((u32)tid_x() >> 5), lane = (u32)tid_x() & 31;
  const u32 keys = 2 * a.key_heads;
  const bool is_value = head >= keys;
  const u32 first = is_value ? 2 * key_cols(a) + (head - keys) * a.value_size : head * a.key_size;
  // Heads that are not there have no elements; their lanes take part in the sum.
  const u32 size = head >= keys + a.value_heads ? 0 : is_value ? a.value_size : a.key_size;
  float y[HELD] = {};
  for (u32 tap = 0; tap < a.num_taps; tap++) {
    const float* input = input_row(a, row, offset, slot, tap);
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
// Tokens that are in shared memory at a time.
constexpr u32 TOKENS = 8;

template <u32 D> struct Staged {
  alignas(16) float q[TOKENS][D];
  alignas(16) float k[TOKENS][D];
  float v[TOKENS][DELTA_NET_COLUMNS];
  float beta[TOKENS], decay[TOKENS];
};

// A block walks along the tokens of a sequence with some columns of the matrix of one head, in registers. Eight lanes
// share two columns; each has D / 8 rows of them, in fours.
template <u32 D> struct Walk {
  static constexpr u32 ROWS = D / 8;
  u32 head, key_head, first_column, columns, lane, column;
  float s[ROWS][2];

  MEM void start(const DeltaNetArgs& a) {
    head = (u32)bid_y();
    key_head = a.is_tiled ? head % a.key_heads : head / (a.value_heads / a.key_heads);
    first_column = (u32)bid_x() * DELTA_NET_COLUMNS;
    columns = min_(DELTA_NET_COLUMNS, a.value_size - first_column);
    lane = (u32)tid_x() & 7;
    column = ((u32)tid_x() >> 3) * 2;
  }

  // The matrix' row of one of this lane's elements.
  MEM u32 key_row(u32 i) const { return ((i / 4) * 8 + lane) * 4 + i % 4; }

  // This lane's columns of the matrix' row of an element, or null where there are none.
  MEM float* place(const DeltaNetArgs& a, u32 slot, u32 i) const {
    if (key_row(i) >= a.key_size || column >= columns) return nullptr;
    const u64 row = ((u64)slot * a.value_heads + head) * a.key_size + key_row(i);
    return a.matrices + row * a.value_size + first_column + column;
  }

  // Whether the second one of two columns is always there, and both are loaded and stored at once.
  static MEM bool in_pairs(const DeltaNetArgs& a) { return a.value_size % 2 == 0; }

  MEM void load(const DeltaNetArgs& a, u32 slot) {
    #pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
      const float* from = slot == NO_STATE ? nullptr : place(a, slot, i);
      v2 two = {0, 0};
      if (from && in_pairs(a)) two = ld8(from);
      else if (from) two = {f32_bits(from[0]), column + 1 < columns ? f32_bits(from[1]) : 0};
      s[i][0] = bits_f32(two.x);
      s[i][1] = bits_f32(two.y);
    }
  }

  MEM void store(const DeltaNetArgs& a, u32 slot) const {
    #pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
      float* to = place(a, slot, i);
      if (!to) continue;
      if (in_pairs(a)) {
        *(v2*)to = v2{f32_bits(s[i][0]), f32_bits(s[i][1])};
      } else {
        to[0] = s[i][0];
        if (column + 1 < columns) to[1] = s[i][1];
      }
    }
  }

  // Brings the tokens in rows `row` .. `row` + count into shared memory.
  MEM void stage(const DeltaNetArgs& a, u32 row, u32 count, Staged<D>& staged) const {
    const u32 thread = (u32)tid_x();
    for (u32 i = thread; i < TOKENS * D / 4; i += DELTA_NET_WALK_THREADS) {
      const u32 token = i / (D / 4), c = i % (D / 4) * 4;
      if (token >= count) break;
      const float* q = a.convolved + (u64)(row + token) * channels(a) + key_head * a.key_size;
      const float* k = q + key_cols(a);
      Four of_q = {}, of_k = {};
      if (c < a.key_size) {
        of_q = load_four(q, is_aligned(q, 16), c, a.key_size);
        of_k = load_four(k, is_aligned(k, 16), c, a.key_size);
      }
      *(Four*)&staged.q[token][c] = of_q;
      *(Four*)&staged.k[token][c] = of_k;
    }
    for (u32 i = thread; i < TOKENS * DELTA_NET_COLUMNS; i += DELTA_NET_WALK_THREADS) {
      const u32 token = i / DELTA_NET_COLUMNS, c = i % DELTA_NET_COLUMNS;
      if (token >= count) break;
      staged.v[token][c] = c < columns ? value_of(a, row + token)[c] : 0.f;
    }
    if (thread < count) {
      const u32 z_end = channels(a) + value_cols(a);
      const float* gates = a.x + (u64)(row + thread) * projected_cols(a) + z_end +
                           head / a.gate_run * 2 * a.gate_run + head % a.gate_run;
      const float x = gates[a.gate_run] + a.decay_bias[head];
      // Beyond 20, e^-x is less than a unit in the last place of the softplus.
      const float softplus = x > 20.f ? x : log_accurate(1.f + exp_accurate(x));
      staged.beta[thread] = sigmoid(gates[0]);
      staged.decay[thread] = exp_accurate(a.decay[head] * softplus);
    }
  }

  // The block's columns of a row's v, which its outputs take the place of.
  MEM float* value_of(const DeltaNetArgs& a, u32 row) const {
    return a.convolved + (u64)row * channels(a) + 2 * key_cols(a) + head * a.value_size + first_column;
  }

  MEM void step(const DeltaNetArgs& a, u32 row, u32 token, const Staged<D>& staged) {
    float k[ROWS], of_k[2] = {}, of_q[2] = {}, k_dot_q = 0.f;
    #pragma unroll
    for (u32 four = 0; four < ROWS / 4; four++) {
      const u32 at = (four * 8 + lane) * 4;
      const v4 ks = ld16(&staged.k[token][at]), qs = ld16(&staged.q[token][at]);
      const float q[4] = {bits_f32(qs.x), bits_f32(qs.y), bits_f32(qs.z), bits_f32(qs.w)};
      k[4 * four] = bits_f32(ks.x);
      k[4 * four + 1] = bits_f32(ks.y);
      k[4 * four + 2] = bits_f32(ks.z);
      k[4 * four + 3] = bits_f32(ks.w);
      #pragma unroll
      for (u32 i = 0; i < 4; i++) {
        const u32 j = 4 * four + i;
        k_dot_q = fma_(k[j], q[i], k_dot_q);
        #pragma unroll
        for (u32 c = 0; c < 2; c++) {
          of_k[c] = fma_(k[j], s[j][c], of_k[c]);
          of_q[c] = fma_(q[i], s[j][c], of_q[c]);
        }
      }
    }
    #pragma unroll
    for (int m = 1; m < 8; m <<= 1) {
      k_dot_q += shfl_xor(k_dot_q, m);
      #pragma unroll
      for (u32 c = 0; c < 2; c++) {
        of_k[c] += shfl_xor(of_k[c], m);
        of_q[c] += shfl_xor(of_q[c], m);
      }
    }
    const float beta = staged.beta[token], decay = staged.decay[token];
    float change[2];
    #pragma unroll
    for (u32 c = 0; c < 2; c++) {
      change[c] = beta * fma_(-decay, of_k[c], staged.v[token][column + c]);
      if (lane == 0 && column + c < columns) value_of(a, row)[column + c] = fma_(k_dot_q, change[c], decay * of_q[c]);
    }
    #pragma unroll
    for (u32 j = 0; j < ROWS; j++)
      #pragma unroll
      for (u32 c = 0; c < 2; c++) s[j][c] = fma_(k[j], change[c], decay * s[j][c]);
  }
};

// Keeps the last inputs of the convolution where the step asks for it; each block of the sequence takes some channels.
// The slot that the sequence begins with comes last: the others are made of what it holds.
DEV void keep_windows(const DeltaNetArgs& a, u32 sequence, u32 start) {
  const u32 blocks = (a.value_size + DELTA_NET_COLUMNS - 1) / DELTA_NET_COLUMNS * a.value_heads;
  const u32 block = (u32)bid_x() * a.value_heads + (u32)bid_y(), window = a.num_taps - 1;
  const u32 read = ld_step(a.reads + sequence);
  const u32 first = ld_step(a.write_starts + sequence), end = ld_step(a.write_starts + sequence + 1);
  for (u32 turn = 0; turn < 2; turn++) {
    for (u32 write = first; write < end; write++) {
      const u32 kept = ld_step(a.writes + 2 * write), slot = ld_step(a.writes + 2 * write + 1);
      if ((slot == read) != (turn == 1)) continue;
      float* to = a.windows + (u64)slot * window * channels(a);
      const float* old = read == NO_STATE ? nullptr : a.windows + (u64)read * window * channels(a);
      for (u32 c = block * DELTA_NET_WALK_THREADS + (u32)tid_x(); c < channels(a); c += blocks * DELTA_NET_WALK_THREADS) {
        // Rows move towards the start, so that none is overwritten before it was read.
        for (u32 row = 0; row < window; row++) {
          const u32 from = row + kept;
          to[(u64)row * channels(a) + c] = from >= window ? a.x[(u64)(start + from - window) * projected_cols(a) + c]
                                           : old          ? old[(u64)from * channels(a) + c]
                                                          : 0.f;
        }
      }
    }
  }
}

template <u32 D> DEV void delta_net_walk(const DeltaNetArgs& a) {
  SHARED Staged<D> staged[2];
  pdl_launch(); pdl_wait();
  const u32 sequence = (u32)bid_z(), start = ld_step(a.starts + sequence), end = ld_step(a.starts + sequence + 1);
  if (start >= end) return;
  Walk<D> walk;
  walk.start(a);
  walk.load(a, ld_step(a.reads + sequence));
  u32 write = ld_step(a.write_starts + sequence);
  const u32 last_write = ld_step(a.write_starts + sequence + 1);
  // The row behind which the next state is kept.
  u32 kept = write < last_write ? start + ld_step(a.writes + 2 * write) : 0;
  walk.stage(a, start, min_(TOKENS, end - start), staged[0]);
  block_sync();                                        // the first tokens are there
  for (u32 row = start, turn = 0; row < end; row += TOKENS, turn ^= 1) {
    const u32 next = row + TOKENS;
    if (next < end) walk.stage(a, next, min_(TOKENS, end - next), staged[turn ^ 1]);
    for (u32 token = 0; token < TOKENS && row + token < end; token++) {
      walk.step(a, row + token, token, staged[turn]);
      while (kept == row + token + 1) {
        walk.store(a, ld_step(a.writes + 2 * write + 1));
        write++;
        kept = write < last_write ? start + ld_step(a.writes + 2 * write) : 0;
      }
    }
    block_sync();                                      // these tokens were read, and the next ones are there
  }
  keep_windows(a, sequence, start);
}

KERNEL(DELTA_NET_WALK_THREADS, delta_net_walk_d32, DeltaNetArgs) { delta_net_walk<32>(a); }
KERNEL(DELTA_NET_WALK_THREADS, delta_net_walk_d128, DeltaNetArgs) { delta_net_walk<128>(a); }

// ------------------------------------------------------------------------------------------------ norm and gate
// A group of 32 lanes takes a head.
KERNEL(32 * DELTA_NET_HEADS, delta_net_gate, DeltaNetArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), head = (u32)bid_y() * DELTA_NET_HEADS + ((u32)tid_x() >> 5), lane = (u32)tid_x() & 31;
  const bool is_row = ld_step(a.sequences + row) != NO_SEQUENCE;
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
