// The K types: super-blocks of 256 values; sub-blocks have integer scales (and minima), which one f16 scale multiplies.
// Tiles:
//   Q2_K 1344 B   0: bit pairs 2 x 512;  1024: 8 B a lane, one byte per group: scale | minimum << 4;  1280: 16 x {d,
//                  dmin}
//   Q3_K 1760 B   0: bit pairs;  1024: third bits 512;  1536: u32 a lane, low nibbles of its groups' scales;  1664: u16
//                  a lane, their upper bit pairs;  1728: 16 x d
//   Q4_K 2304 B   0: nibbles 4 x 512;  2048: u32 a lane, one byte per block: scale | (minimum >> 4) << 6;  2176: u16 a
//                  lane, one nibble per block: minimum & 15;  2240: 16 x {d, dmin}
//   Q5_K 2816 B   0: nibbles;  2048: fifth bits 512;  2560, 2688, 2752: as 2048, 2176, 2240 of Q4_K
//   Q6_K 3360 B   0: nibbles;  2048: upper bit pairs 2 x 512;  3072: 8 B a lane, scales of its groups;  3328: 16 x d
// A lane's four blocks of 32 are (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1). Its eight groups of 16 are j = 0..3
// of row g, then of row g + 8.
#pragma once
#include "quant_basic.h"

// d of rows g and g + 8, or {d, dmin}.
struct RowHalf {
  u32 d0, d1;
  MEM void load(const u8* p, int lane) { d0 = ld2s(p + (lane >> 2) * 2); d1 = ld2s(p + 16 + (lane >> 2) * 2); }
  MEM f16 d_bits(int row) const { return (f16)(row ? d1 : d0); }
  MEM float d(int row) const { return h2f(d_bits(row)); }
};
struct RowHalves {
  u32 d0, d1;
  MEM void load(const u8* p, int lane) { d0 = ld4s(p + (lane >> 2) * 4); d1 = ld4s(p + 32 + (lane >> 2) * 4); }
  MEM f16 d_bits(int row) const { return (f16)(row ? d1 : d0); }
  MEM f16 dmin_bits(int row) const { return (f16)((row ? d1 : d0) >> 16); }
  MEM float d(int row) const { return h2f(d_bits(row)); }
  MEM float dmin(int row) const { return h2f(dmin_bits(row)); }
};
// Returns a half of the row of an element; rows are `stride` bytes apart.
DEV float row_half(const u8* p, const Place& e, u32 stride) {
  return half_at(p + stride * ((e.lane >> 2) + 8 * e.half));
}

// ------------------------------------------------------------------------------------------------ Q4_K and Q5_K
// Returns the scale or minimum of sub-block `sub`, 6 bits each, from the 12 packed bytes of the file. The first four of
// each are the low six bits of bytes 0..3 and 4..7. The top two bits of those bytes complete the nibbles of bytes 8..11
// to the last four.
DEV u32 packed_scale(const u8* p, u32 sub) {
  return sub < 4 ? p[sub] & 63 : (p[sub + 4] & 15) | (p[sub - 4] >> 6) << 4;
}
DEV u32 packed_minimum(const u8* p, u32 sub) {
  return sub < 4 ? p[sub + 4] & 63 : (p[sub + 4] >> 4) | (p[sub] >> 6) << 4;
}

