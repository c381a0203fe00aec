// The 4-bit types whose codes index a table of 16 signed levels. Tiles:
//   IQ4_NL 2304 B   0: nibbles 4 x 512;  2048: 8 B a lane, f16 scales of its four blocks
//   IQ4_XS 2176 B   0: nibbles;  2048: u16 a lane, low nibbles of its blocks' scales;  2112: byte a lane, their upper
//                   bit pairs;  2144: 16 x d
//   MXFP4  2176 B   0: nibbles;  2048: u32 a lane, E8M0 exponents of its blocks
//   NVFP4  2336 B   0: nibbles;  2048: 8 B a lane, E4M3 scales of its groups;  2304: the tensor's scale, f32
#pragma once
#include "quant_k.h"

// -127 -104 -83 -65  -49 -35 -22 -10  1 13 25 38  53 69 89 113
struct Iq4Levels { static constexpr u32 L0 = 0xbfad9881u, L1 = 0xf6eaddcfu, L2 = 0x26190d01u, L3 = 0x71594535u; };
// E2M1 doubled, so that all levels are whole (the scale is halved): 0 1 2 3  4 6 8 12  0 -1 -2 -3  -4 -6 -8 -12
struct E2m1Levels { static constexpr u32 L0 = 0x03020100u, L1 = 0x0c080604u, L2 = 0xfdfeff00u, L3 = 0xf4f8fafcu; };

template <class Levels> struct TableNibbles {
  v4 q[4];
  MEM void load(const u8* tile, int lane) {
    #pragma unroll
    for (int j = 0; j < 4; j++) q[j] = ld16s(tile + j * 512 + lane * 16);
  }
  MEM void codes(int j, int i, u32 c[2]) const {
    lookup16(word(q[j], i), Levels::L0, Levels::L1, Levels::L2, Levels::L3, c[0], c[1]);
  }
  MEM void fragment(int j, int i, u32 s0, u32 s1, u32 a[4]) const {
    u32 c[2];
    codes(j, i, c);
    signed_byte_halves(c, a);
    scale_rows(a, s0, s1);
  }
  MEM static float level(u32 code) {
    const u32 w = code < 8 ? (code < 4 ? Levels::L0 : Levels::L1) : (code < 12 ? Levels::L2 : Levels::L3);
    return signed_byte_of(w, code & 3);
  }
};

