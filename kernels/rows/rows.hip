// Kernels that process activations row by row.
#include "gate.h"
#include "norm_rows.h"

constexpr u32 THREADS = 256;

KERNEL(NORM_THREADS, norm_rows, NormRowsArgs) { norm_row<PLAIN>(a); }
KERNEL(NORM_THREADS, norm_rows_other, NormRowsArgs) { norm_row<OTHER>(a); }
#if GPU_WGMMA
KERNEL_OF_CLUSTER(NORM_PARTS_BLOCK_THREADS, NORM_PARTS_BLOCKS, norm_rows_of_parts, NormRowsArgs) { norm_row<PARTS>(a); }
#else
KERNEL(NORM_PARTS_THREADS, norm_rows_of_parts, NormRowsArgs) { norm_row<PARTS>(a); }
#endif

// Four columns, for rows that are not a multiple of eight.
DEV void gate_four(const GatedArgs& a, u32 row, u32 c) {
  if (c >= stored_cols(a.format_out, a.cols)) return;
  Four y{};
  if (c < a.cols) {
    const u64 at = (u64)row * 2 * a.cols;
    Four gate, up;
    if (a.format_in == FORMAT_F32) {
      gate = load_four((const float*)a.gate_up + at, c, a.cols);
      up = load_four((const float*)a.gate_up + at + a.cols, c, a.cols);
    } else {
      gate = load_four((const u16*)a.gate_up + at, c, a.cols, is_bf16(a.format_in));
      up = load_four((const u16*)a.gate_up + at + a.cols, c, a.cols, is_bf16(a.format_in));
      for (u32 i = 0; i < 4 && a.format_in == FORMAT_F16; i++) {
        gate.v[i] = clamp_half(gate.v[i]);
        up.v[i] = clamp_half(up.v[i]);
      }
    }
    for (u32 i = 0; i < 4; i++) y.v[i] = gated(a.activation, gate.v[i], up.v[i]);
  }
  store_activations(a.out, a.format_out, row, c, a.cols, y);
}

// Grid: (rows, columns to store / GATED_COLS rounded up).
KERNEL(256, gated_activation, GatedArgs) {
  static_assert(GATED_COLS == 8 * THREADS, "eight columns a thread");
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = 8 * ((u32)bid_y() * THREADS + (u32)tid_x());
  if (a.cols % 8) {
    #pragma unroll 1
    for (u32 i = 0; i < 8; i += 4) gate_four(a, row, c + i);
    return;
  }
  if (c >= stored_cols(a.format_out, a.cols)) return;
  float y[8] = {};
  if (c < a.cols) {
    if (a.format_in == FORMAT_F32) gate_eight<EightF32>(a, row, c, y);
    else if (is_bf16(a.format_in)) gate_eight<EightHalves<true>>(a, row, c, y);
    else gate_eight<EightHalves<false>>(a, row, c, y);
  }
  store_eight(a.out, a.format_out, row, c, a.cols, y);
}

// An activation without a gate.
DEV float activated(const ActivationArgs& a, float x) {
  if (a.activation == ACTIVATION_XIELU) {
    if (x > 0.f) return fma_(a.positive * x, x, a.slope * x);
    return fma_(a.negative, exp_accurate(x < a.eps ? x : a.eps) - 1.f - x, a.slope * x);
  }
  if (a.activation == ACTIVATION_GELU_ERF) return gelu_erf(x);
  if (a.activation == ACTIVATION_RELU) return x < 0.f ? 0.f : x;    // a NaN stays NaN
  return a.activation == ACTIVATION_SILU ? silu(x) : a.activation == ACTIVATION_GELU ? gelu(x) : squared_relu(x);
}

// Grid: (rows, columns to store / ACTIVATION_COLS rounded up).
KERNEL(256, activation, ActivationArgs) {
  static_assert(ACTIVATION_COLS == 4 * THREADS, "four columns a thread");
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = 4 * ((u32)bid_y() * THREADS + (u32)tid_x());
  if (c >= stored_cols(a.format_out, a.cols)) return;
  Four y = load_four(a.x + (u64)row * a.cols, c, a.cols);
  for (u32 i = 0; i < 4; i++) y.v[i] = activated(a, y.v[i]);
  store_activations(a.out, a.format_out, row, c, a.cols, y);
}

