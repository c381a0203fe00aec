// The types whose codes are entries of a codebook, for four or eight values at once. Tiles:
//   IQ2_XXS 1056 B   0: 16 B a lane, bytes of row g, then of row g + 8: entries of eight values;
//                    512: 16 B a lane, u32 of block: four times 7 bits of signs, 4 bits of scale;  1024: 16 x d
//   IQ2_XS  1184 B   0: 2 x 512, load h: row g + 8h, u16 of eight values: 9 bits of entry, 7 bits of signs;
//                    1024: u32 a lane, one nibble per group: scale;  1152: 16 x d
//   IQ2_S   1312 B   0: low bytes of entries, as IQ2_XXS;  512: 16 B a lane, signs, a byte for eight values;
//                    1024: u32 a lane, upper bit pairs of entries;  1152, 1280: as 1024, 1152 of IQ2_XS
//   IQ3_XXS 1568 B   0: entries of four values 2 x 512, load h: row g + 8h;  1024, 1536: as 512, 1024 of IQ2_XXS
//   IQ3_S   1760 B   0: low bytes of entries, as IQ3_XXS;  1024: signs, as IQ2_S;  1536: u32 a lane, ninth bits of
//                    entries;  1664: u16 a lane, one nibble per block: scale;  1728: 16 x d
//   IQ1_S    800 B   0: low bytes of entries, as IQ2_XXS;  512: 8 B a lane, u16 of block: four times the three upper
//                    bits of an entry, 3 bits of scale, the shift's sign;  768: 16 x d
//   IQ1_M    896 B   0: low bytes of entries;  512: 8 B a lane, nibble of eight values: the three upper bits of the
//                    entry, the shift's sign;  768: u16 a lane, 832: byte a lane, 3 bits per group: scale;  864: 16 x d
// A lane's bytes of row g precede those of row g + 8. Scales are d times an odd number of units.
#pragma once
#include "quant_grids_iq1.h"
#include "quant_grids_iq2.h"
#include "quant_grids_iq3.h"
#include "quant_k.h"

// Codebook is the base of these types. Q has four(h, j, i), the codes of word i of group j of row g + 8h. odd(h, j) is
// the odd number in the group's scale. With an OFFSET, codes are unsigned and that much too large.
template <class Q, int OFFSET> struct Codebook {
  static constexpr u32 BLOCK = 256, COLS = 256;
  static constexpr bool FLOATS = false;
  RowHalf d;
  u32 s2[2][4];
  MEM const Q& type() const { return *static_cast<const Q*>(this); }
  MEM void codes(int j, int i, u32 c[2]) const { c[0] = type().four(0, j, i); c[1] = type().four(1, j, i); }
  MEM float scale(int h, int j) const { return d.d(h) * Q::UNIT * (float)type().odd(h, j); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    float f0 = 0.f, f1 = 0.f;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      i32 s0, s1;
      group_dot(*this, xq, lane, j, s0, s1);
      const xmeta m = group_meta(xm, lane, j);
      f0 = fma_((float)type().odd(0, j), fma_(m.d, (float)s0, -(float)OFFSET * m.s), f0);
      f1 = fma_((float)type().odd(1, j), fma_(m.d, (float)s1, -(float)OFFSET * m.s), f1);
    }
    y0 = fma_(d.d(0) * Q::UNIT, f0, y0);
    y1 = fma_(d.d(1) * Q::UNIT, f1, y1);
  }
  MEM void prepare() {
    #pragma unroll
    for (int h = 0; h < 2; h++)
      #pragma unroll
      for (int j = 0; j < 4; j++) s2[h][j] = splat_half(scale(h, j));
  }
  MEM void fragment(int j, int i, u32 a[4]) const {
    u32 c[2];
    codes(j, i, c);
    if (OFFSET) byte_halves(c, H1024 + OFFSET * 0x00010001u, a);
    else signed_byte_halves(c, a);
    scale_rows(a, s2[0][j], s2[1][j]);
  }
  // Every factor has few bits, so the product is exact in any order.
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    Q q;
    q.load(tile, e.lane);
    const u32 codes = q.four(e.half, e.j, e.i);
    return q.scale(e.half, e.j) * (OFFSET ? byte_of(codes, e.p) - (float)OFFSET : signed_byte_of(codes, e.p));
  }
};

