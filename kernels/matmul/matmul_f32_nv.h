// Products of many f32 rows with f32 weights on NVIDIA's matrix units, which multiply numbers with 11 bits. A number is
// the sum of two of these within 2^-23 of itself, so three products give one. The matrix units truncate sums: they add
// up only 32 columns, and the rest is added in f32.
#pragma once
#include "activation.h"

// Splits x into two numbers. The matrix unit reads the upper 19 bits of each. A NaN stays NaN.
DEV void split_f32(u32 x, u32& high, u32& low) {
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(bits_f32(x)));
  low = f32_bits(bits_f32(x) - bits_f32(high));
}
// c += a * b^T for 16 rows of a, 8 rows of b and 8 columns. a: rows g, g + 8 of column t, then of column t + 4; b: row
// g and the same columns; c as in mma_16x8x16 (lane = 4g + t).
DEV void mma_16x8x8(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four columns of each of the four groups of a super-block: two steps of eight columns.
struct TwoSteps {
  u32 high[2], low[2];                                     // of a step
  // Columns 2 * step and 2 * step + 1 of four.
  MEM void split(const v4& x, int step) {
    #pragma unroll
    for (int i = 0; i < 2; i++) split_f32(word(x, 2 * step + i), high[i], low[i]);
  }
};

// Adds to sums[m][n] the products of four columns of each group, for tiles m and rows n * 8 ... w[m][h] has the tile's
// row g + 8h, x[n] has row g.
template <int TILES, int NT>
DEV void add_columns(float (&sums)[TILES][NT][4], const v4 (&w)[TILES][2], const v4 (&x)[NT]) {
  TwoSteps b[NT][2];
  #pragma unroll
  for (int n = 0; n < NT; n++)
    #pragma unroll
    for (int s = 0; s < 2; s++) b[n][s].split(x[n], s);
  #pragma unroll
  for (int m = 0; m < TILES; m++) {
    float c[NT][4] = {};
    #pragma unroll
    for (int s = 0; s < 2; s++) {
      TwoSteps rows[2];
      #pragma unroll
      for (int h = 0; h < 2; h++) rows[h].split(w[m][h], s);
      const u32 high[4] = {rows[0].high[0], rows[1].high[0], rows[0].high[1], rows[1].high[1]};
      const u32 low[4] = {rows[0].low[0], rows[1].low[0], rows[0].low[1], rows[1].low[1]};
      #pragma unroll
      for (int n = 0; n < NT; n++) {
        mma_16x8x8(c[n], low, b[n][s].high);
        mma_16x8x8(c[n], high, b[n][s].low);
        mma_16x8x8(c[n], high, b[n][s].high);
      }
    }
    #pragma unroll
    for (int n = 0; n < NT; n++)
      #pragma unroll
      for (int i = 0; i < 4; i++) sums[m][n][i] += c[n][i];
  }
}
