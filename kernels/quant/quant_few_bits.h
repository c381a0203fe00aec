// The types of one or two bits under one f16 scale of 64 to 256 values: -1, 0, 1 (and 2) times the scale. Tiles:
//   Q1_0   576 B   0: bits 512;  512: 16 x 2 scales, of 128 columns each
//   Q2_0  1152 B   0: bit pairs 2 x 512;  1024: 4 B a lane, scales of rows g and g + 8
//   TQ2_0 1056 B   0: bit pairs;  1024: 16 scales
//   TQ1_0 1056 B   as TQ2_0: trits, five of which share a byte of the file, have two bits each
#pragma once
#include "quant_k.h"

// y += scale * sum of (code - 1) * x, with a scale for each row of a lane
template <class Q>
DEV void dot_rows(const Q& q, const RowHalf& d, const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) {
  float f0 = 0.f, f1 = 0.f;
  #pragma unroll
  for (int j = 0; j < 4; j++) {
    i32 s0, s1;
    group_dot(q, xq, lane, j, s0, s1);
    const xmeta m = group_meta(xm, lane, j);
    f0 += fma_(m.d, (float)s0, -m.s);
    f1 += fma_(m.d, (float)s1, -m.s);
  }
  y0 = fma_(d.d(0), f0, y0);
  y1 = fma_(d.d(1), f1, y1);
}
// (code - 1) * scale as halves
template <class Q> DEV void few_bits_fragment(const Q& q, const RowHalf& d, int j, int i, u32 a[4]) {
  u32 c[2];
  q.codes(j, i, c);
  byte_halves(c, 0x64016401u, a);
  scale_rows(a, splat(d.d_bits(0)), splat(d.d_bits(1)));
}

struct Q1_0 {
  static constexpr u32 BLOCK = 128, BLOCK_BYTES = 18, BYTES = 576, COLS = 256;
  static constexpr bool FLOATS = false;
  v4 q; RowHalf d;
  MEM void load(const u8* tile, int lane) {
    q = ld16s(tile + lane * 16);
    const u8* scales = tile + 512 + (lane >> 2) * 4 + (lane & 2);
    d.d0 = ld2s(scales); d.d1 = ld2s(scales + 32);
  }
  // 0 and 2, which are 1 more than -1 and 1
  MEM void codes(int j, int i, u32 c[2]) const {
    const u32 w = word(q, j);
    c[0] = (i ? w >> (i - 1) : w << 1) & 0x02020202u;
    c[1] = (w >> (3 + i)) & 0x02020202u;
  }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_rows(*this, d, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {}
  MEM void fragment(int j, int i, u32 a[4]) const { few_bits_fragment(*this, d, j, i, a); }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const float d = half_at(tile + 512 + row * 4 + (col >> 7) * 2);
    return bit_at(tile, Place(row, col)) ? d : -d;
  }
  MEM static u32 code(const u8* block, u32 k) { return (block[2 + (k >> 3)] >> (k & 7)) & 1u; }
  MEM static void pack(u8* tile, int lane, const RawRows<Q1_0>& raw) {
    pack_bits(tile, lane, raw, 0);
    if (lane & 1) return;
    for (u32 h = 0; h < 2; h++)
      *(u16*)(tile + 512 + ((lane >> 2) + 8 * h) * 4 + (lane & 2)) = (u16)raw.u16_of(h, 0, 0);
  }
};

// Bit pairs of values -1, 0, 1 and 2.
struct SignedPairs {
  v4 q[2]; RowHalf d;
  MEM void load(const u8* tile, int lane) { q[0] = ld16s(tile + lane * 16); q[1] = ld16s(tile + 512 + lane * 16); }
  MEM void codes(int j, int i, u32 c[2]) const {
    for (int h = 0; h < 2; h++) c[h] = (pair_word(q, j, h) >> (2 * i)) & 0x03030303u;
  }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_rows(*this, d, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {}
  MEM void fragment(int j, int i, u32 a[4]) const { few_bits_fragment(*this, d, j, i, a); }
  MEM static float level(const u8* tile, const Place& e) { return (float)pair_at(tile, e) - 1.f; }
};

struct Q2_0 : SignedPairs {
  static constexpr u32 BLOCK = 64, BLOCK_BYTES = 18, BYTES = 1152, COLS = 256;
  static constexpr bool FLOATS = false;
  MEM void load(const u8* tile, int lane) {
    SignedPairs::load(tile, lane);
    const u32 scales = ld4s(tile + 1024 + lane * 4);
    d.d0 = scales & 0xffffu; d.d1 = scales >> 16;
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    return half_at(tile + 1024 + e.lane * 4 + 2 * e.half) * level(tile, e);
  }
  // Four codes of a byte, one in each byte of a word.
  MEM static u32 spread(u32 codes) { return (codes | codes << 6 | codes << 12 | codes << 18) & 0x03030303u; }
  // A lane's 64 columns are one block, and its bytes are spread as a whole. NVRTC 13.0 miscompiles a loop over single
  // codes: every second code is wrong.
  MEM static void pack(u8* tile, int lane, const RawRows<Q2_0>& raw) {
    #pragma unroll 1
    for (int load = 0; load < 2; load++) {
      u32 w[4];
      for (int k = 0; k < 4; k++) {
        const u8* block = raw.block(k & 1, 0);
        w[k] = 0;
        for (int i = 0; block && i < 4; i++) w[k] |= spread(block[2 + 4 * (2 * load + (k >> 1)) + i]) << (2 * i);
      }
      store16(tile + load * 512 + lane * 16, w);
    }
    *(u32*)(tile + 1024 + lane * 4) = raw.u16_of(0, 0, 0) | raw.u16_of(1, 0, 0) << 16;
  }
};

// Super-blocks of 256 values under one scale at byte SCALE of a block.
template <class Q, int SCALE> struct Ternary : SignedPairs {
  static constexpr u32 BLOCK = 256, BLOCK_BYTES = SCALE + 2, BYTES = 1056, COLS = 256;
  static constexpr bool FLOATS = false;
  MEM void load(const u8* tile, int lane) { SignedPairs::load(tile, lane); d.load(tile + 1024, lane); }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    return row_half(tile + 1024, e, 2) * level(tile, e);
  }
  MEM static void pack(u8* tile, int lane, const RawRows<Q>& raw) {
    pack_pairs(tile, lane, raw, 0);
    pack_row_halves(tile + 1024, 2, lane, raw, SCALE);
  }
};

struct TQ2_0 : Ternary<TQ2_0, 64> {
  MEM static u32 code(const u8* block, u32 k) { return pair256(block, k); }
};

struct TQ1_0 : Ternary<TQ1_0, 52> {
  // 160 values in 32 bytes, 80 in 16, 16 in four: of each run first the first digits of all bytes. A byte is a fraction
  // in base three. Each multiplication by three moves the next digit into the whole part, which is then removed.
  MEM static u32 code(const u8* block, u32 k) {
    const u32 run = k < 160 ? 32 : k < 240 ? 16 : 4, first = k < 160 ? 0 : k < 240 ? 32 : 48;
    const u32 at = k < 160 ? k : k < 240 ? k - 160 : k - 240;
    u32 fraction = block[first + at % run];
    for (u32 t = at / run; t; t--) fraction = (fraction * 3) & 255u;
    return fraction * 3 >> 8;
  }
};