// Returns word j of load h. An index h that is no constant would put both loads into memory.
DEV u32 word(const v4 q[2], int h, int j) { return h ? word(q[1], j) : word(q[0], j); }
// Returns byte 2j + i / 2 of row g + 8h from a lane's 16 bytes. Eight values share it.
DEV u32 byte_of_eight(const v4& bytes, int h, int j, int i) {
  return (word(bytes, 2 * h + (j >> 1)) >> (16 * (j & 1) + 8 * (i >> 1))) & 255u;
}
// Gives bytes, none of which is 0, the signs of the lowest four bits.
DEV u32 signed_bytes(u32 bytes, u32 signs) {
  const u32 negative = ((signs & 15u) * 0x00204081u) & 0x01010101u;
  return (bytes ^ (negative * 255u)) + negative;
}
// Returns the signs of word i from bytes of signs.
DEV u32 signs_of(const v4& bytes, int h, int j, int i) { return byte_of_eight(bytes, h, j, i) >> (4 * (i & 1)); }
// Returns the signs of word i from those of seven values. The eighth value is negative if their number is odd.
DEV u32 signs_of_seven(u32 seven, int i) {
  const u32 folded = seven ^ seven >> 4;
  return i & 1 ? seven >> 4 | ((0x6996u >> (folded & 15u)) & 1u) << 3 : seven;
}
// Packs lane t's BYTES bytes, after those of lower t, of row g and of row g + 8 from `offset` of a block on. They are
// adjacent, or with 16 bytes in separate loads.
template <u32 BYTES, class Q> DEV void pack_bytes(u8* p, int lane, const RawRows<Q>& raw, u32 offset) {
  for (u32 h = 0; h < 2; h++) {
    const u8* block = raw.block(h, 0);
    u8* out = BYTES == 16 ? p + 512 * h + 16 * lane : p + BYTES * (2 * lane + h);
    for (u32 k = 0; k < BYTES; k++) out[k] = block ? block[offset + BYTES * (lane & 3) + k] : 0;
  }
}

// The words of a lane's four blocks of 32: four times 7 bits of signs, 4 bits of scale.
struct SignsAndScales {
  v4 words;
  MEM void load(const u8* p, int lane) { words = ld16s(p + lane * 16); }
  MEM u32 signs(int h, int j, int i) const {
    return signs_of_seven((word(words, 2 * h + (j >> 1)) >> (7 * (2 * (j & 1) + (i >> 1)))) & 127u, i);
  }
  MEM u32 odd(int h, int j) const { return 2 * (word(words, 2 * h + (j >> 1)) >> 28) + 1; }
};

struct IQ2_XXS : Codebook<IQ2_XXS, 0> {
  static constexpr u32 BLOCK_BYTES = 66, BYTES = 1056;
  static constexpr float UNIT = 0.125f;
  v4 q; SignsAndScales s;
  MEM void load(const u8* tile, int lane) {
    q = ld16s(tile + lane * 16);
    s.load(tile + 512, lane);
    d.load(tile + 1024, lane);
  }
  MEM u32 four(int h, int j, int i) const {
    return signed_bytes(IQ2_XXS_GRID[2 * byte_of_eight(q, h, j, i) + (i & 1)], s.signs(h, j, i));
  }
  MEM u32 odd(int h, int j) const { return s.odd(h, j); }
  // Four entries for each 32 values, then their word.
  MEM static void pack(u8* tile, int lane, const RawRows<IQ2_XXS>& raw) {
    for (u32 k = 0; k < 16; k++) {
      const u8* block = raw.block(k >> 3, 0);
      const u32 at = 2 + 16 * (lane & 3) + 8 * ((k >> 2) & 1) + (k & 3);
      tile[lane * 16 + k] = block ? block[at] : 0;
      tile[512 + lane * 16 + k] = block ? block[at + 4] : 0;
    }
    pack_row_halves(tile + 1024, 2, lane, raw, 0);
  }
};

