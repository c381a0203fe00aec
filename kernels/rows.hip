// Kernels that take activations row by row. A thread always works on whole groups of four columns, loaded at once where
// the address allows it: which elements it gets, and so the order of a sum, does not depend on where a row lies.
#include "activation.h"
#include "block_sum.h"
#include "elementary.h"

constexpr u32 THREADS = 256;

DEV Four load_four(const float* row, u32 c, u32 cols) { return load_four(row, is_aligned(row, 16), c, cols); }
DEV Four load_four(const u16* row, u32 c, u32 cols, bool bf16) {
  u16 half[4];
  if (is_aligned(row, 8) && c + 4 <= cols) {
    const v2 w = ld8(row + c);
    half[0] = (u16)w.x; half[1] = (u16)(w.x >> 16); half[2] = (u16)w.y; half[3] = (u16)(w.y >> 16);
  } else {
    for (u32 i = 0; i < 4; i++) half[i] = c + i < cols ? row[c + i] : (u16)0;
  }
  Four f;
  for (u32 i = 0; i < 4; i++) f.v[i] = bf16 ? bf2f(half[i]) : h2f(half[i]);
  return f;
}

// Columns c .. c + 4 (c a multiple of 4, below cols) of row n of an activation buffer; zeros from cols on.
DEV Four load_activations(const void* x, u32 format, u32 n, u32 c, u32 cols) {
  const u32 super_blocks = (cols + 255) >> 8;
  if (format == FORMAT_F32) return load_four((const float*)x + (u64)n * cols, c, cols);
  if (format < FORMAT_F16_TILED) {
    return load_four((const u16*)x + (u64)n * super_blocks * 256, c, cols, is_bf16(format));
  }
  // Four columns lie together, the middle two swapped; the padding behind `cols` is there to be read, and zero.
  const u16* four = (const u16*)x + activation_index(n, c, super_blocks);
#if GPU_WGMMA
  const u32 even = *(const u32*)four, odd = *(const u32*)(four + HALF_STEP);
  const u32 half[4] = {even & 0xffff, odd & 0xffff, even >> 16, odd >> 16};
  Four f;
  for (u32 i = 0; i < 4; i++) f.v[i] = is_bf16(format) ? bf2f((u16)half[i]) : h2f((f16)half[i]);
  return f;
#else
  const Four f = load_four(four, 0, 4, is_bf16(format));
  return Four{{f.v[0], f.v[2], f.v[1], f.v[3]}};
#endif
}

// Stores what `load_activations` loads. Columns that are not there are zero, and fill the padding of padded formats.
DEV void store_activations(void* out, u32 format, u32 n, u32 c, u32 cols, const Four& f) {
  if (format == FORMAT_F32) {
    float* p = (float*)out + (u64)n * cols + c;
    if (cols - c >= 4 && is_aligned(p, 16)) {
      v4 w;
      w.x = f32_bits(f.v[0]); w.y = f32_bits(f.v[1]); w.z = f32_bits(f.v[2]); w.w = f32_bits(f.v[3]);
      *(v4*)p = w;
    } else {
      for (u32 i = 0; i < 4; i++) {
        if (c + i < cols) p[i] = f.v[i];
      }
    }
    return;
  }
  u32 half[4];
  for (u32 i = 0; i < 4; i++) half[i] = is_bf16(format) ? f2bf(f.v[i]) : f2h_sat(f.v[i]);
  const u32 super_blocks = (cols + 255) >> 8;
  const bool tiled = format >= FORMAT_F16_TILED;
  const u64 at = tiled ? activation_index(n, c, super_blocks) : (u64)n * super_blocks * 256 + c;
  v2 w;
  w.x = half[0] | (tiled ? half[2] : half[1]) << 16;
  w.y = (tiled ? half[1] : half[2]) | half[3] << 16;
#if GPU_WGMMA
  if (tiled) {
    *(u32*)((u16*)out + at) = w.x;
    *(u32*)((u16*)out + at + HALF_STEP) = w.y;
    return;
  }
#endif
  *(v2*)((u16*)out + at) = w;
}

// Columns to store of a row of `cols`.
DEV u32 stored_cols(u32 format, u32 cols) { return format == FORMAT_F32 ? cols : (cols + 255) & ~255u; }

