// Rows as 8-bit floats for a vendor's matrix library: e4m3, with a scale for each row (args.h).
#include "block_max.h"
#include "gate.h"
#include "norm_rows.h"

// Returns the bits of the larger magnitude: `largest` or that of x. Their order is that of the magnitudes, with NaN on
// top.
DEV u32 larger_size(u32 largest, float x) {
  const u32 size = f32_bits(x) & 0x7fffffffu;
  return size > largest ? size : largest;
}

// A row's scale and the factor of its numbers. The scale is the least power of two for which no magnitude exceeds 448 =
// 1.75 * 2^8. It changes no mantissa, so numbers are rounded only once. A row with a NaN or an infinity has a NaN
// scale.
struct RowScale {
  float scale, inverse;
  MEM RowScale(u32 largest) {
    // The exponent, plus one if the mantissa exceeds 1.75. The scale of tiny rows and its inverse are still normal
    // numbers.
    u32 exponent = (largest + 0x1fffffu) >> 23;
    exponent = exponent < 9 ? 9 : exponent > 255 ? 255 : exponent;
    scale = largest < 0x7f800000u ? bits_f32((exponent - 8) << 23) : F32_NAN;
    inverse = bits_f32((262 - exponent) << 23);
  }
};

#if GPU_WGMMA
// Converts four numbers to the nearest e4m3, up to 448 in magnitude; ties go to even.
DEV u32 to_four_e4m3(const float* x, float inverse) {
  u16 low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1] * inverse), "f"(x[0] * inverse));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3] * inverse), "f"(x[2] * inverse));
  return (u32)high << 16 | low;
}
#else
// Converts x to the nearest e4m3, up to 448 in magnitude; ties go to even. Zero has no sign: hardware without a
// negative zero takes its code for NaN.
DEV u32 to_e4m3(float x) {
  const u32 size = f32_bits(x) & 0x7fffffffu;
  u32 code;
  if (size < 0x3c800000u) {                            // below 2^-6 steps are 2^-9, like those of floats from 2^14 on
    code = f32_bits(bits_f32(size) + 16384.f) - f32_bits(16384.f);
  } else {                                             // drops 20 bits of the mantissa, makes the exponent's bias 7
    code = ((size + 0x7ffffu + (size >> 20 & 1)) >> 20) - (120u << 3);
  }
  return code ? code | (f32_bits(x) >> 24 & 0x80u) : 0;
}
DEV u32 to_four_e4m3(const float* x, float inverse) {
  return to_e4m3(x[0] * inverse) | to_e4m3(x[1] * inverse) << 8 | to_e4m3(x[2] * inverse) << 16 |
         to_e4m3(x[3] * inverse) << 24;
}
#endif

// Grid: rows. Like `norm_rows`, but the scale needs the whole row after the norm. Rows of more than one span are
// computed twice: from the last span back to the first, then forward to the last.
KERNEL(NORM_THREADS, norm_rows_fp8, NormRowsArgs) {
  using Held = SpanOf<PLAIN>;
  const u32 padded = stored_cols(FORMAT_FP8, a.cols), last = (padded - 1) / SPAN * SPAN, row = (u32)bid_x();
  Held x, weights;
  SHARED float of_squares[NORM_THREADS / WARP];
  SHARED u32 of_sizes[NORM_THREADS / WARP];
  if (a.norm) weights.load(a.norm, FORMAT_F32, 0, 0, last, a.cols);   // loads while the previous kernel ends
  loads_first();
  pdl_launch(); pdl_wait();
  float squares = 0.f, scale = 1.f;
  for (u32 start = a.norm ? 0 : last;; start += SPAN) {
    x.load(a.x, a.format_in, row, a.x_stride, start, a.cols);
    if (a.norm) x.add_squares(squares);
    if (start == last) break;
  }
  if (a.norm) scale = rsqrt_accurate(block_sum<NORM_THREADS>(squares, of_squares) / (float)a.cols + a.eps);
  const auto load = [&](u32 start) {
    x.load(a.x, a.format_in, row, a.x_stride, start, a.cols);
    if (a.norm) weights.load(a.norm, FORMAT_F32, 0, 0, start, a.cols);
    if (a.norm) x.multiply(scale, weights);
  };
  if (a.norm) x.multiply(scale, weights);
  u32 largest = 0;
  for (u32 start = last;; start -= SPAN) {
    #pragma unroll
    for (u32 i = 0; i < Held::HELD; i++)
      for (u32 k = 0; k < 4; k++) largest = larger_size(largest, x.fours[i].v[k]);
    if (start == 0) break;
    load(start - SPAN);
  }
  const RowScale of_row(block_max<NORM_THREADS>(largest, of_sizes));
  u8* const out = (u8*)a.out + (u64)row * padded;
  for (u32 start = 0;; start += SPAN) {
    #pragma unroll
    for (u32 i = 0; i < Held::HELD; i++) {
      const u32 c = Held::column(start, i);
      if (c < padded) *(u32*)(out + c) = to_four_e4m3(x.fours[i].v, of_row.inverse);
    }
    if (start == last) break;
    load(start + SPAN);
  }
  if (tid_x() == 0) a.scales[row] = of_row.scale;
}