struct IQ3_XXS : Codebook<IQ3_XXS, 0> {
  static constexpr u32 BLOCK_BYTES = 98, BYTES = 1568;
  static constexpr float UNIT = 0.25f;
  v4 q[2]; SignsAndScales s;
  MEM void load(const u8* tile, int lane) {
    q[0] = ld16s(tile + lane * 16); q[1] = ld16s(tile + 512 + lane * 16);
    s.load(tile + 1024, lane);
    d.load(tile + 1536, lane);
  }
  MEM u32 four(int h, int j, int i) const {
    return signed_bytes(IQ3_XXS_GRID[(word(q, h, j) >> (8 * i)) & 255u], s.signs(h, j, i));
  }
  MEM u32 odd(int h, int j) const { return s.odd(h, j); }
  MEM static void pack(u8* tile, int lane, const RawRows<IQ3_XXS>& raw) {
    pack_bytes<16>(tile, lane, raw, 2);
    pack_bytes<8>(tile + 1024, lane, raw, 66);
    pack_row_halves(tile + 1536, 2, lane, raw, 0);
  }
};

struct IQ2_XS : Codebook<IQ2_XS, 0> {
  static constexpr u32 BLOCK_BYTES = 74, BYTES = 1184;
  static constexpr float UNIT = 0.125f;
  v4 q[2]; u32 scales;
  MEM void load(const u8* tile, int lane) {
    q[0] = ld16s(tile + lane * 16); q[1] = ld16s(tile + 512 + lane * 16);
    scales = ld4s(tile + 1024 + lane * 4);
    d.load(tile + 1152, lane);
  }
  MEM u32 four(int h, int j, int i) const {
    const u32 w = word(q, h, j) >> (16 * (i >> 1));
    return signed_bytes(IQ2_XS_GRID[2 * (w & 511u) + (i & 1)], signs_of_seven((w >> 9) & 127u, i));
  }
  MEM u32 odd(int h, int j) const { return 2 * ((scales >> (16 * h + 4 * j)) & 15u) + 1; }
  MEM static void pack(u8* tile, int lane, const RawRows<IQ2_XS>& raw) {
    pack_bytes<16>(tile, lane, raw, 2);
    pack_bytes<2>(tile + 1024, lane, raw, 66);
    pack_row_halves(tile + 1152, 2, lane, raw, 0);
  }
};

struct IQ2_S : Codebook<IQ2_S, 0> {
  static constexpr u32 BLOCK_BYTES = 82, BYTES = 1312;
  static constexpr float UNIT = 0.125f;
  v4 q, signs; u32 upper, scales;
  MEM void load(const u8* tile, int lane) {
    q = ld16s(tile + lane * 16); signs = ld16s(tile + 512 + lane * 16);
    upper = ld4s(tile + 1024 + lane * 4); scales = ld4s(tile + 1152 + lane * 4);
    d.load(tile + 1280, lane);
  }
  MEM u32 four(int h, int j, int i) const {
    const u32 entry = byte_of_eight(q, h, j, i) | ((upper >> (16 * h + 4 * j + 2 * (i >> 1))) & 3u) << 8;
    return signed_bytes(IQ2_S_GRID[2 * entry + (i & 1)], signs_of(signs, h, j, i));
  }
  MEM u32 odd(int h, int j) const { return 2 * ((scales >> (16 * h + 4 * j)) & 15u) + 1; }
  MEM static void pack(u8* tile, int lane, const RawRows<IQ2_S>& raw) {
    pack_bytes<8>(tile, lane, raw, 2);
    pack_bytes<8>(tile + 512, lane, raw, 34);
    pack_bytes<2>(tile + 1024, lane, raw, 66);
    pack_bytes<2>(tile + 1152, lane, raw, 74);
    pack_row_halves(tile + 1280, 2, lane, raw, 0);
  }
};

struct IQ3_S : Codebook<IQ3_S, 0> {
  static constexpr u32 BLOCK_BYTES = 110, BYTES = 1760;
  static constexpr float UNIT = 1.f;
  v4 q[2], signs; u32 ninth, scales;
  MEM void load(const u8* tile, int lane) {
    q[0] = ld16s(tile + lane * 16); q[1] = ld16s(tile + 512 + lane * 16);
    signs = ld16s(tile + 1024 + lane * 16);
    ninth = ld4s(tile + 1536 + lane * 4); scales = ld2s(tile + 1664 + lane * 2);
    d.load(tile + 1728, lane);
  }
  MEM u32 four(int h, int j, int i) const {
    const u32 entry = ((word(q, h, j) >> (8 * i)) & 255u) | ((ninth >> (16 * h + 4 * j + i)) & 1u) << 8;
    return signed_bytes(IQ3_S_GRID[entry], signs_of(signs, h, j, i));
  }
  MEM u32 odd(int h, int j) const { return 2 * ((scales >> (8 * h + 4 * (j >> 1))) & 15u) + 1; }
  MEM static void pack(u8* tile, int lane, const RawRows<IQ3_S>& raw) {
    pack_bytes<16>(tile, lane, raw, 2);
    pack_bytes<8>(tile + 1024, lane, raw, 74);
    pack_bytes<2>(tile + 1536, lane, raw, 66);
    pack_bytes<1>(tile + 1664, lane, raw, 106);
    pack_row_halves(tile + 1728, 2, lane, raw, 0);
  }
};

