// Shared code of the tensor types: positions in a tile, codes to halves, integer dots, blocks of the file to tiles.
#pragma once
#include "gpu.h"

// Scale d of 16 int8 activations and d * their sum, which multiplies minima and offsets of the weights.
struct alignas(8) xmeta { float d, s; };

// The order of a dot's activations is [super-block][j][t][16]; a piece with COLS below 256 is a range of j.
DEV u32 x_index(u32 c) { return (c & ~255u) | (c & 0x30) << 2 | (c & 0xc0) >> 2 | (c & 15); }

DEV u32 word(const v4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
DEV u32 word(const v2& v, int i) { return i == 0 ? v.x : v.y; }
DEV u32 u16_at(const u8* p) { return (u32)p[0] | (u32)p[1] << 8; }    // blocks of the file have any alignment
DEV float half_at(const u8* p) { return h2f((f16)u16_at(p)); }

// ------------------------------------------------------------------------------------------------ codes to halves
// 0x6400 is the half 1024, whose last bit counts 1: OR-ing a code into it adds the code, exactly. `zero`: 1024 +
// offset, the half that means 0, in both halves.
constexpr u32 H1024 = 0x64006400u;
DEV u32 even_halves(u32 codes, u32 zero) { return hsub2((codes & 0x00ff00ffu) | H1024, zero); }
DEV u32 odd_halves(u32 codes, u32 zero) { return hsub2(((codes >> 8) & 0x00ff00ffu) | H1024, zero); }
// High nibbles in place mean 1024 + 16 code. One exact fma turns that into code - offset, without a shift.
DEV u32 high_halves(u32 w, u32 minus_64_less_offset) {
  return hfma2((w & 0x00f000f0u) | H1024, 0x2c002c00u, minus_64_less_offset);
}
// Fragments of 4-bit codes.
DEV void nibble_halves(u32 w, u32 zero, u32 minus_64_less_offset, u32 a[4]) {
  a[0] = hsub2((w & 0x000f000fu) | H1024, zero);
  a[1] = high_halves(w, minus_64_less_offset);
  a[2] = hsub2(((w >> 8) & 0x000f000fu) | H1024, zero);
  a[3] = high_halves(w >> 8, minus_64_less_offset);
}
// Fragments of byte codes, c[0] of row g and c[1] of row g + 8.
DEV void byte_halves(const u32 c[2], u32 zero, u32 a[4]) {
  a[0] = even_halves(c[0], zero); a[1] = even_halves(c[1], zero);
  a[2] = odd_halves(c[0], zero); a[3] = odd_halves(c[1], zero);
}
DEV void signed_byte_halves(const u32 c[2], u32 a[4]) {
  const u32 shifted[2] = {c[0] ^ 0x80808080u, c[1] ^ 0x80808080u};     // -128..127 as 0..255
  byte_halves(shifted, 0x64806480u, a);
}
// a = a * scale (+ minimum), rows g and g + 8 apart
DEV void scale_rows(u32 a[4], u32 s0, u32 s1) {
  a[0] = hmul2(a[0], s0); a[1] = hmul2(a[1], s1); a[2] = hmul2(a[2], s0); a[3] = hmul2(a[3], s1);
}
DEV void scale_rows(u32 a[4], u32 s0, u32 s1, u32 m0, u32 m1) {
  a[0] = hfma2(a[0], s0, m0); a[1] = hfma2(a[1], s1, m1); a[2] = hfma2(a[2], s0, m0); a[3] = hfma2(a[3], s1, m1);
}
DEV u32 splat_half(float f) { return splat(f2h_sat(f)); }

DEV float byte_of(u32 w, int i) { return (float)((w >> (8 * i)) & 255u); }
DEV float signed_byte_of(u32 w, int i) { return (float)(i8)(w >> (8 * i)); }

// Returns a pair of halves, both d (or -d) times byte `i` of a word. Products of halves are as exact as products of
// floats here: 11 bits by 8, rounded once. On NVIDIA conversions have a quarter of the rate.
#if GPU_NV
DEV u32 byte_pair(u32 w, int i) { return __byte_perm(w, H1024, 0x5050u + 0x0101u * i); }
template <bool NEGATIVE = false> DEV u32 splat_product(f16 d, u32 w, int i) {
  const u32 byte = byte_pair(w, i);
  return hclamp2(hmul2(NEGATIVE ? hsub2(H1024, byte) : hsub2(byte, H1024), splat(d)));
}
DEV u32 splat_signed_product(f16 d, u32 w, int i) {
  return hclamp2(hmul2(hsub2(byte_pair(w ^ 0x80808080u, i), 0x64806480u), splat(d)));
}
#else
template <bool NEGATIVE = false> DEV u32 splat_product(f16 d, u32 w, int i) {
  return splat_half((NEGATIVE ? -h2f(d) : h2f(d)) * byte_of(w, i));
}
DEV u32 splat_signed_product(f16 d, u32 w, int i) { return splat_half(h2f(d) * signed_byte_of(w, i)); }
#endif

// ------------------------------------------------------------------------------------------------ dot
// Integer products of group j for both rows: s0, s1. `Q::codes(j, i, c)` gives four codes (bytes) of each row.
template <class Q> DEV void group_dot(const Q& q, const i8* xq, int lane, int j, i32& s0, i32& s1) {
  const v4 x = ld16(xq + 64 * j + 16 * (lane & 3));
  s0 = s1 = 0;
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    u32 c[2];
    q.codes(j, i, c);
    s0 = dot4(c[0], word(x, i), s0);
    s1 = dot4(c[1], word(x, i), s1);
  }
}
DEV xmeta group_meta(const xmeta* xm, int lane, int j) {
  const v2 m = ld8(xm + 4 * j + (lane & 3));
  return {bits_f32(m.x), bits_f32(m.y)};
}