// The 6-bit scales and minima of a lane's four blocks, a byte each, and d, dmin; `p` points to 128 + 64 + 64 bytes.
struct SixBitScales {
  u32 a, b; RowHalves d;
  u32 s2[4], m2[4];        // prepared: scale and -minimum as pairs of halves
  MEM void load(const u8* p, int lane) { a = ld4s(p + lane * 4); b = ld2s(p + 128 + lane * 2); d.load(p + 192, lane); }
  MEM u32 scales() const { return a & 0x3f3f3f3fu; }
  MEM u32 minima() const {
    const u32 even = b & 0x0f0fu, odd = (b >> 4) & 0x0f0fu;
    return ((a >> 2) & 0x30303030u) | (even & 15) | (odd & 15) << 8 | (even & 0x0f00u) << 8 | (odd & 0x0f00u) << 16;
  }
  MEM void prepare() {
    const u32 scale = scales(), minimum = minima();
    #pragma unroll
    for (int k = 0; k < 4; k++) {
      s2[k] = splat_product(d.d_bits(k >> 1), scale, k);
      m2[k] = splat_product<true>(d.dmin_bits(k >> 1), minimum, k);
    }
  }
  // y += d * sum of scale * code * x - dmin * sum of minimum * x
  template <class Q> MEM void dot(const Q& q, const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    const u32 scale = scales(), minimum = minima();
    float f0 = 0.f, f1 = 0.f, g0 = 0.f, g1 = 0.f;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      const int k = j >> 1;
      i32 s0, s1;
      group_dot(q, xq, lane, j, s0, s1);
      const xmeta m = group_meta(xm, lane, j);
      f0 = fma_(m.d, (float)(s0 * (i32)((scale >> (8 * k)) & 255u)), f0);
      f1 = fma_(m.d, (float)(s1 * (i32)((scale >> (8 * k + 16)) & 255u)), f1);
      g0 = fma_(m.s, byte_of(minimum, k), g0);
      g1 = fma_(m.s, byte_of(minimum, 2 + k), g1);
    }
    y0 += d.d(0) * f0 - d.dmin(0) * g0;
    y1 += d.d(1) * f1 - d.dmin(1) * g1;
  }
  MEM static float value(const u8* p, const Place& e, u32 code) {
    const u32 k = e.block32(), a = p[e.lane * 4 + k];
    const u32 minimum = (a >> 6) << 4 | ((u16_at(p + 128 + e.lane * 2) >> (4 * k)) & 15u);
    const float scale = mul_rn(row_half(p + 192, e, 4), (float)(a & 63u));
    return add_rn(mul_rn(scale, (float)code), -mul_rn(row_half(p + 194, e, 4), (float)minimum));
  }
  template <class Q> MEM static void pack(u8* p, int lane, const RawRows<Q>& raw) {
    u32 a = 0, b = 0;
    for (u32 k = 0; k < 4; k++) {
      const u8* block = raw.block(k >> 1, 0);
      if (!block) continue;
      const u32 sub = 2 * (lane & 3) + (k & 1), minimum = packed_minimum(block + 4, sub);
      a |= (packed_scale(block + 4, sub) | (minimum >> 4) << 6) << (8 * k);
      b |= (minimum & 15) << (4 * k);
    }
    *(u32*)(p + lane * 4) = a;
    *(u16*)(p + 128 + lane * 2) = (u16)b;
    pack_row_halves(p + 192, 4, lane, raw, 0);
    pack_row_halves(p + 194, 4, lane, raw, 2);
  }
};
// Returns a nibble of a super-block: 32 bytes hold two sub-blocks, the even one in the low nibbles.
DEV u32 nibble256(const u8* quants, u32 k) { return (quants[(k >> 6) * 32 + (k & 31)] >> (4 * ((k >> 5) & 1))) & 15u; }

