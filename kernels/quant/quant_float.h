// The float types. A tile has four parts, one for each group j, of 16 rows x 64 columns. A kernel may load less than a
// tile at once. `gemv` does so: two whole tiles, one of them prefetched, do not fit the registers.
//   F16, BF16  8192 B   part of 4 x 512, load 2h + i / 2: row g + 8h, words i, i + 1; a word is (k0, k2, k1, k3)
//   F32       16384 B   part of 8 x 512, load 4h + i: row g + 8h, word i
#pragma once
#include "quant_bits.h"

// The order of a dot's float activations is [super-block][j][i][t][4]: a group reads adjacent elements at once.
DEV u32 float_index(u32 c) { return (c & ~255u) | (c & 0x3c) << 2 | (c & 0xc0) >> 4 | (c & 3); }

// PARTS parts of a tile, from `tile` on.
template <bool BRAIN, int PARTS> struct HalfTile {
  static constexpr u32 BLOCK = 1, BLOCK_BYTES = 2, BYTES = 2048 * PARTS, COLS = 64 * PARTS;
  static constexpr bool FLOATS = true;
  v4 w[PARTS][4];
  MEM void load(const u8* tile, int lane) {
    #pragma unroll
    for (int j = 0; j < PARTS; j++)
      #pragma unroll
      for (int k = 0; k < 4; k++) w[j][k] = ld16s(tile + j * 2048 + k * 512 + lane * 16);
  }
  MEM static float low(u32 pair) { return BRAIN ? bits_f32(pair << 16) : lo_h(pair); }
  MEM static float high(u32 pair) { return BRAIN ? bits_f32(pair & 0xffff0000u) : hi_h(pair); }
  MEM void dot(const float* x, int lane, float& y0, float& y1) const {
    #pragma unroll
    for (int j = 0; j < PARTS; j++)
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        const v4 b = ld16(x + 64 * j + 16 * i + 4 * (lane & 3));
        const u32 e0 = word(w[j][i >> 1], 2 * (i & 1)), o0 = word(w[j][i >> 1], 2 * (i & 1) + 1);
        const u32 e1 = word(w[j][2 + (i >> 1)], 2 * (i & 1)), o1 = word(w[j][2 + (i >> 1)], 2 * (i & 1) + 1);
        const float x0 = bits_f32(b.x), x1 = bits_f32(b.y), x2 = bits_f32(b.z), x3 = bits_f32(b.w);
        y0 = fma_(high(o0), x3, fma_(high(e0), x2, fma_(low(o0), x1, fma_(low(e0), x0, y0))));
        y1 = fma_(high(o1), x3, fma_(high(e1), x2, fma_(low(o1), x1, fma_(low(e1), x0, y1))));
      }
  }
  MEM void prepare() {}
  MEM void fragment(int j, int i, u32 a[4]) const {
    for (int h = 0; h < 2; h++) {
      a[h] = word(w[j][2 * h + (i >> 1)], 2 * (i & 1));
      a[2 + h] = word(w[j][2 * h + (i >> 1)], 2 * (i & 1) + 1);
    }
  }
  MEM static u32 order(u32 p) { return p == 1 ? 2 : p == 2 ? 1 : p; }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    const u32 at = e.j * 2048 + (2 * e.half + (e.i >> 1)) * 512 + e.lane * 16 + (e.i & 1) * 8 + order(e.p) * 2;
    return BRAIN ? bf2f((u16)u16_at(tile + at)) : half_at(tile + at);
  }
  MEM static u32 code(const u8* block, u32) { return u16_at(block); }
  MEM static void pack(u8* tile, int lane, const RawRows<HalfTile>& raw) {
    #pragma unroll 1
    for (int k = 0; k < 16; k++)                           // load k: group k / 4, row (k / 2) % 2
      for (int i = 0; i < 2; i++)
        for (int p = 0; p < 4; p++) {
          const u32 c = 16 * (k >> 2) + 8 * (k & 1) + 4 * i + p;
          *(u16*)(tile + k * 512 + lane * 16 + i * 8 + order(p) * 2) = (u16)raw.code((k >> 1) & 1, c);
        }
  }
};
using F16 = HalfTile<false, 4>;
using BF16 = HalfTile<true, 4>;

template <int PARTS> struct FloatTile {
  static constexpr u32 BLOCK = 1, BLOCK_BYTES = 4, BYTES = 4096 * PARTS, COLS = 64 * PARTS;
  static constexpr bool FLOATS = true;
  v4 w[PARTS][8];
  MEM void load(const u8* tile, int lane) {
    #pragma unroll
    for (int j = 0; j < PARTS; j++)
      #pragma unroll
      for (int k = 0; k < 8; k++) w[j][k] = ld16s(tile + j * 4096 + k * 512 + lane * 16);
  }
  MEM void dot(const float* x, int lane, float& y0, float& y1) const {
    #pragma unroll
    for (int j = 0; j < PARTS; j++)
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        const v4 b = ld16(x + 64 * j + 16 * i + 4 * (lane & 3));
        #pragma unroll
        for (int p = 0; p < 4; p++) {
          y0 = fma_(bits_f32(word(w[j][i], p)), bits_f32(word(b, p)), y0);
          y1 = fma_(bits_f32(word(w[j][4 + i], p)), bits_f32(word(b, p)), y1);
        }
      }
  }
  MEM void prepare() {}
  MEM void fragment(int j, int i, u32 a[4]) const {
    for (int h = 0; h < 2; h++) {
      u32 half[4];
      for (int p = 0; p < 4; p++) half[p] = f2h_sat(bits_f32(word(w[j][4 * h + i], p)));
      a[h] = half[0] | half[2] << 16;
      a[2 + h] = half[1] | half[3] << 16;
    }
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    return *(const float*)(tile + e.j * 4096 + (4 * e.half + e.i) * 512 + e.lane * 16 + e.p * 4);
  }
  MEM static u32 code(const u8* block, u32) { return u16_at(block) | u16_at(block + 2) << 16; }
  MEM static void pack(u8* tile, int lane, const RawRows<FloatTile>& raw) {
    #pragma unroll 1
    for (int k = 0; k < 32; k++) {                         // load k: group k / 8, row (k / 4) % 2, word k % 4
      u32 w[4];
      for (int p = 0; p < 4; p++) w[p] = raw.code((k >> 2) & 1, 16 * (k >> 3) + 4 * (k & 3) + p);
      store16(tile + k * 512 + lane * 16, w);
    }
  }
};
using F32 = FloatTile<4>;

// The unit that a group of `gemv` loads at once from a row of tiles: a tile or a part of it.
template <class T> struct GemvPiece { using Type = T; };
template <> struct GemvPiece<F16> { using Type = HalfTile<false, 2>; };
template <> struct GemvPiece<BF16> { using Type = HalfTile<true, 2>; };
template <> struct GemvPiece<F32> { using Type = FloatTile<1>; };