struct IQ4_NL {
  static constexpr u32 BLOCK = 32, BLOCK_BYTES = 18, BYTES = 2304, COLS = 256;
  static constexpr bool FLOATS = false;
  using Codes = TableNibbles<Iq4Levels>;
  Codes q; BlockHalves d;
  MEM void load(const u8* tile, int lane) { q.load(tile, lane); d.load(tile + 2048, lane); }
  MEM void codes(int j, int i, u32 c[2]) const { q.codes(j, i, c); }
  MEM float scale(int k) const { return d.value(k); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_scaled<0>(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {}
  MEM void fragment(int j, int i, u32 a[4]) const { q.fragment(j, i, d.pair(j >> 1), d.pair(2 + (j >> 1)), a); }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    return half_at(tile + 2048 + e.lane * 8 + 2 * e.block32()) * Codes::level(nibble_at(tile, e));
  }
  MEM static u32 code(const u8* block, u32 k) { return nibble32(block + 2, k); }
  MEM static void pack(u8* tile, int lane, const RawRows<IQ4_NL>& raw) {
    pack_nibbles(tile, lane, raw);
    pack_halves(tile + 2048, lane, raw, 0);
  }
};

struct IQ4_XS {
  static constexpr u32 BLOCK = 256, BLOCK_BYTES = 136, BYTES = 2176, COLS = 256;
  static constexpr bool FLOATS = false;
  using Codes = TableNibbles<Iq4Levels>;
  Codes q; u32 nibbles, upper; RowHalf d;
  u32 s2[4];
  MEM void load(const u8* tile, int lane) {
    q.load(tile, lane);
    nibbles = ld2s(tile + 2048 + lane * 2); upper = ld1s(tile + 2112 + lane);
    d.load(tile + 2144, lane);
  }
  MEM void codes(int j, int i, u32 c[2]) const { q.codes(j, i, c); }
  MEM float scale(int k) const {
    return d.d(k >> 1) * (float)((i32)(((nibbles >> (4 * k)) & 15u) | ((upper >> (2 * k)) & 3u) << 4) - 32);
  }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_scaled<0>(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {
    #pragma unroll
    for (int k = 0; k < 4; k++) s2[k] = splat_half(scale(k));
  }
  MEM void fragment(int j, int i, u32 a[4]) const { q.fragment(j, i, s2[j >> 1], s2[2 + (j >> 1)], a); }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    const u32 k = e.block32();
    const u32 nibble = (u16_at(tile + 2048 + e.lane * 2) >> (4 * k)) & 15u;
    const u32 upper = (tile[2112 + e.lane] >> (2 * k)) & 3u;
    return mul_rn(row_half(tile + 2144, e, 2), (float)(nibble | upper << 4) - 32.f) * Codes::level(nibble_at(tile, e));
  }
  MEM static u32 code(const u8* block, u32 k) { return nibble32(block + 8 + (k >> 5) * 16, k & 31); }
  MEM static void pack(u8* tile, int lane, const RawRows<IQ4_XS>& raw) {
    pack_nibbles(tile, lane, raw);
    u32 nibbles = 0, upper = 0;
    for (u32 k = 0; k < 4; k++) {
      const u8* block = raw.block(k >> 1, 0);
      if (!block) continue;
      const u32 sub = 2 * (lane & 3) + (k & 1);
      nibbles |= ((block[4 + (sub >> 1)] >> (4 * (sub & 1))) & 15u) << (4 * k);
      upper |= ((u16_at(block + 2) >> (2 * sub)) & 3u) << (2 * k);
    }
    *(u16*)(tile + 2048 + lane * 2) = (u16)nibbles;
    tile[2112 + lane] = (u8)upper;
    pack_row_halves(tile + 2144, 2, lane, raw, 0);
  }
};

struct MXFP4 {
  static constexpr u32 BLOCK = 32, BLOCK_BYTES = 17, BYTES = 2176, COLS = 256;
  static constexpr bool FLOATS = false;
  using Codes = TableNibbles<E2m1Levels>;
  Codes q; u32 exponents;
  u32 s2[4];
  MEM void load(const u8* tile, int lane) { q.load(tile, lane); exponents = ld4s(tile + 2048 + lane * 4); }
  MEM void codes(int j, int i, u32 c[2]) const { q.codes(j, i, c); }
  // 2^(e - 128): a subnormal f32 for e < 2
  MEM static float power(u32 e) { return bits_f32(e < 2 ? 0x00200000u << e : (e - 1) << 23); }
  MEM float scale(int k) const { return power((exponents >> (8 * k)) & 255u); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_scaled<0>(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {
    #pragma unroll
    for (int k = 0; k < 4; k++) s2[k] = splat_half(scale(k));
  }
  MEM void fragment(int j, int i, u32 a[4]) const { q.fragment(j, i, s2[j >> 1], s2[2 + (j >> 1)], a); }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    return power(tile[2048 + e.lane * 4 + e.block32()]) * Codes::level(nibble_at(tile, e));
  }
  MEM static u32 code(const u8* block, u32 k) { return nibble32(block + 1, k); }
  MEM static void pack(u8* tile, int lane, const RawRows<MXFP4>& raw) {
    pack_nibbles(tile, lane, raw);
    for (int k = 0; k < 4; k++) {
      const u8* block = raw.block(k >> 1, 32 * (k & 1));
      tile[2048 + lane * 4 + k] = block ? block[0] : 0;
    }
  }
};

struct NVFP4 {
  static constexpr u32 BLOCK = 64, BLOCK_BYTES = 36, BYTES = 2336, COLS = 256;
  static constexpr bool FLOATS = false;
  using Codes = TableNibbles<E2m1Levels>;
  Codes q; v2 s; float of_tensor;
  u32 s2[2][4];
  MEM void load(const u8* tile, int lane) {
    q.load(tile, lane);
    s = ld8s(tile + 2048 + lane * 8);
    of_tensor = bits_f32(ld4s(tile + 2304));
  }
  MEM void codes(int j, int i, u32 c[2]) const { q.codes(j, i, c); }
  // Half of an E4M3 number without a sign. As a half it is 2^8 times smaller: the bias there is 15 instead of 7.
  MEM static float scale(u32 bits) { return 128.f * h2f((f16)(bits << 7)); }
  MEM float scale(int h, int j) const { return scale((word(s, h) >> (8 * j)) & 255u); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    float f0 = 0.f, f1 = 0.f;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      i32 s0, s1;
      group_dot(*this, xq, lane, j, s0, s1);
      const xmeta m = group_meta(xm, lane, j);
      f0 = fma_(scale(0, j), m.d * (float)s0, f0);
      f1 = fma_(scale(1, j), m.d * (float)s1, f1);
    }
    y0 = fma_(of_tensor, f0, y0);
    y1 = fma_(of_tensor, f1, y1);
  }
  MEM void prepare() {
    #pragma unroll
    for (int h = 0; h < 2; h++)
      #pragma unroll
      for (int j = 0; j < 4; j++) s2[h][j] = splat_half(of_tensor * scale(h, j));
  }
  MEM void fragment(int j, int i, u32 a[4]) const { q.fragment(j, i, s2[0][j], s2[1][j], a); }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    return scale(tile[2048 + e.lane * 8 + e.group()]) * Codes::level(nibble_at(tile, e)) * *(const float*)(tile + 2304);
  }
  // The first eight of 16 values are low nibbles of eight bytes, the others high ones.
  MEM static u32 code(const u8* block, u32 k) {
    return (block[4 + (k >> 4) * 8 + (k & 7)] >> (4 * ((k >> 3) & 1))) & 15u;
  }
  MEM static void pack(u8* tile, int lane, const RawRows<NVFP4>& raw) {
    pack_nibbles(tile, lane, raw);
    for (int k = 0; k < 8; k++) {
      const u8* block = raw.block(k >> 2, 0);
      const u32 bits = block ? block[k & 3] & 127u : 0;
      tile[2048 + lane * 8 + k] = (u8)(bits == 127 ? 0 : bits);      // NaN counts as zero
    }
    if (lane < 8) *(float*)(tile + 2304 + lane * 4) = raw.scale;     // one, and padding
  }
};
