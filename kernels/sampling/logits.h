// Rows of logits for the kernels that choose tokens: read in chunks, under a mask; and the order of their tokens.
#pragma once
#include "gpu.h"
#include "args.h"
#include "elementary.h"
#include "order.h"

constexpr u32 THREADS = 1024;
constexpr u32 WAVES = THREADS / WARP;
// Logits that a thread loads at a time, in groups of four adjacent ones, so that several loads are in flight. Sixteen
// would spill on wave64 targets, which keep a mask of all lanes for every condition.
constexpr u32 PER_THREAD = WARP == 64 ? 8 : 16;
constexpr u32 CHUNK = THREADS * PER_THREAD;
// Logits of a block's threads with one load each.
constexpr u32 STRETCH = THREADS * 4;
// Registers hold a chunk. They have no index at run time, so loops over a chunk must be unrolled.
#if GPU_CPU
  #define UNROLL
#else
  #define UNROLL _Pragma("unroll")
#endif

// Returns a token's key in the order (logit descending, id ascending). The larger key is the better token, no two are
// equal, and none is 0.
DEV u64 token_key(float logit, u32 id) { return (u64)ordered(logit) << 32 | (u32)~id; }
DEV u32 key_id(u64 key) { return ~(u32)key; }
DEV float key_logit(u64 key) { return unordered((u32)(key >> 32)); }

DEV bool is_finite(float x) { return fabs_(x) < F32_INFINITY; }

// This block's logits, first .. end of a row.
struct Share {
  const float* logits;    // of the whole row
  u32 first, end;
  const u32* mask;        // of the whole row; null: every token may be chosen
};

DEV const u32* mask_of(const MaskArgs& masks, u32 row, u32 cols) {
  if (!masks.places || masks.places[row] == NO_MASK) return nullptr;
  return masks.words + (u64)masks.places[row] * ((cols + 31) / 32);
}

// Returns a logit, or -infinity if the lowest bit of its mask is 0. A NaN stays NaN: it is an error of the model that
// no mask may hide.
DEV float masked(u32 bits, float logit) { return (bits & 1) || logit != logit ? logit : -F32_INFINITY; }

// Returns the start of the stretch of a chunk that holds the threads' i-th logits.
DEV u32 stretch_of(u32 start, u32 i) { return start + (i >> 2) * STRETCH; }

// Returns the id of this thread's i-th logit of the chunk at `start`; it ascends with i.
DEV u32 token_id(u32 start, u32 i) { return stretch_of(start, i) + 4 * (u32)tid_x() + (i & 3); }

// The bits of a thread's four adjacent logits are in one word.
DEV void mask_chunk(const Share& share, u32 start, float* v) {
  UNROLL
  for (u32 i = 0; i < PER_THREAD; i += 4) {
    const u32 id = token_id(start, i);
    const u32 bits = share.mask[(id < share.end ? id : share.end - 1) / 32] >> (id & 31);
    UNROLL
    for (u32 j = 0; j < 4; j++) v[i + j] = masked(bits >> j, v[i + j]);
  }
}

// Loads this thread's logits of a chunk, under their mask; -infinity outside the share.
DEV void load_chunk(const Share& share, u32 start, float* v) {
  const bool aligned = is_aligned(share.logits, 16);
  UNROLL
  for (u32 i = 0; i < PER_THREAD; i += 4) {
    const u32 id = token_id(start, i);
    if (aligned && stretch_of(start, i) + STRETCH <= share.end) {
      const v4 w = ld16(share.logits + id);
      v[i] = bits_f32(w.x); v[i + 1] = bits_f32(w.y); v[i + 2] = bits_f32(w.z); v[i + 3] = bits_f32(w.w);
    } else {
      for (u32 j = 0; j < 4; j++) {
        const float x = share.logits[id + j < share.end ? id + j : share.end - 1];
        v[i + j] = id + j < share.end ? x : -F32_INFINITY;
      }
    }
  }
  if (share.mask) mask_chunk(share, start, v);
}
