// The types with blocks of 32 values and one f16 scale (and minimum). Tiles:
//   Q4_0 2304 B   0: nibbles 4 x 512;  2048: 8 B a lane, scales of its four blocks
//   Q4_1 2560 B   as Q4_0;  2304: 8 B a lane, minima
//   Q5_0 2816 B   0: nibbles;  2048: fifth bits 512;  2560: scales
//   Q5_1 3072 B   as Q5_0;  2816: minima
//   Q8_0 4352 B   0: codes 8 x 512, load 2j + h: group j of row g + 8h;  4096: scales
#pragma once
#include "quant_bits.h"

// The four scales of a lane as floats and, for fragments, as pairs of halves. Index: 2 * (row g + 8) + (j >> 1).
struct BlockHalves {
  v2 h;
  MEM void load(const u8* p, int lane) { h = ld8s(p + lane * 8); }
  MEM u32 bits(int k) const { return (word(h, k >> 1) >> (16 * (k & 1))) & 0xffffu; }
  MEM float value(int k) const { return h2f((f16)bits(k)); }
  MEM u32 pair(int k) const { return splat((f16)bits(k)); }
};

// y += scale * sum of (code - OFFSET) * x, for the types without minima
template <int OFFSET, class Q>
DEV void dot_scaled(const Q& q, const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) {
  #pragma unroll
  for (int b = 0; b < 2; b++) {
    float f0 = 0.f, f1 = 0.f;
    #pragma unroll
    for (int j = 2 * b; j < 2 * b + 2; j++) {
      i32 s0, s1;
      group_dot(q, xq, lane, j, s0, s1);
      const xmeta m = group_meta(xm, lane, j);
      const float offset = OFFSET ? -(float)OFFSET * m.s : 0.f;
      f0 += fma_(m.d, (float)s0, offset);
      f1 += fma_(m.d, (float)s1, offset);
    }
    y0 = fma_(q.scale(b), f0, y0);
    y1 = fma_(q.scale(2 + b), f1, y1);
  }
}
// y += scale * sum of code * x + minimum * sum of x
template <class Q>
DEV void dot_affine(const Q& q, const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) {
  #pragma unroll
  for (int b = 0; b < 2; b++) {
    float f0 = 0.f, f1 = 0.f, sum = 0.f;
    #pragma unroll
    for (int j = 2 * b; j < 2 * b + 2; j++) {
      i32 s0, s1;
      group_dot(q, xq, lane, j, s0, s1);
      const xmeta m = group_meta(xm, lane, j);
      f0 = fma_(m.d, (float)s0, f0);
      f1 = fma_(m.d, (float)s1, f1);
      sum += m.s;
    }
    y0 = fma_(q.d.value(b), f0, fma_(q.m.value(b), sum, y0));
    y1 = fma_(q.d.value(2 + b), f1, fma_(q.m.value(2 + b), sum, y1));
  }
}

// Returns a nibble of a 32-value block: element k < 16 is the low nibble of byte k, element k + 16 the high one.
DEV u32 nibble32(const u8* quants, u32 k) { return (quants[k & 15] >> (4 * (k >> 4))) & 15u; }
DEV u32 fifth_bit(const u8* bits, u32 k) { return (bits[k >> 3] >> (k & 7)) & 1u; }