// Grid: (rows, columns to store / ACTIVATION_COLS rounded up).
KERNEL(256, gate_columns, GateColumnsArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = 4 * ((u32)bid_y() * THREADS + (u32)tid_x());
  if (c >= stored_cols(a.format_out, a.cols)) return;
  Four y = load_four(a.gate + (u64)row * a.cols, c, a.cols);
  const Four x = load_four(a.x + (u64)row * a.x_stride, c, a.cols);
  for (u32 i = 0; i < 4; i++) y.v[i] = gated(a.activation, y.v[i], x.v[i]);
  store_activations(a.out, a.format_out, row, c, a.cols, y);
}

// Grid: (rows, columns / ADD_ROWS_COLS rounded up).
KERNEL(256, add_rows, AddRowsArgs) {
  static_assert(ADD_ROWS_COLS == 4 * THREADS, "four columns a thread");
  pdl_launch(); pdl_wait();
  SHARED float waves[THREADS / WARP];
  const u32 row = (u32)bid_x(), c = 4 * ((u32)bid_y() * THREADS + (u32)tid_x());
  u32 from = a.positions ? ld_step(a.positions + row) : 0;
  if (a.token_ids) {
    float found = 0.f;
    // Padding rows of a step have any position.
    for (u32 i = (from < row ? row - from : 0) + (u32)tid_x(); i < row; i += THREADS)
      if (ld_step(a.token_ids + i) == a.separator) found = 1.f;
    from = block_sum<THREADS>(found, waves) > 0.f ? 1 : 0;
  }
  if (c >= a.cols) return;
  const Four x = load_four(a.table + (u64)from * a.cols, c, a.cols);
  Four y = load_four(a.out + (u64)row * a.cols, c, a.cols);
  for (u32 i = 0; i < 4; i++) y.v[i] += x.v[i];
  store_activations(a.out, FORMAT_F32, row, c, a.cols, y);
}

// Grid: (rows, columns / SCALE_COLS rounded up).
KERNEL(256, scale_rows, ScaleRowsArgs) {
  static_assert(SCALE_COLS == 4 * THREADS, "four columns a thread");
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = 4 * ((u32)bid_y() * THREADS + (u32)tid_x());
  if (c >= a.cols) return;
  Four x = load_activations(a.x, a.format, row, c, a.cols);
  for (u32 i = 0; i < 4; i++) {
    if (c + i < a.first || c + i >= a.end) continue;
    x.v[i] *= a.scale;
    if (a.softcap != 0.f) x.v[i] = soft_cap(x.v[i], a.softcap);
    // Comparisons, so that NaN stays NaN.
    x.v[i] = x.v[i] > a.most ? a.most : x.v[i] < a.least ? a.least : x.v[i];
  }
  store_activations(a.x, a.format, row, c, a.cols, x);
}

// Grid: rows. The columns to multiply load while the gate is summed up.
KERNEL(256, gate_rows, GateRowsArgs) {
  constexpr u32 AHEAD = 2;
  SHARED float of_products[THREADS / WARP], of_squares[THREADS / WARP];
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), first = 4 * (u32)tid_x();
  Four ahead[AHEAD];
  #pragma unroll
  for (u32 i = 0; i < AHEAD; i++) {
    const u32 c = first + i * 4 * THREADS;
    if (c < a.cols) ahead[i] = load_activations(a.out, a.format_out, row, c, a.cols);
  }
  float product = 0.f, squares = 0.f;
  for (u32 c = first; c < a.hidden; c += 4 * THREADS) {
    const Four x = load_activations(a.x, a.format_in, row, c, a.hidden);
    Four weight = load_four(a.weight, c, a.hidden);
    if (a.norm) {
      const Four norm = load_four(a.norm, c, a.hidden);
      for (u32 i = 0; i < 4; i++) weight.v[i] *= norm.v[i];
    }
    for (u32 i = 0; i < 4; i++) {
      product = fma_(weight.v[i], x.v[i], product);
      squares = fma_(x.v[i], x.v[i], squares);
    }
  }
  product = block_sum<THREADS>(product, of_products);
  if (a.norm) product *= rsqrt_accurate(block_sum<THREADS>(squares, of_squares) / (float)a.hidden + a.eps);
  const float gate = sigmoid(product);
  const auto store = [&](u32 c, Four y) {
    for (u32 i = 0; i < 4; i++) y.v[i] *= gate;
    store_activations(a.out, a.format_out, row, c, a.cols, y);
  };
  #pragma unroll
  for (u32 i = 0; i < AHEAD; i++)
    if (first + i * 4 * THREADS < a.cols) store(first + i * 4 * THREADS, ahead[i]);
  for (u32 c = first + AHEAD * 4 * THREADS; c < a.cols; c += 4 * THREADS)
    store(c, load_activations(a.out, a.format_out, row, c, a.cols));
}