struct Q4_K {
  static constexpr u32 BLOCK = 256, BLOCK_BYTES = 144, BYTES = 2304, COLS = 256;
  static constexpr bool FLOATS = false;
  v4 q[4]; SixBitScales s;
  MEM void load(const u8* tile, int lane) {
    #pragma unroll
    for (int j = 0; j < 4; j++) q[j] = ld16s(tile + j * 512 + lane * 16);
    s.load(tile + 2048, lane);
  }
  MEM void codes(int j, int i, u32 c[2]) const {
    const u32 w = word(q[j], i);
    c[0] = w & 0x0f0f0f0fu; c[1] = (w >> 4) & 0x0f0f0f0fu;
  }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    s.dot(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() { s.prepare(); }
  MEM void fragment(int j, int i, u32 a[4]) const {
    const int k = j >> 1;
    nibble_halves(word(q[j], i), H1024, 0xd400d400u, a);
    scale_rows(a, s.s2[k], s.s2[2 + k], s.m2[k], s.m2[2 + k]);
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    return SixBitScales::value(tile + 2048, e, nibble_at(tile, e));
  }
  MEM static u32 code(const u8* block, u32 k) { return nibble256(block + 16, k); }
  MEM static void pack(u8* tile, int lane, const RawRows<Q4_K>& raw) {
    pack_nibbles(tile, lane, raw);
    SixBitScales::pack(tile + 2048, lane, raw);
  }
};

struct Q5_K {
  static constexpr u32 BLOCK = 256, BLOCK_BYTES = 176, BYTES = 2816, COLS = 256;
  static constexpr bool FLOATS = false;
  FiveBits q; SixBitScales s;
  MEM void load(const u8* tile, int lane) { q.load(tile, lane); s.load(tile + 2560, lane); }
  MEM void codes(int j, int i, u32 c[2]) const { q.codes(j, i, c); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    s.dot(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() { s.prepare(); }
  MEM void fragment(int j, int i, u32 a[4]) const {
    const int k = j >> 1;
    u32 c[2];
    codes(j, i, c);
    byte_halves(c, H1024, a);
    scale_rows(a, s.s2[k], s.s2[2 + k], s.m2[k], s.m2[2 + k]);
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    return SixBitScales::value(tile + 2560, e, five_bits_at(tile, e));
  }
  MEM static u32 code(const u8* block, u32 k) {
    return nibble256(block + 48, k) | ((block[16 + (k & 31)] >> (k >> 5)) & 1u) << 4;
  }
  MEM static void pack(u8* tile, int lane, const RawRows<Q5_K>& raw) {
    pack_nibbles(tile, lane, raw);
    pack_bits(tile + 2048, lane, raw, 4);
    SixBitScales::pack(tile + 2560, lane, raw);
  }
};

// ------------------------------------------------------------------------------------------------ Q2_K, Q3_K, Q6_K
// Two bits of each code: words {j even row g, j even row g + 8, j odd row g, j odd row g + 8} of load j / 2; bits 2i.
DEV u32 pair_word(const v4 pairs[2], int j, int half) { return word(pairs[j >> 1], 2 * (j & 1) + half); }
// Returns a bit pair of a super-block: 32 bytes hold 128 values, 32 of them in each pair of bits.
DEV u32 pair256(const u8* pairs, u32 k) { return (pairs[(k >> 7) * 32 + (k & 31)] >> (2 * ((k >> 5) & 3))) & 3u; }

// y += d * sum of scale * (code - OFFSET) * x with a signed scale for each group: byte j of scales[row]
template <int OFFSET, class Q>
DEV void dot_groups(const Q& q, const u32 scales[2], const RowHalf& d, const i8* xq, const xmeta* xm, int lane,
                    float& y0, float& y1) {
  float f0 = 0.f, f1 = 0.f;
  #pragma unroll
  for (int j = 0; j < 4; j++) {
    i32 s0, s1;
    group_dot(q, xq, lane, j, s0, s1);
    const xmeta m = group_meta(xm, lane, j);
    f0 = fma_(signed_byte_of(scales[0], j), fma_(m.d, (float)s0, -(float)OFFSET * m.s), f0);
    f1 = fma_(signed_byte_of(scales[1], j), fma_(m.d, (float)s1, -(float)OFFSET * m.s), f1);
  }
  y0 = fma_(d.d(0), f0, y0);
  y1 = fma_(d.d(1), f1, y1);
}

struct Q2_K {
  static constexpr u32 BLOCK = 256, BLOCK_BYTES = 84, BYTES = 1344, COLS = 256;
  static constexpr bool FLOATS = false;
  v4 q[2]; v2 s; RowHalves d;
  u32 s2[2][4], m2[2][4];  // prepared: scale and -minimum of row, group
  MEM void load(const u8* tile, int lane) {
    q[0] = ld16s(tile + lane * 16); q[1] = ld16s(tile + 512 + lane * 16);
    s = ld8s(tile + 1024 + lane * 8);
    d.load(tile + 1280, lane);
  }
  MEM void codes(int j, int i, u32 c[2]) const {
    for (int h = 0; h < 2; h++) c[h] = (pair_word(q, j, h) >> (2 * i)) & 0x03030303u;
  }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    float f0 = 0.f, f1 = 0.f, g0 = 0.f, g1 = 0.f;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      i32 s0, s1;
      group_dot(*this, xq, lane, j, s0, s1);
      const xmeta m = group_meta(xm, lane, j);
      f0 = fma_(m.d, (float)(s0 * (i32)((s.x >> (8 * j)) & 15u)), f0);
      f1 = fma_(m.d, (float)(s1 * (i32)((s.y >> (8 * j)) & 15u)), f1);
      g0 = fma_(m.s, (float)((s.x >> (8 * j + 4)) & 15u), g0);
      g1 = fma_(m.s, (float)((s.y >> (8 * j + 4)) & 15u), g1);
    }
    y0 += d.d(0) * f0 - d.dmin(0) * g0;
    y1 += d.d(1) * f1 - d.dmin(1) * g1;
  }
  MEM void prepare() {
    #pragma unroll
    for (int h = 0; h < 2; h++)
      #pragma unroll
      for (int j = 0; j < 4; j++) {
        s2[h][j] = splat_product(d.d_bits(h), word(s, h) & 0x0f0f0f0fu, j);
        m2[h][j] = splat_product<true>(d.dmin_bits(h), (word(s, h) >> 4) & 0x0f0f0f0fu, j);
      }
  }
  MEM void fragment(int j, int i, u32 a[4]) const {
    u32 c[2];
    codes(j, i, c);
    byte_halves(c, H1024, a);
    scale_rows(a, s2[0][j], s2[1][j], m2[0][j], m2[1][j]);
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    const u32 s = tile[1024 + e.lane * 8 + e.group()];
    const float scale = mul_rn(row_half(tile + 1280, e, 4), (float)(s & 15u));
    return add_rn(mul_rn(scale, (float)pair_at(tile, e)), -mul_rn(row_half(tile + 1282, e, 4), (float)(s >> 4)));
  }
  MEM static u32 code(const u8* block, u32 k) { return pair256(block + 16, k); }
  MEM static void pack(u8* tile, int lane, const RawRows<Q2_K>& raw) {
    pack_pairs(tile, lane, raw, 0);
    for (int k = 0; k < 8; k++) {
      const u8* block = raw.block(k >> 2, 0);
      tile[1024 + lane * 8 + k] = block ? block[4 * (lane & 3) + (k & 3)] : 0;
    }
    pack_row_halves(tile + 1280, 4, lane, raw, 80);
    pack_row_halves(tile + 1282, 4, lane, raw, 82);
  }
};

struct Q3_K {
  static constexpr u32 BLOCK = 256, BLOCK_BYTES = 110, BYTES = 1760, COLS = 256;
  static constexpr bool FLOATS = false;
  v4 q[2], high; u32 nibbles, upper; RowHalf d;
  u32 s2[2][4];
  MEM void load(const u8* tile, int lane) {
    q[0] = ld16s(tile + lane * 16); q[1] = ld16s(tile + 512 + lane * 16);
    high = ld16s(tile + 1024 + lane * 16);
    nibbles = ld4s(tile + 1536 + lane * 4); upper = ld2s(tile + 1664 + lane * 2);
    d.load(tile + 1728, lane);
  }
  MEM void codes(int j, int i, u32 c[2]) const {
    const u32 h = word(high, j);
    c[0] = ((pair_word(q, j, 0) >> (2 * i)) & 0x03030303u) | ((i < 2 ? h << (2 - i) : h >> (i - 2)) & 0x04040404u);
    c[1] = ((pair_word(q, j, 1) >> (2 * i)) & 0x03030303u) | ((h >> (2 + i)) & 0x04040404u);
  }
  MEM i32 scale(int h, int j) const {
    const int k = 4 * h + j;
    return (i32)(((nibbles >> (4 * k)) & 15u) | ((upper >> (2 * k)) & 3u) << 4) - 32;
  }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    u32 scales[2] = {0, 0};
    #pragma unroll
    for (int h = 0; h < 2; h++)
      #pragma unroll
      for (int j = 0; j < 4; j++) scales[h] |= ((u32)scale(h, j) & 255u) << (8 * j);
    dot_groups<4>(*this, scales, d, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {
    #pragma unroll
    for (int h = 0; h < 2; h++)
      #pragma unroll
      for (int j = 0; j < 4; j++) s2[h][j] = splat_half(d.d(h) * (float)scale(h, j));
  }
  MEM void fragment(int j, int i, u32 a[4]) const {
    u32 c[2];
    codes(j, i, c);
    byte_halves(c, 0x64046404u, a);
    scale_rows(a, s2[0][j], s2[1][j]);
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    const u32 nibbles = tile[1536 + e.lane * 4 + (e.group() >> 1)] >> (4 * (e.group() & 1)) & 15u;
    const u32 upper = (u16_at(tile + 1664 + e.lane * 2) >> (2 * e.group())) & 3u;
    const float scale = mul_rn(row_half(tile + 1728, e, 2), (float)(nibbles | upper << 4) - 32.f);
    return scale * ((float)(pair_at(tile, e) | bit_at(tile + 1024, e) << 2) - 4.f);
  }
  MEM static u32 code(const u8* block, u32 k) {
    return pair256(block + 32, k) | ((block[k & 31] >> (k >> 5)) & 1u) << 2;
  }
  MEM static void pack(u8* tile, int lane, const RawRows<Q3_K>& raw) {
    pack_pairs(tile, lane, raw, 0);
    pack_bits(tile + 1024, lane, raw, 2);
    u32 nibbles = 0, upper = 0;
    for (u32 k = 0; k < 8; k++) {
      const u8* block = raw.block(k >> 2, 0);
      if (!block) continue;
      const u32 sub = 4 * (lane & 3) + (k & 3);
      nibbles |= ((block[96 + (sub & 7)] >> (4 * (sub >> 3))) & 15u) << (4 * k);
      upper |= ((block[104 + (sub & 3)] >> (2 * (sub >> 2))) & 3u) << (2 * k);
    }
    *(u32*)(tile + 1536 + lane * 4) = nibbles;
    *(u16*)(tile + 1664 + lane * 2) = (u16)upper;
    pack_row_halves(tile + 1728, 2, lane, raw, 108);
  }
};

struct Q6_K {
  static constexpr u32 BLOCK = 256, BLOCK_BYTES = 210, BYTES = 3360, COLS = 256;
  static constexpr bool FLOATS = false;
  v4 q[4], high[2]; v2 s; RowHalf d;
  u32 s2[2][4];
  MEM void load(const u8* tile, int lane) {
    #pragma unroll
    for (int j = 0; j < 4; j++) q[j] = ld16s(tile + j * 512 + lane * 16);
    high[0] = ld16s(tile + 2048 + lane * 16); high[1] = ld16s(tile + 2560 + lane * 16);
    s = ld8s(tile + 3072 + lane * 8);
    d.load(tile + 3328, lane);
  }
  MEM void codes(int j, int i, u32 c[2]) const {
    const u32 w = word(q[j], i), h0 = pair_word(high, j, 0), h1 = pair_word(high, j, 1);
    c[0] = (w & 0x0f0f0f0fu) | ((i < 2 ? h0 << (4 - 2 * i) : h0 >> (2 * i - 4)) & 0x30303030u);
    c[1] = ((w >> 4) & 0x0f0f0f0fu) | ((i < 2 ? h1 << (4 - 2 * i) : h1 >> (2 * i - 4)) & 0x30303030u);
  }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    const u32 scales[2] = {s.x, s.y};
    dot_groups<32>(*this, scales, d, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {
    #pragma unroll
    for (int h = 0; h < 2; h++)
      #pragma unroll
      for (int j = 0; j < 4; j++) s2[h][j] = splat_signed_product(d.d_bits(h), word(s, h), j);
  }
  MEM void fragment(int j, int i, u32 a[4]) const {
    u32 c[2];
    codes(j, i, c);
    byte_halves(c, 0x64206420u, a);
    scale_rows(a, s2[0][j], s2[1][j]);
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    const float scale = mul_rn(row_half(tile + 3328, e, 2), (float)(i8)tile[3072 + e.lane * 8 + e.group()]);
    return scale * ((float)(nibble_at(tile, e) | pair_at(tile + 2048, e) << 4) - 32.f);
  }
  // nibbles: 64 bytes hold 128 values, the upper 64 of them in the high nibbles
  MEM static u32 code(const u8* block, u32 k) {
    return ((block[(k >> 7) * 64 + (k & 63)] >> (4 * ((k >> 6) & 1))) & 15u) | pair256(block + 128, k) << 4;
  }
  MEM static void pack(u8* tile, int lane, const RawRows<Q6_K>& raw) {
    pack_nibbles(tile, lane, raw);
    pack_pairs(tile + 2048, lane, raw, 4);
    for (int k = 0; k < 8; k++) {
      const u8* block = raw.block(k >> 2, 0);
      tile[3072 + lane * 8 + k] = block ? block[192 + 4 * (lane & 3) + (k & 3)] : 0;
    }
    pack_row_halves(tile + 3328, 2, lane, raw, 208);
  }
};
