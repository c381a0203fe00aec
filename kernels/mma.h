// One interface for the matrix units: C[16][16] += A[16][16] * B[16][16]^T in f32. A and B are f16 or bf16, with K
// contiguous in memory. Element i of a lane's accumulator is C[mma_row(lane, i)][mma_col(lane, i)].
//   gfx11 (wave32) WMMA: a lane holds a whole row of A and of B; lanes 16..31 repeat lanes 0..15
//   gfx12 (wave32) WMMA: half a row a lane. The hardware's order of K differs from this one, but A and B share it, so
//                        the product is the same. (A C used as an operand would need the hardware's order.)
//   gfx908, gfx90a, gfx94x, gfx950 (wave64) MFMA: a quarter of a row a lane
//   sm_80+ two mma.m16n8k16
//   gfx906, gfx10, CPU: dot products, 8 (wave32) or 4 (wave64) elements of C a lane
// Operands are read in words of 8 or 16 bytes: rows are 16-byte aligned, strides are multiples of 8 elements.
#pragma once
#include "gpu.h"

constexpr int MMA_ACC = 256 / WARP;    // accumulators of a lane: 8 in wave32, 4 in wave64

#if GPU_AMD
  typedef float f4v __attribute__((ext_vector_type(4)));
  typedef float f8v __attribute__((ext_vector_type(8)));
  typedef short s2v __attribute__((ext_vector_type(2)));
  typedef short s4v __attribute__((ext_vector_type(4)));
  typedef short s8v __attribute__((ext_vector_type(8)));
  typedef short s16v __attribute__((ext_vector_type(16)));
  typedef _Float16 h4v __attribute__((ext_vector_type(4)));
  typedef _Float16 h8v __attribute__((ext_vector_type(8)));
  typedef _Float16 h16v __attribute__((ext_vector_type(16)));
  typedef u32 v8 __attribute__((ext_vector_type(8)));
#endif

// ------------------------------------------------------------------------------------------------ WMMA, gfx11
#if defined(HAS_WMMA11) && HAS_WMMA11
struct MmaOperand { v8 row; };
typedef MmaOperand MmaA;
typedef MmaOperand MmaB;
DEV int mma_row(int lane, int i) { return 2 * i + (lane >> 4); }
DEV int mma_col(int lane, int) { return lane & 15; }
// With ROWS < 16 only that many rows exist, and the other rows repeat them.
template <int ROWS = 16> DEV void mma_load(MmaOperand& o, const u16* p, u32 stride) {
  const u16* row = p + (lane_id() & (ROWS - 1)) * stride;
  o.row = __builtin_shufflevector(ld16(row), ld16(row + 8), 0, 1, 2, 3, 4, 5, 6, 7);
}
template <bool BF16> DEV void mma(float* acc, const MmaA& a, const MmaB& b) {
  f8v c = {acc[0], acc[1], acc[2], acc[3], acc[4], acc[5], acc[6], acc[7]};
  if constexpr (BF16)
    c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(__builtin_bit_cast(s16v, a.row),
                                                    __builtin_bit_cast(s16v, b.row), c);
  else
    c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(__builtin_bit_cast(h16v, a.row), __builtin_bit_cast(h16v, b.row), c);
  #pragma unroll
  for (int i = 0; i < 8; i++) acc[i] = c[i];
}

// ------------------------------------------------------------------------------------------------ WMMA, gfx12
#elif defined(HAS_WMMA12) && HAS_WMMA12
struct MmaOperand { v4 half; };
typedef MmaOperand MmaA;
typedef MmaOperand MmaB;
DEV int mma_row(int lane, int i) { return 8 * (lane >> 4) + i; }
DEV int mma_col(int lane, int) { return lane & 15; }
template <int ROWS = 16> DEV void mma_load(MmaOperand& o, const u16* p, u32 stride) {
  o.half = ld16(p + (lane_id() & (ROWS - 1)) * stride + 8 * (lane_id() >> 4));
}
template <bool BF16> DEV void mma(float* acc, const MmaA& a, const MmaB& b) {
  f8v c = {acc[0], acc[1], acc[2], acc[3], acc[4], acc[5], acc[6], acc[7]};
  if constexpr (BF16)
    c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(__builtin_bit_cast(s8v, a.half),
                                                          __builtin_bit_cast(s8v, b.half), c);
  else
    c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(__builtin_bit_cast(h8v, a.half),
                                                         __builtin_bit_cast(h8v, b.half), c);
  #pragma unroll
  for (int i = 0; i < 8; i++) acc[i] = c[i];
}