// Grid: (rows, columns / GATE_HEADS_COLS rounded up).
KERNEL(256, gate_heads, GateHeadsArgs) {
  static_assert(GATE_HEADS_COLS == 4 * THREADS, "four columns a thread");
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = 4 * ((u32)bid_y() * THREADS + (u32)tid_x()), cols = a.heads * a.head_cols;
  if (c >= cols) return;
  Four y = load_activations(a.out, a.format, row, c, cols);
  const float* gates = a.gate + (u64)row * a.heads;
  for (u32 i = 0; i < 4 && c + i < cols; i++) {
    const float gate = gates[(c + i) / a.head_cols];
    y.v[i] *= a.function == GATE_SIGMOID ? sigmoid(gate) : softplus(gate);
  }
  store_activations(a.out, a.format, row, c, cols, y);
}

// The square root; 0 for numbers that are not normal.
DEV float root(float x) { return x < 0x1p-126f ? 0.f : x * rsqrt_accurate(x); }

// Grid: rows.
KERNEL(256, sparsify, SparsifyArgs) {
  pdl_launch(); pdl_wait();
  SHARED float of_values[THREADS / WARP], of_squares[THREADS / WARP];
  const u32 first = 4 * (u32)tid_x(), row = (u32)bid_x();
  float* gates = a.x + (u64)row * 2 * a.cols;
  float sum = 0.f, squares = 0.f;
  for (u32 c = first; c < a.cols; c += 4 * THREADS) {
    const Four x = load_four(gates, c, a.cols);
    for (u32 i = 0; i < 4; i++) sum += x.v[i];
  }
  const float mean = block_sum<THREADS>(sum, of_values) / (float)a.cols;
  for (u32 c = first; c < a.cols; c += 4 * THREADS) {
    const Four x = load_four(gates, c, a.cols);
    for (u32 i = 0; i < 4; i++)
      if (c + i < a.cols) squares = fma_(x.v[i] - mean, x.v[i] - mean, squares);
  }
  const float variance = block_sum<THREADS>(squares, of_squares) / (float)a.cols;
  const float cutoff = fma_(a.deviations, root(variance), mean);
  for (u32 c = first; c < a.cols; c += 4 * THREADS) {
    Four x = load_four(gates, c, a.cols);
    for (u32 i = 0; i < 4; i++) x.v[i] = x.v[i] <= cutoff ? 0.f : x.v[i] - cutoff;   // NaN stays NaN
    store_activations(gates, FORMAT_F32, 0, c, a.cols, x);
  }
}

// Grid: rows.
KERNEL(256, level_rows, LevelRowsArgs) {
  pdl_launch(); pdl_wait();
  SHARED float of_x[THREADS / WARP], of_like[THREADS / WARP];
  const u32 first = 4 * (u32)tid_x();
  const u64 at = (u64)bid_x() * a.cols;
  float x_squares = 0.f, squares = 0.f;
  for (u32 c = first; c < a.cols; c += 4 * THREADS) {
    const Four x = load_four(a.x + at, c, a.cols), like = load_four(a.like + at, c, a.cols);
    for (u32 i = 0; i < 4; i++) {
      x_squares = fma_(x.v[i], x.v[i], x_squares);
      squares = fma_(like.v[i], like.v[i], squares);
    }
  }
  const float x_square = block_sum<THREADS>(x_squares, of_x) / (float)a.cols;
  const float square = block_sum<THREADS>(squares, of_like) / (float)a.cols;
  const float factor = root(square) * rsqrt_accurate(x_square < a.least ? a.least : x_square);
  for (u32 c = first; c < a.cols; c += 4 * THREADS) {
    Four x = load_four(a.x + at, c, a.cols);
    for (u32 i = 0; i < 4; i++) x.v[i] *= factor;
    store_activations(a.out + at, FORMAT_F32, 0, c, a.cols, x);
  }
}

