// The types whose codes are entries of a codebook, with signs: a word or two of bytes for four or eight values. Tiles:
//   IQ2_XXS 1056 B   0: 16 B a lane, bytes of row g, then of row g + 8: entry of eight values;
//                    512: 16 B a lane, u32 of block: four times 7 bits of signs, 4 bits of scale;  1024: 16 x d
//   IQ3_XXS 1568 B   0: entries of four values 2 x 512, load h: row g + 8h;  1024, 1536: as 512, 1024
// Seven bits are the signs of seven values: the eighth value is negative if their number is odd.
#pragma once
#include "quant_grids.h"
#include "quant_k.h"

// Bytes, none of which is 0, with the signs of the lowest four bits.
DEV u32 signed_bytes(u32 bytes, u32 signs) {
  const u32 negative = ((signs & 15u) * 0x00204081u) & 0x01010101u;
  return (bytes ^ (negative * 255u)) + negative;
}
DEV u32 parity(u32 bits) {
  bits ^= bits >> 4;
  return (0x6996u >> (bits & 15u)) & 1u;
}

// The words of a lane's four blocks of 32, and d of its rows; at `p`: 512 + 32 bytes.
struct SignsAndScales {
  v4 words; RowHalf d;
  MEM void load(const u8* p, int lane) { words = ld16s(p + lane * 16); d.load(p + 512, lane); }
  // Signs of word i of group j of row g + 8h.
  MEM u32 signs(int h, int j, int i) const { return of_word(word(words, 2 * h + (j >> 1)), j, i); }
  MEM static u32 of_word(u32 w, u32 j, u32 i) {
    const u32 seven = (w >> (7 * (2 * (j & 1) + (i >> 1)))) & 127u;
    return i & 1 ? seven >> 4 | parity(seven) << 3 : seven;
  }
  // d times an odd number of units
  MEM static float scale(float d, u32 w, float unit) { return d * (float)(2 * (w >> 28) + 1) * unit; }
  MEM float scale(int k, float unit) const { return scale(d.d(k >> 1), word(words, k), unit); }
  MEM static float value(const u8* p, const Place& e, u32 entry, float unit) {
    const u32 w = *(const u32*)(p + e.lane * 16 + 4 * e.block32());
    const u32 bytes = signed_bytes(entry, of_word(w, e.j, e.i));
    return scale(row_half(p + 512, e, 2), w, unit) * signed_byte_of(bytes, e.p);
  }
  // Packs the words at `offset` of a block, `stride` bytes apart.
  template <class Q> MEM static void pack(u8* p, int lane, const RawRows<Q>& raw, u32 offset, u32 stride) {
    u32 w[4];
    for (u32 k = 0; k < 4; k++) {
      const u8* block = raw.block(k >> 1, 0);
      const u8* at = block + offset + (2 * (lane & 3) + (k & 1)) * stride;
      w[k] = block ? u16_at(at) | u16_at(at + 2) << 16 : 0;
    }
    store16(p + lane * 16, w);
    pack_row_halves(p + 512, 2, lane, raw, 0);
  }
};

struct IQ2_XXS {
  static constexpr u32 BLOCK = 256, BLOCK_BYTES = 66, BYTES = 1056, COLS = 256;
  static constexpr bool FLOATS = false;
  static constexpr float UNIT = 0.125f;
  v4 q; SignsAndScales s;
  u32 s2[4];
  MEM void load(const u8* tile, int lane) { q = ld16s(tile + lane * 16); s.load(tile + 512, lane); }
  MEM void codes(int j, int i, u32 c[2]) const {
    for (int h = 0; h < 2; h++) {
      const u32 entry = (word(q, 2 * h + (j >> 1)) >> (8 * (2 * (j & 1) + (i >> 1)))) & 255u;
      c[h] = signed_bytes(IQ2_XXS_GRID[2 * entry + (i & 1)], s.signs(h, j, i));
    }
  }
  MEM float scale(int k) const { return s.scale(k, UNIT); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_scaled<0>(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {
    #pragma unroll
    for (int k = 0; k < 4; k++) s2[k] = splat_half(scale(k));
  }
  MEM void fragment(int j, int i, u32 a[4]) const {
    u32 c[2];
    codes(j, i, c);
    signed_byte_halves(c, a);
    scale_rows(a, s2[j >> 1], s2[2 + (j >> 1)]);
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    const u32 entry = tile[e.lane * 16 + 8 * e.half + 2 * e.j + (e.i >> 1)];
    return SignsAndScales::value(tile + 512, e, IQ2_XXS_GRID[2 * entry + (e.i & 1)], UNIT);
  }
  // Four entries for each 32 values, then their word.
  MEM static void pack(u8* tile, int lane, const RawRows<IQ2_XXS>& raw) {
    for (u32 k = 0; k < 16; k++) {
      const u8* block = raw.block(k >> 3, 0);
      const u32 entry = 8 * (lane & 3) + (k & 7);
      tile[lane * 16 + k] = block ? block[2 + (entry >> 2) * 8 + (entry & 3)] : 0;
    }
    SignsAndScales::pack(tile + 512, lane, raw, 6, 8);
  }
};

struct IQ3_XXS {
  static constexpr u32 BLOCK = 256, BLOCK_BYTES = 98, BYTES = 1568, COLS = 256;
  static constexpr bool FLOATS = false;
  static constexpr float UNIT = 0.25f;
  v4 q[2]; SignsAndScales s;
  u32 s2[4];
  MEM void load(const u8* tile, int lane) {
    q[0] = ld16s(tile + lane * 16); q[1] = ld16s(tile + 512 + lane * 16);
    s.load(tile + 1024, lane);
  }
  MEM void codes(int j, int i, u32 c[2]) const {
    for (int h = 0; h < 2; h++)
      c[h] = signed_bytes(IQ3_XXS_GRID[(word(q[h], j) >> (8 * i)) & 255u], s.signs(h, j, i));
  }
  MEM float scale(int k) const { return s.scale(k, UNIT); }
  MEM void dot(const i8* xq, const xmeta* xm, int lane, float& y0, float& y1) const {
    dot_scaled<0>(*this, xq, xm, lane, y0, y1);
  }
  MEM void prepare() {
    #pragma unroll
    for (int k = 0; k < 4; k++) s2[k] = splat_half(scale(k));
  }
  MEM void fragment(int j, int i, u32 a[4]) const {
    u32 c[2];
    codes(j, i, c);
    signed_byte_halves(c, a);
    scale_rows(a, s2[j >> 1], s2[2 + (j >> 1)]);
  }
  MEM static float value(const u8* tile, u32 row, u32 col) {
    const Place e(row, col);
    const u32 entry = tile[512 * e.half + e.lane * 16 + 4 * e.j + e.i];
    return SignsAndScales::value(tile + 1024, e, IQ3_XXS_GRID[entry], UNIT);
  }
  MEM static void pack(u8* tile, int lane, const RawRows<IQ3_XXS>& raw) {
    for (u32 h = 0; h < 2; h++)
      for (u32 k = 0; k < 16; k++) {
        const u8* block = raw.block(h, 0);
        tile[512 * h + lane * 16 + k] = block ? block[2 + 16 * (lane & 3) + k] : 0;
      }
    SignsAndScales::pack(tile + 1024, lane, raw, 66, 4);
  }
};
