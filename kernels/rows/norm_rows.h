// Shared by the kernels of single rows: loads and stores of activations, and norms. A thread always works on whole
// groups of four columns, loaded at once if the address allows it. Its elements, and so the order of a sum, do not
// depend on the address of a row.
#pragma once
#include "activation.h"
#include "block_sum.h"
#include "elementary.h"
#include "wgmma.h"

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

// Decodes the e4m3 in the lowest byte.
DEV float of_e4m3(u32 code) {
  const u32 exponent = code >> 3 & 15, mantissa = code & 7;
  const float size = exponent ? bits_f32((exponent + 120) << 23 | mantissa << 20) : (float)mantissa * 0x1p-9f;
  return code & 0x80u ? -size : size;
}

// Returns columns c .. c + 4 (c a multiple of 4, below cols) of row n of an activation buffer, with zeros from cols on.
// The caller multiplies 8-bit floats by the row's scale.
DEV Four load_activations(const void* x, u32 format, u32 n, u32 c, u32 cols) {
  const u32 super_blocks = (cols + 255) >> 8;
  if (format == FORMAT_F32) return load_four((const float*)x + (u64)n * cols, c, cols);
  if (format == FORMAT_FP8) {
    const u32 codes = *(const u32*)((const u8*)x + (u64)n * super_blocks * 256 + c);
    return Four{{of_e4m3(codes), of_e4m3(codes >> 8), of_e4m3(codes >> 16), of_e4m3(codes >> 24)}};
  }
  if (format < FORMAT_F16_TILED) {
    return load_four((const u16*)x + (u64)n * super_blocks * 256, c, cols, is_bf16(format));
  }
  // Four columns are contiguous, the middle two swapped; the padding after `cols` is readable and zero.
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

// Stores four columns in the layout of `load_activations`. Columns outside the row are zero, and fill the padding of
// padded formats.
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
  const u32 super_blocks = (cols + 255) >> 8;
  const bool tiled = format >= FORMAT_F16_TILED, bf16 = is_bf16(format);
  const u64 at = tiled ? activation_index(n, c, super_blocks) : (u64)n * super_blocks * 256 + c;
  const float second = tiled ? f.v[2] : f.v[1], third = tiled ? f.v[1] : f.v[2];
  const v2 w = {pair_of(bf16, f.v[0], second), pair_of(bf16, third, f.v[3])};
#if GPU_WGMMA
  if (tiled) {
    *(u32*)((u16*)out + at) = w.x;
    *(u32*)((u16*)out + at + HALF_STEP) = w.y;
    return;
  }
#endif
  *(v2*)((u16*)out + at) = w;
}

// Returns the number of columns to store for a row of `cols`.
DEV u32 stored_cols(u32 format, u32 cols) { return format == FORMAT_F32 ? cols : (cols + 255) & ~255u; }

// Columns of a row that a block of `norm_rows` has in registers at once.
constexpr u32 SPAN = 4096;