// Returns a coefficient of the streams of a row, from the tangents of its router.
DEV float coefficient(const StreamsArgs& a, const Four& tangents, u32 index) {
  const float* weight = a.weight + 4 * index;
  float sum = 0.f;
  for (u32 i = 0; i < 4; i++) sum = fma_(weight[i], tangents.v[i], sum);
  return sum;
}

DEV Four router_tangents(const StreamsArgs& a, u32 row) {
  Four tangents;
  for (u32 i = 0; i < 4; i++) tangents.v[i] = soft_cap(a.scale * a.routed[4 * (u64)row + i], 1.f);
  return tangents;
}

// Grid: (rows, columns / STREAM_COLS rounded up).
KERNEL(256, predict_streams, StreamsArgs) {
  static_assert(STREAM_COLS == 4 * THREADS, "four columns a thread");
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = 4 * ((u32)bid_y() * THREADS + (u32)tid_x());
  if (c >= a.cols) return;
  const Four tangents = router_tangents(a, row);
  float* const streams[4] = {a.active, a.first, a.second, a.third};
  const u64 at = (u64)row * a.cols;
  Four old[4];
  for (u32 k = 0; k < 4; k++) old[k] = load_four(streams[k] + at, c, a.cols);
  for (u32 k = 0; k < 4; k++) {
    Four y = old[k];
    for (u32 j = 0; j < 4; j++) {
      const float by = coefficient(a, tangents, 4 * k + j);
      for (u32 i = 0; i < 4; i++) y.v[i] = fma_(by, old[j].v[i], y.v[i]);
    }
    store_activations(streams[k] + at, FORMAT_F32, 0, c, a.cols, y);
    if (k == 0) store_activations(a.predicted + at, FORMAT_F32, 0, c, a.cols, y);
  }
}

// Grid: (rows, columns / STREAM_COLS rounded up).
KERNEL(256, correct_streams, StreamsArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = 4 * ((u32)bid_y() * THREADS + (u32)tid_x());
  if (c >= a.cols) return;
  const Four tangents = router_tangents(a, row);
  float* const streams[4] = {a.active, a.first, a.second, a.third};
  const u64 at = (u64)row * a.cols;
  const Four predicted = load_four(a.predicted + at, c, a.cols);
  Four news = load_four(a.active + at, c, a.cols);
  for (u32 i = 0; i < 4; i++) news.v[i] -= predicted.v[i];
  for (u32 k = 0; k < 4; k++) {
    Four y = k == 0 ? predicted : load_four(streams[k] + at, c, a.cols);
    const float by = 1.f + coefficient(a, tangents, k);
    for (u32 i = 0; i < 4; i++) y.v[i] = fma_(by, news.v[i], y.v[i]);
    store_activations(streams[k] + at, FORMAT_F32, 0, c, a.cols, y);
  }
}

// Grid: rows of the result.
KERNEL(256, gather_rows, GatherArgs) {
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), from = ld_step(a.indices + row);
  for (u32 c = 4 * (u32)tid_x(); c < a.cols; c += 4 * THREADS) {
    store_activations(a.out, FORMAT_F32, row, c, a.cols, load_activations(a.x, a.format_in, from, c, a.cols));
  }
}

// Grid: (block_bytes / 4096 rounded up, pairs): 16 bytes of K and of V a thread.
KERNEL(256, copy_blocks, CopyBlocksArgs) {
  pdl_launch(); pdl_wait();
  const u32 offset = 16 * ((u32)bid_x() * THREADS + (u32)tid_x()), pair = (u32)bid_y();
  if (pair >= a.num_pairs || offset >= a.block_bytes) return;
  const u64 from = (u64)ld_step(a.pairs + 2 * pair) * a.block_bytes + offset;
  const u64 to = (u64)ld_step(a.pairs + 2 * pair + 1) * a.block_bytes + offset;
  const v4 k = ld16(a.k_cache + from), v = ld16(a.v_cache + from);
  *(v4*)(a.k_cache + to) = k;
  *(v4*)(a.v_cache + to) = v;
}