// ---------------------------------------------------------------------------------------------- positions in a tile
// Element (row, col) of a tile: lane, half (0: row g, 1: row g + 8), group j, word i, byte p.
struct Place {
  u32 half, lane, j, i, p;
  MEM Place(u32 row, u32 col)
      : half(row >> 3), lane(4 * (row & 7) + (col >> 6)), j((col >> 4) & 3), i((col >> 2) & 3), p(col & 3) {}
  MEM u32 block32() const { return 2 * half + (j >> 1); }               // which of the lane's four 32-value blocks
  MEM u32 group() const { return 4 * half + j; }                        // which of its eight groups
};
DEV u32 nibble_at(const u8* quants, const Place& e) {
  return (quants[e.j * 512 + e.lane * 16 + e.i * 4 + e.p] >> (4 * e.half)) & 15u;
}
// Two bits: load j / 2 of a lane holds words {j even row g, j even row g + 8, j odd row g, j odd row g + 8}; bits 2i.
DEV u32 pair_at(const u8* pairs, const Place& e) {
  return (pairs[(e.j >> 1) * 512 + e.lane * 16 + ((e.j & 1) * 2 + e.half) * 4 + e.p] >> (2 * e.i)) & 3u;
}
// One bit: word j of a lane's 16 bytes; bit i for row g, bit 4 + i for row g + 8.
DEV u32 bit_at(const u8* bits, const Place& e) {
  return (bits[e.lane * 16 + e.j * 4 + e.p] >> (4 * e.half + e.i)) & 1u;
}

// ------------------------------------------------------------------------------------------------ blocks of the file
// The blocks of the file that hold a lane's part of a tile. Null outside the matrix.
template <class Q> struct RawRows {
  const u8* raw;           // row g, if inside
  u64 row_bytes;
  u32 row, rows;           // row g; rows of the matrix
  u32 first, cols;         // first column of the lane; columns of the matrix
  float scale;             // of the matrix
  MEM const u8* block(u32 half, u32 c) const {
    if (row + 8 * half >= rows || first + c >= cols) return nullptr;
    return raw + 8 * half * row_bytes + (u64)((first + c) / Q::BLOCK) * Q::BLOCK_BYTES;
  }
  MEM u32 code(u32 half, u32 c) const {
    const u8* b = block(half, c);
    return b ? Q::code(b, (first + c) % Q::BLOCK) : 0;
  }
  MEM u32 u16_of(u32 half, u32 c, u32 offset) const {
    const u8* b = block(half, c);
    return b ? u16_at(b + offset) : 0;
  }
};
DEV void store16(u8* p, const u32 w[4]) { v4 v; v.x = w[0]; v.y = w[1]; v.z = w[2]; v.w = w[3]; *(v4*)p = v; }

template <class Q> DEV void pack_nibbles(u8* quants, int lane, const RawRows<Q>& raw) {
  #pragma unroll 1
  for (int j = 0; j < 4; j++) {
    u32 w[4];
    for (int i = 0; i < 4; i++) {
      w[i] = 0;
      for (int p = 0; p < 4; p++) {
        const int c = 16 * j + 4 * i + p;
        w[i] |= ((raw.code(0, c) & 15) | (raw.code(1, c) & 15) << 4) << (8 * p);
      }
    }
    store16(quants + j * 512 + lane * 16, w);
  }
}
// Packs bits shift, shift + 1 of the codes.
template <class Q> DEV void pack_pairs(u8* pairs, int lane, const RawRows<Q>& raw, int shift) {
  #pragma unroll 1
  for (int load = 0; load < 2; load++) {
    u32 w[4];
    for (int k = 0; k < 4; k++) {
      w[k] = 0;
      for (int i = 0; i < 4; i++)
        for (int p = 0; p < 4; p++)
          w[k] |= ((raw.code(k & 1, 16 * (2 * load + (k >> 1)) + 4 * i + p) >> shift) & 3) << (8 * p + 2 * i);
    }
    store16(pairs + load * 512 + lane * 16, w);
  }
}
// Packs bit `shift` of the codes.
template <class Q> DEV void pack_bits(u8* bits, int lane, const RawRows<Q>& raw, int shift) {
  #pragma unroll 1
  for (int j = 0; j < 4; j++) {
    u32 w = 0;
    for (int i = 0; i < 4; i++)
      for (int p = 0; p < 4; p++) {
        const int c = 16 * j + 4 * i + p;
        w |= (((raw.code(0, c) >> shift) & 1) | ((raw.code(1, c) >> shift) & 1) << 4) << (8 * p + i);
      }
    *(u32*)(bits + lane * 16 + j * 4) = w;
  }
}
// Packs a half (at `offset` of a block) of each of the lane's four 32-value blocks, in this order:
// (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1).
template <class Q> DEV void pack_halves(u8* halves, int lane, const RawRows<Q>& raw, int offset) {
  for (int k = 0; k < 4; k++) *(u16*)(halves + lane * 8 + 2 * k) = (u16)raw.u16_of(k >> 1, 32 * (k & 1), offset);
}
// Packs a half of each of the 16 rows; the group's first lane of a row stores it.
template <class Q> DEV void pack_row_halves(u8* halves, int stride, int lane, const RawRows<Q>& raw, int offset) {
  if (lane & 3) return;
  for (int h = 0; h < 2; h++) *(u16*)(halves + stride * ((lane >> 2) + 8 * h)) = (u16)raw.u16_of(h, 0, offset);
}