// Columns of a row that a block of `norm_rows` has in registers at once.
constexpr u32 SPAN = 4096;

// A thread's fours of the span that begins at column `start`, in a block of so many; zeros beyond the row.
template <u32 BLOCK_THREADS> struct Span {
  static constexpr u32 HELD = SPAN / (4 * BLOCK_THREADS);
  Four fours[HELD];
  static MEM u32 column(u32 start, u32 i) { return start + 4 * (i * BLOCK_THREADS + (u32)tid_x()); }
  // `stride` counts f32 elements.
  MEM void load(const void* x, u32 format, u32 row, u32 stride, u32 start, u32 cols) {
    // The usual format is apart from the others, whose conversions would have each load waited for before the next.
    if (format == FORMAT_F32) {
      #pragma unroll
      for (u32 i = 0; i < HELD; i++) fours[i] = load_four((const float*)x + (u64)row * stride, column(start, i), cols);
    } else {
      #pragma unroll
      for (u32 i = 0; i < HELD; i++) {
        const u32 c = column(start, i);
        fours[i] = c < cols ? load_activations(x, format, row, c, cols) : Four{};
      }
    }
  }
  MEM void add_squares(float& sum) const {
    #pragma unroll
    for (u32 i = 0; i < HELD; i++)
      for (u32 k = 0; k < 4; k++) sum = fma_(fours[i].v[k], fours[i].v[k], sum);
  }
  MEM void add_values(float& sum) const {
    #pragma unroll
    for (u32 i = 0; i < HELD; i++)
      for (u32 k = 0; k < 4; k++) sum += fours[i].v[k];
  }
  // Columns beyond the row stay zero.
  MEM void subtract(float mean, u32 start, u32 cols) {
    #pragma unroll
    for (u32 i = 0; i < HELD; i++)
      for (u32 k = 0; k < 4; k++)
        if (column(start, i) + k < cols) fours[i].v[k] -= mean;
  }
  MEM void multiply(float scale, const Span& weights) {
    #pragma unroll
    for (u32 i = 0; i < HELD; i++)
      for (u32 k = 0; k < 4; k++) fours[i].v[k] = fours[i].v[k] * scale * weights.fours[i].v[k];
  }
  MEM void multiply(float factor) {
    #pragma unroll
    for (u32 i = 0; i < HELD; i++)
      for (u32 k = 0; k < 4; k++) fours[i].v[k] *= factor;
  }
  MEM void add(const Span& other) {
    #pragma unroll
    for (u32 i = 0; i < HELD; i++)
      for (u32 k = 0; k < 4; k++) fours[i].v[k] += other.fours[i].v[k];
  }
  // `stride` counts f32 elements.
  MEM void store(void* out, u32 format, u32 row, u32 stride, u32 start, u32 cols) const {
    const u32 end = stored_cols(format, cols);
    void* first = format == FORMAT_F32 ? (void*)((float*)out + (u64)row * stride) : out;
    #pragma unroll
    for (u32 i = 0; i < HELD; i++) {
      const u32 c = column(start, i);
      if (c < end) store_activations(first, format, format == FORMAT_F32 ? 0 : row, c, cols, fours[i]);
    }
  }
};

// Says what a kernel knows of norms. PLAIN: RMSNorm without biases, or none; PARTS: the same, of sums to be added.
enum NormOf { PLAIN, OTHER, PARTS };
template <NormOf OF> using SpanOf = Span<OF == PARTS ? NORM_PARTS_THREADS : NORM_THREADS>;

// Adds what a product has left of a span of a row to it, and stores the sum, which others read too. Parts are added up
// in their order and then to the row, as the product itself would do it; their loads are on their way at once.
DEV void add_parts(const NormRowsArgs& a, SpanOf<PARTS>& x, u32 row, u32 start) {
  constexpr u32 AT_ONCE = 8;
  SpanOf<PARTS> sum = {};
  for (u32 first = 0; first < a.num_parts; first += AT_ONCE) {
    SpanOf<PARTS> parts[AT_ONCE];
    #pragma unroll
    for (u32 k = 0; k < AT_ONCE; k++)
      if (first + k < a.num_parts)
        parts[k].load(a.parts + (u64)(first + k) * a.rows * a.x_stride, FORMAT_F32, row, a.x_stride, start, a.cols);
    loads_first();
    #pragma unroll
    for (u32 k = 0; k < AT_ONCE; k++)
      if (first + k < a.num_parts) sum.add(parts[k]);
  }
  x.add(sum);
  x.store((void*)a.x, FORMAT_F32, row, a.x_stride, start, a.cols);
}