// ------------------------------------------------------------------------------------------------ MFMA
#elif defined(HAS_MFMA)
struct MmaOperand { v2 quarter; };
typedef MmaOperand MmaA;
typedef MmaOperand MmaB;
DEV int mma_row(int lane, int i) { return 4 * (lane >> 4) + i; }
DEV int mma_col(int lane, int) { return lane & 15; }
template <int ROWS = 16> DEV void mma_load(MmaOperand& o, const u16* p, u32 stride) {
  o.quarter = ld8(p + (lane_id() & (ROWS - 1)) * stride + 4 * (lane_id() >> 4));
}
template <bool BF16> DEV void mma(float* acc, const MmaA& a, const MmaB& b) {
  f4v c = {acc[0], acc[1], acc[2], acc[3]};
  if constexpr (!BF16) {
    c = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(h4v, a.quarter), __builtin_bit_cast(h4v, b.quarter),
                                              c, 0, 0, 0);
  } else {
    #if defined(__gfx908__)            // bf16 has only 8 columns at a time here: half of every lane's columns each
    // Explicit copies, because clang reads the bits of a vector's element from the start of the vector: .y would read
    // .x.
    const u32 a0 = a.quarter.x, a1 = a.quarter.y, b0 = b.quarter.x, b1 = b.quarter.y;
    c = __builtin_amdgcn_mfma_f32_16x16x8bf16(__builtin_bit_cast(s2v, a0), __builtin_bit_cast(s2v, b0), c, 0, 0, 0);
    c = __builtin_amdgcn_mfma_f32_16x16x8bf16(__builtin_bit_cast(s2v, a1), __builtin_bit_cast(s2v, b1), c, 0, 0, 0);
    #else
    c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(s4v, a.quarter),
                                                  __builtin_bit_cast(s4v, b.quarter), c, 0, 0, 0);
    #endif
  }
  #pragma unroll
  for (int i = 0; i < 4; i++) acc[i] = c[i];
}

