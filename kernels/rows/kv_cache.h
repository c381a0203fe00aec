// The layout of a layer's K and V: [num_blocks][num_kv_heads] heads of a block, each [block_size][head_dim] elements.
// In int8, elements are integers up to LEVELS ("levels"). After its elements, a head of a block has an f32 scale for
// each token. Blocks hold a multiple of 16 tokens, so that the scales are aligned to 16 bytes.
#pragma once
#include "gpu.h"
#include "args.h"

constexpr float LEVELS = 127.f;
template <class T> constexpr bool HAS_SCALES = sizeof(T) == 1;

// Elements from one head of a block to the next.
template <class T> DEV u32 head_stride(u32 block_size, u32 head_dim) {
  return block_size * (head_dim + (HAS_SCALES<T> ? (u32)sizeof(float) : 0));
}
// Returns the tokens' scales of the head of a block that begins at `head`.
DEV float* scales_of(i8* head, u32 block_size, u32 head_dim) { return (float*)(head + (u64)block_size * head_dim); }
DEV const float* scales_of(const i8* head, u32 block_size, u32 head_dim) {
  return (const float*)(head + (u64)block_size * head_dim);
}

// Stores one, two or four adjacent elements; heads must be aligned to that many. For int8, x is an integer.
DEV u32 level(float x) { return (u32)(i32)x & 0xff; }
DEV void store_cache(i8* at, float x) { *at = (i8)(i32)x; }
DEV void store_cache(i8* at, float x, float y) { *(u16*)at = (u16)(level(x) | level(y) << 8); }
DEV void store_cache(i8* at, float x, float y, float z, float w) {
  *(u32*)at = level(x) | level(y) << 8 | level(z) << 16 | level(w) << 24;
}
DEV void store_cache(f16* at, float x) { *at = f2h(x); }
DEV void store_cache(float* at, float x) { *at = x; }
DEV void store_cache(f16* at, float x, float y) { *(u32*)at = f2h(x) | (u32)f2h(y) << 16; }
DEV void store_cache(float* at, float x, float y) { *(v2*)at = {f32_bits(x), f32_bits(y)}; }
DEV void store_cache(f16* at, float x, float y, float z, float w) {
  *(v2*)at = {f2h(x) | (u32)f2h(y) << 16, f2h(z) | (u32)f2h(w) << 16};
}
DEV void store_cache(float* at, float x, float y, float z, float w) {
  *(v4*)at = {f32_bits(x), f32_bits(y), f32_bits(z), f32_bits(w)};
}

// Converts four levels to halves, each divided by 128: levels 0 and 1 in `low`, 2 and 3 in `high`. An unsigned byte
// becomes the low bits of a half that is at least 1024. The matching scale is 128 times the token's (LEVELS_OF_HALVES).
DEV void halves_of_levels(u32 levels, u32& low, u32& high) {
  const u32 w = levels ^ 0x80808080u;
  const u32 by = splat(0x2000), minus_nine = splat(0xc880);          // 1 / 128; 9 = (1024 + 128) / 128
#if GPU_NV
  const u32 of_low = __byte_perm(w, 0x64646464u, 0x4140), of_high = __byte_perm(w, 0x64646464u, 0x4342);
#else
  const u32 of_low = (w & 0xff) | (w & 0xff00) << 8 | 0x64006400u;
  const u32 of_high = (w >> 16 & 0xff) | (w >> 8 & 0xff0000) | 0x64006400u;
#endif
  low = hfma2(of_low, by, minus_nine);
  high = hfma2(of_high, by, minus_nine);
}
constexpr float LEVELS_OF_HALVES = 128.f;

// A head of a block in the cache.
template <class T>
DEV T* cache_head(void* cache, u32 block, u32 kv_head, u32 num_kv_heads, u32 block_size, u32 head_dim) {
  return (T*)cache + ((u64)block * num_kv_heads + kv_head) * head_stride<T>(block_size, head_dim);
}