// A thread's fours of the span that begins at column `start`, divided among BLOCKS blocks; zeros outside the row.
template <u32 BLOCK_THREADS, u32 BLOCKS> struct Span {
  static constexpr u32 HELD = SPAN / (4 * BLOCK_THREADS * BLOCKS);
  Four fours[HELD];
  static MEM u32 column(u32 start, u32 i) {
    return start + 4 * ((i * BLOCKS + (u32)bid_x() % BLOCKS) * BLOCK_THREADS + (u32)tid_x());
  }
  MEM void load_f32(const float* row, bool whole, u32 start, u32 cols) {
    #pragma unroll
    for (u32 i = 0; i < HELD; i++)
      fours[i] = whole ? load_whole_four(row, column(start, i), cols) : load_four(row, false, column(start, i), cols);
  }
  // `stride` counts f32 elements.
  MEM void load(const void* x, u32 format, u32 row, u32 stride, u32 start, u32 cols) {
    // The usual format is separate: the conversions of the others make each load wait for the previous one.
    if (format == FORMAT_F32) {
      const float* of_row = (const float*)x + (u64)row * stride;
      if (is_whole(of_row, cols)) load_f32(of_row, true, start, cols);
      else load_f32(of_row, false, start, cols);
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
  // Columns outside the row stay zero.
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

// The norms that a kernel supports. PLAIN: RMSNorm without biases, or none. PARTS: PLAIN after adding partial sums.
enum NormOf { PLAIN, OTHER, PARTS };
// The blocks of a row. Parts are many bytes, which arrive sooner at several multiprocessors. Small blocks also fit a
// multiprocessor before the previous product has left it.
template <NormOf OF> struct RowBlocks { static constexpr u32 COUNT = 1, THREADS = NORM_THREADS; };
template <> struct RowBlocks<PARTS> {
#if GPU_WGMMA
  static constexpr u32 COUNT = NORM_PARTS_BLOCKS, THREADS = NORM_PARTS_BLOCK_THREADS;
#else
  static constexpr u32 COUNT = 1, THREADS = NORM_PARTS_THREADS;
#endif
};
template <NormOf OF> using SpanOf = Span<RowBlocks<OF>::THREADS, RowBlocks<OF>::COUNT>;

// Sums over the blocks of a row, in one order, for every thread.
template <NormOf OF> DEV float row_sum(float v, float (&waves)[RowBlocks<OF>::THREADS / WARP]) {
  constexpr u32 COUNT = RowBlocks<OF>::COUNT;
  v = block_sum<RowBlocks<OF>::THREADS>(v, waves);
#if GPU_WGMMA
  if constexpr (COUNT > 1) {
    SHARED float of_blocks[COUNT];
    cluster_wait();                    // all blocks have begun
    if ((u32)tid_x() < COUNT) cluster_store(shared_address(of_blocks + bid_x() % COUNT), (u32)tid_x(), v);
    cluster_arrive();
    cluster_wait();
    v = 0.f;
    for (u32 i = 0; i < COUNT; i++) v += of_blocks[i];
  }
#endif
  return v;
}

// Adds a product's partial sums to a span of a row, and stores the result, which other kernels read too. Parts are
// added in order, then to the row, as the product itself would do it. Their loads run together.
DEV void add_parts(const NormRowsArgs& a, SpanOf<PARTS>& x, u32 row, u32 start) {
  constexpr u32 AT_ONCE = 8;
  const float* of_row = a.parts + (u64)row * a.x_stride;
  const u64 part = (u64)a.rows * a.x_stride;
  SpanOf<PARTS> sum = {};
  // All loads are of one kind, or each would have its own branch.
  const auto add = [&](bool whole) {
    for (u32 first = 0; first < a.num_parts; first += AT_ONCE) {
      SpanOf<PARTS> parts[AT_ONCE];
      #pragma unroll
      for (u32 k = 0; k < AT_ONCE; k++)
        if (first + k < a.num_parts) parts[k].load_f32(of_row + (first + k) * part, whole, start, a.cols);
      loads_first();
      #pragma unroll
      for (u32 k = 0; k < AT_ONCE; k++)
        if (first + k < a.num_parts) sum.add(parts[k]);
    }
  };
  if (is_whole(a.parts, a.x_stride) && a.cols % 4 == 0) add(true);
  else add(false);
  x.add(sum);
  x.store((void*)a.x, FORMAT_F32, row, a.x_stride, start, a.cols);
}

// Finishes a span of a normed row: applies scale, weights and bias, adds the previous output, and multiplies the sum by
// the factor.
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

// Grid: the blocks of all rows. The norm needs the whole row before it can store the first column. The last span, which
// is all of most rows, stays in registers. Earlier spans are read a second time, from there back to the start. A kernel
// with all norms needs more registers per thread, so that a multiprocessor holds half as many blocks: 2,048 rows of
// 4,096 columns took 27 microseconds instead of 19 on an H200.
template <NormOf OF> DEV void norm_row(const NormRowsArgs& a) {
  constexpr u32 BLOCK_THREADS = RowBlocks<OF>::THREADS;
  const u32 last = (stored_cols(a.format_out, a.cols) - 1) / SPAN * SPAN;
  const u32 row = (u32)bid_x() / RowBlocks<OF>::COUNT;
  SpanOf<OF> x, weights;
  float squares = 0.f, scale = 1.f, mean = 0.f;
  SHARED float of_values[BLOCK_THREADS / WARP], of_squares[BLOCK_THREADS / WARP];
  const bool centers = OF == OTHER && a.norm && a.kind == NORM_LAYER;
  const u32 format_in = OF == PARTS ? (u32)FORMAT_F32 : a.format_in;
  const auto load = [&](u32 start) {
    x.load(a.x, format_in, row, a.x_stride, start, a.cols);
    if (OF == OTHER && format_in == FORMAT_FP8) x.multiply(a.scales[row]);
  };
  if (a.norm) weights.load(a.norm, FORMAT_F32, 0, 0, last, a.cols);   // loads while the previous kernel ends
  loads_first();
#if GPU_WGMMA
  if (RowBlocks<OF>::COUNT > 1 && a.norm) cluster_arrive();           // the other blocks may now store here
#endif
  pdl_launch(); pdl_wait();
  if (centers) {
    float sum = 0.f;
    for (u32 start = 0; start <= last; start += SPAN) {
      load(start);
      x.add_values(sum);
    }
    mean = row_sum<OF>(sum, of_values) / (float)a.cols;
  }
  for (u32 start = a.norm || OF == PARTS ? 0 : last;; start += SPAN) {
    load(start);
    if constexpr (OF == PARTS) add_parts(a, x, row, start);
    if (centers) x.subtract(mean, start, a.cols);
    if (a.norm) x.add_squares(squares);
    if (start == last) break;
  }
  const bool divides = a.norm && (OF != OTHER || a.kind != NORM_WEIGHTS);
  if (divides) scale = rsqrt_accurate(row_sum<OF>(squares, of_squares) / (float)a.cols + a.eps);
  for (u32 start = last;; start -= SPAN) {
    if (a.norm) finish_norm<OF>(a, x, weights, scale, row, start);
    x.store(a.out, a.format_out, row, a.out_stride, start, a.cols);
    if (start == 0) break;
    load(start - SPAN);
    if (centers) x.subtract(mean, start - SPAN, a.cols);
    if (a.norm) weights.load(a.norm, FORMAT_F32, 0, 0, start - SPAN, a.cols);
  }
}