// ------------------------------------------------------------------------------------------------ mma.sync
#elif GPU_NV
// Half of the product: 8 columns of C. a: rows g, g+8 (columns 2t, 2t+1), rows g, g+8 (columns 2t+8, 2t+9); b0, b1: the
// same columns of row g of B; c: rows g, g, g+8, g+8 and columns 2t, 2t+1, 2t, 2t+1 (lane = 4g + t).
template <bool BF16> DEV void mma_16x8x16(float* c, const u32* a, u32 b0, u32 b1) {
  if constexpr (BF16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
struct MmaA { u32 w[4]; };
struct MmaB { u32 w[4]; };
DEV int mma_row(int lane, int i) { return (lane >> 2) + ((i >> 1) & 1) * 8; }
DEV int mma_col(int lane, int i) { return (i >> 2) * 8 + (lane & 3) * 2 + (i & 1); }
template <int ROWS = 16> DEV void mma_load(MmaA& o, const u16* p, u32 stride) {
  const u16* q = p + (lane_id() & 3) * 2;
  const u32 g = (u32)lane_id() >> 2, r0 = (g & (ROWS - 1)) * stride, r1 = (g + 8 & (ROWS - 1)) * stride;
  o.w[0] = *(const u32*)(q + r0); o.w[1] = *(const u32*)(q + r1);
  o.w[2] = *(const u32*)(q + r0 + 8); o.w[3] = *(const u32*)(q + r1 + 8);
}
template <int ROWS = 16> DEV void mma_load(MmaB& o, const u16* p, u32 stride) {
  const u16* q = p + (lane_id() & 3) * 2;
  const u32 g = (u32)lane_id() >> 2, r0 = (g & (ROWS - 1)) * stride, r1 = (g + 8 & (ROWS - 1)) * stride;
  o.w[0] = *(const u32*)(q + r0); o.w[1] = *(const u32*)(q + r0 + 8);
  o.w[2] = *(const u32*)(q + r1); o.w[3] = *(const u32*)(q + r1 + 8);
}
template <bool BF16> DEV void mma(float* acc, const MmaA& a, const MmaB& b) {
  mma_16x8x16<BF16>(acc, a.w, b.w[0], b.w[1]);
  mma_16x8x16<BF16>(acc + 4, a.w, b.w[2], b.w[3]);
}

// ------------------------------------------------------------------------------------------------ no matrix unit
#else
struct MmaA { const u16* rows; u32 stride; };    // read at the product: every lane needs several rows
struct MmaB { v4 lo, hi; };
DEV int mma_row(int lane, int i) { return (lane >> 4) * MMA_ACC + i; }
DEV int mma_col(int lane, int) { return lane & 15; }
template <int ROWS = 16> DEV void mma_load(MmaA& o, const u16* p, u32 stride) { o.rows = p; o.stride = stride; }
template <int ROWS = 16> DEV void mma_load(MmaB& o, const u16* p, u32 stride) {
  const u16* row = p + (lane_id() & (ROWS - 1)) * stride;
  o.lo = ld16(row); o.hi = ld16(row + 8);
}
template <bool BF16> DEV float mma_dot2(u32 a, u32 b, float c) {
  if constexpr (BF16) return fma_(bits_f32(a & 0xffff0000u), bits_f32(b & 0xffff0000u),
                                  fma_(bits_f32(a << 16), bits_f32(b << 16), c));
  else return fdot2(a, b, c);
}
template <bool BF16> DEV float mma_dot8(const v4& a, const v4& b, float c) {
  return mma_dot2<BF16>(a.w, b.w, mma_dot2<BF16>(a.z, b.z, mma_dot2<BF16>(a.y, b.y, mma_dot2<BF16>(a.x, b.x, c))));
}
// A row of A is used for all products before the next one is read: rows of several products at once would not fit the
// registers.
template <bool BF16, int NT> DEV void mma_strip(float (*acc)[MMA_ACC], const MmaA& a, const MmaB* b) {
  #pragma unroll
  for (int i = 0; i < MMA_ACC; i++) {
    const u16* row = a.rows + mma_row(lane_id(), i) * a.stride;
    const v4 lo = ld16(row), hi = ld16(row + 8);
    #pragma unroll
    for (int n = 0; n < NT; n++) acc[n][i] = mma_dot8<BF16>(hi, b[n].hi, mma_dot8<BF16>(lo, b[n].lo, acc[n][i]));
    if (i & 1) loads_first();
  }
}
template <bool BF16> DEV void mma(float* acc, const MmaA& a, const MmaB& b) {
  mma_strip<BF16, 1>((float(*)[MMA_ACC])acc, a, &b);
}
#define MMA_STRIP
#endif

#ifndef MMA_STRIP
// acc[n] += a * b[n]^T
template <bool BF16, int NT> DEV void mma_strip(float (*acc)[MMA_ACC], const MmaA& a, const MmaB* b) {
  #pragma unroll
  for (int n = 0; n < NT; n++) mma<BF16>(acc[n], a, b[n]);
}
#endif

// Multiplies two f16 tiles in memory.
DEV void mma_16x16x16(float* acc, const f16* a, int lda, const f16* b, int ldb) {
  MmaA x;
  MmaB y;
  mma_load(x, a, lda);
  mma_load(y, b, ldb);
  mma<false>(acc, x, y);
}