// IQ1 shifts each point, -1, 0 or 1, by an eighth up or down. Its codes are in eighths, above an offset of 9: eight
// times the number in the codebook, plus 2 if the shift is upwards.
constexpr int IQ1_OFFSET = 9;
DEV u32 iq1_codes(u32 entry, bool is_lowered, int i) {
  return ((IQ1_GRID[entry] >> (2 * (i & 1))) & 0x18181818u) | (is_lowered ? 0 : 0x02020202u);
}

struct IQ1_S : Codebook<IQ1_S, IQ1_OFFSET> {
  static constexpr u32 BLOCK_BYTES = 50, BYTES = 800;
  static constexpr float UNIT = 0.125f;
  v4 q; v2 words;
  MEM void load(const u8* tile, int lane) {
    q = ld16s(tile + lane * 16); words = ld8s(tile + 512 + lane * 8);
    d.load(tile + 768, lane);
  }
  MEM u32 of_block(int h, int j) const { return word(words, h) >> (16 * (j >> 1)); }
  MEM u32 four(int h, int j, int i) const {
    const u32 w = of_block(h, j), upper = (w >> (3 * (2 * (j & 1) + (i >> 1)))) & 7u;
    return iq1_codes(byte_of_eight(q, h, j, i) | upper << 8, w & 0x8000u, i);
  }
  MEM u32 odd(int h, int j) const { return 2 * ((of_block(h, j) >> 12) & 7u) + 1; }
  MEM static void pack(u8* tile, int lane, const RawRows<IQ1_S>& raw) {
    pack_bytes<8>(tile, lane, raw, 2);
    pack_bytes<4>(tile + 512, lane, raw, 34);
    pack_row_halves(tile + 768, 2, lane, raw, 0);
  }
};

struct IQ1_M : Codebook<IQ1_M, IQ1_OFFSET> {
  static constexpr u32 BLOCK_BYTES = 56, BYTES = 896;
  static constexpr float UNIT = 0.125f;
  v4 q; v2 nibbles; u32 scales, upper;
  MEM void load(const u8* tile, int lane) {
    q = ld16s(tile + lane * 16); nibbles = ld8s(tile + 512 + lane * 8);
    scales = ld2s(tile + 768 + lane * 2); upper = ld1s(tile + 832 + lane);
    d.load(tile + 864, lane);
  }
  MEM u32 four(int h, int j, int i) const {
    const u32 nibble = word(nibbles, h) >> (8 * j + 4 * (i >> 1));
    return iq1_codes(byte_of_eight(q, h, j, i) | (nibble & 7u) << 8, nibble & 8u, i);
  }
  MEM u32 odd(int h, int j) const { return 2 * (((scales | upper << 16) >> (12 * h + 3 * j)) & 7u) + 1; }
  // Four words have the scales of four groups each in 12 bits. Their upper nibbles are d.
  MEM static void pack(u8* tile, int lane, const RawRows<IQ1_M>& raw) {
    pack_bytes<8>(tile, lane, raw, 0);
    pack_bytes<4>(tile + 512, lane, raw, 32);
    u32 scales = 0;
    for (u32 h = 0; h < 2; h++) {
      scales |= (raw.u16_of(h, 0, 48 + 2 * (lane & 3)) & 0xfffu) << (12 * h);
      if (lane & 3) continue;
      u32 bits = 0;
      for (u32 k = 0; k < 4; k++) bits |= (raw.u16_of(h, 0, 48 + 2 * k) >> 12) << (4 * k);
      *(u16*)(tile + 864 + 2 * ((lane >> 2) + 8 * h)) = (u16)bits;
    }
    *(u16*)(tile + 768 + lane * 2) = (u16)scales;
    tile[832 + lane] = (u8)(scales >> 16);
  }
};
