// The memory order of activations for the matrix units, loads of four columns, and stores in every format.
#pragma once
#include "gpu.h"
#include "args.h"

// A lane of the matrix kernels owns whole groups of columns of a weight tile (quant.h). There the two halves of a
// 16-bit pair are columns 0 and 2, or 1 and 3, of four. Activations follow that order within every four columns.
// On NVIDIA they also follow the order in which a lane of mma.m16n8k16 reads them, 16 bytes at a time, 64 rows
// together. All loads of a block for a super-block then have constant offsets.
// For wgmma the order is that of its operands in shared memory (wgmma.h), eight rows together. A step of 16 columns,
// four of each group, is two core matrices of eight rows x 16 bytes: columns 0 and 2 of four in one, columns 1 and 3 in
// the other.
// Returns the index, in 16-bit elements, of column c of row n; padded_cols = 256 * super_blocks.
#if GPU_WGMMA
constexpr u32 HALF_STEP = 64;          // elements from columns 0 and 2 of four to columns 1 and 3
#endif
DEV u64 activation_index(u32 n, u32 c, u32 super_blocks) {
  u32 p = c & 3, in_four = p == 1 ? 2 : p == 2 ? 1 : p;
#if GPU_WGMMA
  u64 step = ((u64)(n >> 3) * super_blocks + (c >> 8)) * 16 + ((c >> 2) & 15);
  return step * 2 * HALF_STEP + (in_four >> 1) * HALF_STEP + (n & 7) * 8 + ((c >> 6) & 3) * 2 + (in_four & 1);
#elif GPU_NV
  u32 sb = c >> 8, t = (c >> 6) & 3, j = (c >> 4) & 3, i = (c >> 2) & 3;
  u64 step = (((u64)(n >> 6) * super_blocks + sb) * 4 + j) * 2 + (i >> 1);
  return ((step * 8 + ((n >> 3) & 7)) * 32 + (n & 7) * 4 + t) * 8 + (i & 1) * 4 + in_four;
#else
  return (u64)n * super_blocks * 256 + (c & ~3u) + in_four;
#endif
}

DEV bool is_bf16(u32 format) { return format == FORMAT_BF16 || format == FORMAT_BF16_TILED; }

// Stores element (row n, column c) of an activation buffer of `cols` columns. In tiled and 16-bit formats the caller
// also stores zeros to columns cols .. padded_cols. Halves saturate at the largest finite value.
DEV void store_activation(void* out, u32 format, u32 n, u32 c, u32 cols, float value) {
  if (format == FORMAT_F32) { ((float*)out)[(u64)n * cols + c] = value; return; }
  const u32 super_blocks = (cols + 255) >> 8;
  const u16 half = is_bf16(format) ? f2bf(value) : f2h_sat(value);
  const u64 at = format >= FORMAT_F16_TILED ? activation_index(n, c, super_blocks) : (u64)n * super_blocks * 256 + c;
  ((u16*)out)[at] = half;
}

// Returns two numbers as a word of activations.
DEV u32 pair_of(bool bf16, float low, float high) {
  return bf16 ? (u32)f2bf(low) | (u32)f2bf(high) << 16 : halves_sat(low, high);
}

// Stores columns c .. c + 8 of row n at once; c and `cols` are multiples of 8.
DEV void store_eight(void* out, u32 format, u32 n, u32 c, u32 cols, const float* x) {
  if (format == FORMAT_F32) {
    v4* to = (v4*)((float*)out + (u64)n * cols + c);
    to[0] = {f32_bits(x[0]), f32_bits(x[1]), f32_bits(x[2]), f32_bits(x[3])};
    to[1] = {f32_bits(x[4]), f32_bits(x[5]), f32_bits(x[6]), f32_bits(x[7])};
    return;
  }
  // In the tiled formats eight aligned columns are contiguous, but the inner two of every four are swapped. For wgmma
  // they are two words of a step, and two words of the next step.
  const bool tiled = format >= FORMAT_F16_TILED, bf16 = is_bf16(format);
  u32 words[4];
  #pragma unroll
  for (u32 i = 0; i < 8; i += 4) {
    const float second = tiled ? x[i + 2] : x[i + 1], third = tiled ? x[i + 1] : x[i + 2];
    words[i / 2] = pair_of(bf16, x[i], second);
    words[i / 2 + 1] = pair_of(bf16, third, x[i + 3]);
  }
  const u32 super_blocks = (cols + 255) >> 8;
  const u64 at = tiled ? activation_index(n, c, super_blocks) : (u64)n * super_blocks * 256 + c;
#if GPU_WGMMA
  if (tiled) {
    #pragma unroll
    for (u32 i = 0; i < 4; i++) *(u32*)((u16*)out + at + HALF_STEP * i) = words[i];
    return;
  }
#endif
  *(v4*)((u16*)out + at) = {words[0], words[1], words[2], words[3]};
}

// Four neighbouring columns of a row.
struct Four { float v[4]; };

// Returns columns c .. c + 4 (c a multiple of 4) of a row of `cols` columns, with zeros from cols on. `aligned`: the
// row begins at a multiple of 16 bytes, so one load is enough.
DEV Four load_four(const float* row, bool aligned, u32 c, u32 cols) {
  Four f;
  if (aligned && c + 4 <= cols) {
    const v4 w = ld16(row + c);
    f.v[0] = bits_f32(w.x); f.v[1] = bits_f32(w.y); f.v[2] = bits_f32(w.z); f.v[3] = bits_f32(w.w);
  } else {
    for (u32 i = 0; i < 4; i++) f.v[i] = c + i < cols ? row[c + i] : 0.f;
  }
  return f;
}

// Returns columns c .. c + 4 of a row that is_whole, with zeros from cols on: one load without a branch.
DEV Four load_whole_four(const float* row, u32 c, u32 cols) {
  v4 w = {0, 0, 0, 0};
  if (c < cols) w = ld16(row + c);
  return {{bits_f32(w.x), bits_f32(w.y), bits_f32(w.z), bits_f32(w.w)}};
}
// True if a row of `cols` columns consists of whole, aligned groups of four. Callers with many loads check this once:
// in a kernel of microseconds, a branch per load would take longer than the memory.
DEV bool is_whole(const float* row, u32 cols) { return is_aligned(row, 16) && cols % 4 == 0; }