// A row of gate and up, loaded by `Eight`. Up to HELD times eight columns of a thread cover most rows. They are loaded
// at once and stay in registers until the scale is known. Further columns are computed twice.
template <class Eight, bool SILU> DEV void gate_row(const GatedArgs& a) {
  constexpr u32 HELD = 4;
  SHARED u32 of_sizes[GATED_FP8_THREADS / WARP];
  const u32 padded = stored_cols(FORMAT_FP8, a.cols), row = (u32)bid_x();
  const u8* const gate_row = (const u8*)a.gate_up + (u64)row * 2 * a.cols * Eight::BYTES;
  const u8* const up_row = gate_row + (u64)a.cols * Eight::BYTES;
  const auto column = [](u32 i) { return 8 * (i * GATED_FP8_THREADS + (u32)tid_x()); };
  u32 largest = 0;
  const auto gate = [&](const Eight& gate, const Eight& up, float (&y)[8]) {
    for (u32 k = 0; k < 8; k++) y[k] = gated(SILU ? (u32)ACTIVATION_SILU : a.activation, gate.get(k), up.get(k));
    for (u32 k = 0; k < 8; k++) largest = larger_size(largest, y[k]);
  };
  Eight gates[HELD] = {}, ups[HELD] = {};
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) {
    if (column(i) >= a.cols) continue;
    gates[i].load(gate_row, column(i));
    ups[i].load(up_row, column(i));
  }
  loads_first();
  float held[HELD][8], other[8];
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) gate(gates[i], ups[i], held[i]);
  const auto load = [&](u32 c) {
    Eight of_gate = {}, of_up = {};
    if (c < a.cols) {
      of_gate.load(gate_row, c);
      of_up.load(up_row, c);
    }
    gate(of_gate, of_up, other);
  };
  for (u32 i = HELD; column(i) < a.cols; i++) load(column(i));
  const RowScale of_row(block_max<GATED_FP8_THREADS>(largest, of_sizes));
  u8* const out = (u8*)a.out + (u64)row * padded;
  const auto store = [&](u32 c, const float (&y)[8]) {
    v2 codes;
    codes.x = to_four_e4m3(y, of_row.inverse);
    codes.y = to_four_e4m3(y + 4, of_row.inverse);
    if (c < padded) *(v2*)(out + c) = codes;
  };
  #pragma unroll
  for (u32 i = 0; i < HELD; i++) store(column(i), held[i]);
  for (u32 i = HELD; column(i) < padded; i++) {
    load(column(i));
    store(column(i), other);
  }
  if (tid_x() == 0) a.scales[row] = of_row.scale;
}

// The usual activation is separate, so that it is chosen once.
template <class Eight> DEV void gate_row(const GatedArgs& a) {
  if (a.activation == ACTIVATION_SILU) gate_row<Eight, true>(a);
  else gate_row<Eight, false>(a);
}

// Grid: rows, of a multiple of eight columns.
KERNEL(GATED_FP8_THREADS, gated_activation_fp8, GatedArgs) {
  pdl_launch(); pdl_wait();
  if (a.format_in == FORMAT_F32) gate_row<EightF32>(a);
  else if (is_bf16(a.format_in)) gate_row<EightHalves<true>>(a);
  else gate_row<EightHalves<false>>(a);
}