struct Q4_0 {
  static constexpr u32 BLOCK = 32, BLOCK_BYTES = 18, BYTES = 2304, COLS = 256;
  static constexpr bool FLOATS = false;
  v4 q[4]; BlockHalves d;
  MEM void load(const u8* tile, int lane) {
    #pragma unroll
    for (int j = 0; j < 4; j++) q[j] = ld16s(tile + j * 512 + lane * 16);
    d.load(tile + 2048, lane);
  }
  MEM void codes(int j, int i, u32 c[2]) const {
    const u32 w = word(q[j], i);
    c[0] = w & 0x0f0f0f0fu; c[1] = (w >> 4) & 0x0f0f0f0fu;
  }
  MEM float scale(int k) const { return d.value(k); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_scaled<8>(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {}
  MEM void fragment(int j, int i, u32 a[4]) const {
    nibble_halves(word(q[j], i), 0x64086408u, 0xd480d480u, a);
    scale_rows(a, d.pair(j >> 1), d.pair(2 + (j >> 1)));
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    return half_at(tile + 2048 + e.lane * 8 + 2 * e.block32()) * ((float)nibble_at(tile, e) - 8.f);
  }
  MEM static u32 code(const u8* block, u32 k) { return nibble32(block + 2, k); }
  MEM static void pack(u8* tile, int lane, const RawRows<Q4_0>& raw) {
    pack_nibbles(tile, lane, raw);
    pack_halves(tile + 2048, lane, raw, 0);
  }
};

struct Q4_1 {
  static constexpr u32 BLOCK = 32, BLOCK_BYTES = 20, BYTES = 2560, COLS = 256;
  static constexpr bool FLOATS = false;
  v4 q[4]; BlockHalves d, m;
  MEM void load(const u8* tile, int lane) {
    #pragma unroll
    for (int j = 0; j < 4; j++) q[j] = ld16s(tile + j * 512 + lane * 16);
    d.load(tile + 2048, lane);
    m.load(tile + 2304, lane);
  }
  MEM void codes(int j, int i, u32 c[2]) const {
    const u32 w = word(q[j], i);
    c[0] = w & 0x0f0f0f0fu; c[1] = (w >> 4) & 0x0f0f0f0fu;
  }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_affine(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {}
  MEM void fragment(int j, int i, u32 a[4]) const {
    const int b = j >> 1;
    nibble_halves(word(q[j], i), H1024, 0xd400d400u, a);
    scale_rows(a, d.pair(b), d.pair(2 + b), m.pair(b), m.pair(2 + b));
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    const u32 at = e.lane * 8 + 2 * e.block32();
    return add_rn(mul_rn(half_at(tile + 2048 + at), (float)nibble_at(tile, e)), half_at(tile + 2304 + at));
  }
  MEM static u32 code(const u8* block, u32 k) { return nibble32(block + 4, k); }
  MEM static void pack(u8* tile, int lane, const RawRows<Q4_1>& raw) {
    pack_nibbles(tile, lane, raw);
    pack_halves(tile + 2048, lane, raw, 0);
    pack_halves(tile + 2304, lane, raw, 2);
  }
};

// Nibbles, each with a fifth bit: bit i of a byte of `high` belongs to row g, bit 4 + i to row g + 8.
struct FiveBits {
  v4 q[4], high;
  MEM void load(const u8* tile, int lane) {
    #pragma unroll
    for (int j = 0; j < 4; j++) q[j] = ld16s(tile + j * 512 + lane * 16);
    high = ld16s(tile + 2048 + lane * 16);
  }
  MEM void codes(int j, int i, u32 c[2]) const {
    const u32 w = word(q[j], i), h = word(high, j);
    c[0] = (w & 0x0f0f0f0fu) | ((h << (4 - i)) & 0x10101010u);
    c[1] = ((w >> 4) & 0x0f0f0f0fu) | ((h >> i) & 0x10101010u);
  }
};
DEV u32 five_bits_at(const u8* tile, const Place& e) { return nibble_at(tile, e) | bit_at(tile + 2048, e) << 4; }

struct Q5_0 {
  static constexpr u32 BLOCK = 32, BLOCK_BYTES = 22, BYTES = 2816, COLS = 256;
  static constexpr bool FLOATS = false;
  FiveBits q; BlockHalves d;
  MEM void load(const u8* tile, int lane) { q.load(tile, lane); d.load(tile + 2560, lane); }
  MEM void codes(int j, int i, u32 c[2]) const { q.codes(j, i, c); }
  MEM float scale(int k) const { return d.value(k); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_scaled<16>(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {}
  MEM void fragment(int j, int i, u32 a[4]) const {
    u32 c[2];
    codes(j, i, c);
    byte_halves(c, 0x64106410u, a);
    scale_rows(a, d.pair(j >> 1), d.pair(2 + (j >> 1)));
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    return half_at(tile + 2560 + e.lane * 8 + 2 * e.block32()) * ((float)five_bits_at(tile, e) - 16.f);
  }
  MEM static u32 code(const u8* block, u32 k) { return nibble32(block + 6, k) | fifth_bit(block + 2, k) << 4; }
  MEM static void pack(u8* tile, int lane, const RawRows<Q5_0>& raw) {
    pack_nibbles(tile, lane, raw);
    pack_bits(tile + 2048, lane, raw, 4);
    pack_halves(tile + 2560, lane, raw, 0);
  }
};

struct Q5_1 {
  static constexpr u32 BLOCK = 32, BLOCK_BYTES = 24, BYTES = 3072, COLS = 256;
  static constexpr bool FLOATS = false;
  FiveBits q; BlockHalves d, m;
  MEM void load(const u8* tile, int lane) { q.load(tile, lane); d.load(tile + 2560, lane); m.load(tile + 2816, lane); }
  MEM void codes(int j, int i, u32 c[2]) const { q.codes(j, i, c); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_affine(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {}
  MEM void fragment(int j, int i, u32 a[4]) const {
    const int b = j >> 1;
    u32 c[2];
    codes(j, i, c);
    byte_halves(c, H1024, a);
    scale_rows(a, d.pair(b), d.pair(2 + b), m.pair(b), m.pair(2 + b));
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    const u32 at = e.lane * 8 + 2 * e.block32();
    return add_rn(mul_rn(half_at(tile + 2560 + at), (float)five_bits_at(tile, e)), half_at(tile + 2816 + at));
  }
  MEM static u32 code(const u8* block, u32 k) { return nibble32(block + 8, k) | fifth_bit(block + 4, k) << 4; }
  MEM static void pack(u8* tile, int lane, const RawRows<Q5_1>& raw) {
    pack_nibbles(tile, lane, raw);
    pack_bits(tile + 2048, lane, raw, 4);
    pack_halves(tile + 2560, lane, raw, 0);
    pack_halves(tile + 2816, lane, raw, 2);
  }
};

struct Q8_0 {
  static constexpr u32 BLOCK = 32, BLOCK_BYTES = 34, BYTES = 4352, COLS = 256;
  static constexpr bool FLOATS = false;
  v4 q[8]; BlockHalves d;
  MEM void load(const u8* tile, int lane) {
    #pragma unroll
    for (int j = 0; j < 8; j++) q[j] = ld16s(tile + j * 512 + lane * 16);
    d.load(tile + 4096, lane);
  }
  MEM void codes(int j, int i, u32 c[2]) const { c[0] = word(q[2 * j], i); c[1] = word(q[2 * j + 1], i); }
  MEM float scale(int k) const { return d.value(k); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_scaled<0>(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {}
  MEM void fragment(int j, int i, u32 a[4]) const {
    u32 c[2];
    codes(j, i, c);
    signed_byte_halves(c, a);
    scale_rows(a, d.pair(j >> 1), d.pair(2 + (j >> 1)));
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    const i8 q = (i8)tile[(2 * e.j + e.half) * 512 + e.lane * 16 + e.i * 4 + e.p];
    return half_at(tile + 4096 + e.lane * 8 + 2 * e.block32()) * (float)q;
  }
  MEM static u32 code(const u8* block, u32 k) { return block[2 + k]; }
  MEM static void pack(u8* tile, int lane, const RawRows<Q8_0>& raw) {
    #pragma unroll 1
    for (int k = 0; k < 8; k++) {
      u32 w[4];
      for (int i = 0; i < 4; i++) {
        w[i] = 0;
        for (int p = 0; p < 4; p++) w[i] |= raw.code(k & 1, 16 * (k >> 1) + 4 * i + p) << (8 * p);
      }
      store16(tile + k * 512 + lane * 16, w);
    }
    pack_halves(tile + 4096, lane, raw, 0);
  }
};