// Finishes a span of a row that goes through a norm: scale, weights and bias, then what the output holds is added, and
// the sum multiplied by the factor.
template <NormOf OF>
DEV void finish_norm(const NormRowsArgs& a, SpanOf<OF>& x, const SpanOf<OF>& weights, float scale, u32 row, u32 start) {
  SpanOf<OF> other;
  x.multiply(scale, weights);
  if (OF == OTHER && a.bias) {
    other.load(a.bias, FORMAT_F32, 0, 0, start, a.cols);
    x.add(other);
  }
  if (a.flags & LINEAR_ADD) {
    other.load(a.out, FORMAT_F32, row, a.out_stride, start, a.cols);
    x.add(other);
    x.multiply(a.factor);
  }
}

// Grid: rows. The norm needs the whole row before the first column can be stored. The last span stays in registers, all
// there is of most rows; the ones before it are read a second time, from there back to the start. With all norms in one
// kernel its threads take more registers, so that a multiprocessor holds half as many blocks: 2,048 rows of 4,096
// columns took 27 microseconds in place of 19 on an H200.
template <NormOf OF> DEV void norm_row(const NormRowsArgs& a) {
  constexpr u32 BLOCK_THREADS = OF == PARTS ? NORM_PARTS_THREADS : NORM_THREADS;
  const u32 last = (stored_cols(a.format_out, a.cols) - 1) / SPAN * SPAN;
  const u32 row = (u32)bid_x();
  SpanOf<OF> x, weights;
  float squares = 0.f, scale = 1.f, mean = 0.f;
  SHARED float of_values[BLOCK_THREADS / WARP], of_squares[BLOCK_THREADS / WARP];
  const bool centers = OF == OTHER && a.norm && a.kind == NORM_LAYER;
  if (a.norm) weights.load(a.norm, FORMAT_F32, 0, 0, last, a.cols);   // on their way while the kernel before this ends
  loads_first();
  pdl_launch(); pdl_wait();
  if (centers) {
    float sum = 0.f;
    for (u32 start = 0; start <= last; start += SPAN) {
      x.load(a.x, a.format_in, row, a.x_stride, start, a.cols);
      x.add_values(sum);
    }
    mean = block_sum<BLOCK_THREADS>(sum, of_values) / (float)a.cols;
  }
  const u32 format_in = OF == PARTS ? (u32)FORMAT_F32 : a.format_in;
  for (u32 start = a.norm || OF == PARTS ? 0 : last;; start += SPAN) {
    x.load(a.x, format_in, row, a.x_stride, start, a.cols);
    if constexpr (OF == PARTS) add_parts(a, x, row, start);
    if (centers) x.subtract(mean, start, a.cols);
    if (a.norm) x.add_squares(squares);
    if (start == last) break;
  }
  if (a.norm) scale = rsqrt_accurate(block_sum<BLOCK_THREADS>(squares, of_squares) / (float)a.cols + a.eps);
  for (u32 start = last;; start -= SPAN) {
    if (a.norm) finish_norm<OF>(a, x, weights, scale, row, start);
    x.store(a.out, a.format_out, row, a.out_stride, start, a.cols);
    if (start == 0) break;
    x.load(a.x, format_in, row, a.x_stride, start - SPAN, a.cols);
    if (centers) x.subtract(mean, start - SPAN, a.cols);
    if (a.norm) weights.load(a.norm, FORMAT_F32, 0, 0, start - SPAN, a.cols);
  }
}

KERNEL(NORM_THREADS, norm_rows, NormRowsArgs) { norm_row<PLAIN>(a); }
KERNEL(NORM_THREADS, norm_rows_other, NormRowsArgs) { norm_row<OTHER>(a); }
KERNEL(NORM_PARTS_THREADS, norm_rows_of_parts, NormRowsArgs) { norm_row<PARTS>(a); }

// Eight columns of a row as they lie in memory, all asked for at once, and as numbers.
struct EightF32 {
  static constexpr u32 BYTES = 4;
  v4 low, high;
  MEM void load(const void* row, u32 c) { low = ld16((const float*)row + c); high = ld16((const float*)row + c + 4); }
  MEM float get(u32 i) const {
    const u32 w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    return bits_f32(w[i]);
  }
};
template <bool BF16> struct EightHalves {
  static constexpr u32 BYTES = 2;
  v4 words;
  MEM void load(const void* row, u32 c) { words = ld16((const u16*)row + c); }
  // A product beyond the range of f16 came out infinite: saturated like all of our own stores, it gives no NaN.
  MEM float get(u32 i) const {
    const u32 w[4] = {words.x, words.y, words.z, words.w};
    const u16 half = (u16)(w[i / 2] >> i % 2 * 16);
    return BF16 ? bf2f(half) : clamp_half(h2f(half));
  }
};
template <class Eight, u32 ACTIVATION> DEV void gate_eight(const GatedArgs& a, u32 row, u32 c, float* y) {
  const u8* gate_up = (const u8*)a.gate_up + (u64)row * 2 * a.cols * Eight::BYTES;
  Eight gate, up;
  gate.load(gate_up, c);
  up.load(gate_up + (u64)a.cols * Eight::BYTES, c);
  loads_first();
  #pragma unroll
  for (u32 i = 0; i < 8; i++) y[i] = gated(ACTIVATION, gate.get(i), up.get(i));
}
template <class Eight> DEV void gate_eight(const GatedArgs& a, u32 row, u32 c, float* y) {
  if (a.activation == ACTIVATION_SILU) gate_eight<Eight, ACTIVATION_SILU>(a, row, c, y);
  else if (a.activation == ACTIVATION_GELU) gate_eight<Eight, ACTIVATION_GELU>(a, row, c, y);
  else if (a.activation == ACTIVATION_GELU_ERF) gate_eight<Eight, ACTIVATION_GELU_ERF>(a, row, c, y);
  else if (a.activation == ACTIVATION_SQUARED_RELU) gate_eight<Eight, ACTIVATION_SQUARED_RELU>(a, row, c, y);
  else gate_eight<Eight, ACTIVATION_CLAMPED_SWIGLU>(a, row, c, y);
}

// Four columns, for rows that are no multiple of eight.
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

// An activation that needs no gate.
DEV float activated(u32 activation, float x) {
  if (activation == ACTIVATION_GELU_ERF) return gelu_erf(x);
  return activation == ACTIVATION_SILU ? silu(x) : activation == ACTIVATION_GELU ? gelu(x) : squared_relu(x);
}

// Grid: (rows, columns to store / ACTIVATION_COLS rounded up).
KERNEL(256, activation, ActivationArgs) {
  static_assert(ACTIVATION_COLS == 4 * THREADS, "four columns a thread");
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = 4 * ((u32)bid_y() * THREADS + (u32)tid_x());
  if (c >= stored_cols(a.format_out, a.cols)) return;
  Four y = load_four(a.x + (u64)row * a.cols, c, a.cols);
  for (u32 i = 0; i < 4; i++) y.v[i] = activated(a.activation, y.v[i]);
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
    // Rows that fill up a step have any position.
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
KERNEL(256, scale_logits, ScaleLogitsArgs) {
  static_assert(SCALE_COLS == 4 * THREADS, "four columns a thread");
  pdl_launch(); pdl_wait();
  const u32 row = (u32)bid_x(), c = 4 * ((u32)bid_y() * THREADS + (u32)tid_x());
  if (c >= a.cols) return;
  Four x = load_four(a.logits + (u64)row * a.cols, c, a.cols);
  for (u32 i = 0; i < 4; i++) {
    x.v[i] *= a.scale;
    if (a.softcap != 0.f) x.v[i] = soft_cap(x.v[i], a.softcap);
  }
  store_activations(a.logits, FORMAT_F32, row, c, a.cols, x);
}

// Grid: rows. What the gate is to multiply is on its way while the gate is summed up.
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
