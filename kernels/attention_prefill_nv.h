// Prefill over an f16 cache on NVIDIA: mma.m16n8k16 with q, weights and outputs in registers, K and V through shared
// memory by asynchronous copies: V of a tile comes in while its scores are computed, K of the next while the values are
// summed.
#pragma once
#include "attention_prefill.h"

// ------------------------------------------------------------------------------------------------ instructions
DEV u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// 16 bytes; zeros where not `valid`.
DEV void copy_async(f16* to, const f16* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
DEV void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
DEV void load_matrices(u32* x, const f16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
}
DEV void load_matrices_transposed(u32* x, const f16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
}
DEV void mma_16x8x16(float* c, const u32* a, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV u32 pack(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

// ------------------------------------------------------------------------------------------------ tiles
template <u32 D> struct KvTile {
  static constexpr u32 KEYS = D == 256 ? 32 : 64, STRIDE = D + 8;   // rows 16 bytes apart in the banks: no conflicts
  f16 k[KEYS][STRIDE], v[KEYS][STRIDE];
};

// K or V of the tile from `key` on; zeros outside of the keys and of the head, since 0 * NaN is NaN.
template <u32 D> DEV void copy_tile(f16 (*to)[KvTile<D>::STRIDE], const Keys<f16>& keys, const f16* cache,
                                    const Runs<KvTile<D>::KEYS>& runs, u32 key) {
  constexpr u32 CHUNKS = D / 8, ROWS = ATTENTION_THREADS / CHUNKS;
  const u32 column = (u32)tid_x() % CHUNKS * 8, first = (u32)tid_x() / CHUNKS;
  #pragma unroll
  for (u32 i = 0; i < KvTile<D>::KEYS / ROWS; i++) {
    const u32 row = first + i * ROWS;
    const bool valid = key + row >= keys.first && key + row < keys.end && column < keys.head_dim;
    const f16* from = cache + runs.at[i * ROWS / 16] + row % 16 * keys.head_dim + column;
    copy_async(&to[row][column], valid ? from : cache, valid);
  }
}

// Four 8-column fragments of a row that lie in the four lanes of a quad, two columns each, become eight whole columns a
// lane: lane t then holds fragment t.
DEV void transpose_quad(float (*x)[2]) {
  const bool odd = lane_id() & 1, high = lane_id() & 2;
  #pragma unroll
  for (int j = 0; j < 2; j++) {
    #pragma unroll
    for (int i = 0; i < 2; i++) {                                      // fragments i and i + 2
      const float other = shfl_xor(high ? x[i][j] : x[i + 2][j], 2);
      if (high) x[i][j] = other; else x[i + 2][j] = other;
    }
    #pragma unroll
    for (int i = 0; i < 4; i += 2) {                                   // fragments i and i + 1
      const float other = shfl_xor(odd ? x[i][j] : x[i + 1][j], 1);
      if (odd) x[i][j] = other; else x[i + 1][j] = other;
    }
  }
}

// ------------------------------------------------------------------------------------------------ the kernel
// A warp has 16 rows; lane l has rows l / 4 and l / 4 + 8 of them ("halves") and two columns of every 8.
template <u32 D> DEV void attention_prefill_mma(const AttentionArgs& a) {
  constexpr u32 KEYS = KvTile<D>::KEYS;
  SHARED __align__(16) KvTile<D> lds;
  const RowTile tile = row_tile(a);
  const u32 lane = (u32)lane_id(), warp_row = (u32)tid_x() / 32 * 16, last_row = tile.rows - 1;
  const u32 my_rows[2] = {min_(warp_row + lane / 4, last_row), min_(warp_row + lane / 4 + 8, last_row)};
  const Keys<f16> keys = keys_of<f16>(a, tile.sequence, tile.kv_head, tile.first_key(0), tile.end_key(last_row));

  u32 q[D / 16][4];
  #pragma unroll
  for (u32 half = 0; half < 2; half++) {
    const float* row = a.qkv + (u64)(tile.row + my_rows[half]) * (a.num_heads + 2 * a.num_kv_heads) * a.head_dim +
                       tile.head * a.head_dim;
    #pragma unroll
    for (u32 i = 0; i < D / 8; i++) {
      const u32 column = 8 * i + lane % 4 * 2;
      const float x = column < a.head_dim ? row[column] : 0.f, y = column + 1 < a.head_dim ? row[column + 1] : 0.f;
      q[i / 2][i % 2 * 2 + half] = f2h_sat(x) | (u32)f2h_sat(y) << 16;
    }
  }

  // A warp's tiles that need a mask: those that not all of its rows see whole.
  const u32 all_see_from = tile.first_key(min_(warp_row + 15, last_row));
  const u32 all_see_to = tile.end_key(min_(warp_row, last_row));
  const float to_log2 = a.softcap != 0.f ? LOG2E : a.scale * LOG2E;    // of a score below
  float values[D / 8][4] = {}, top[2] = {NOTHING, NOTHING}, sum[2] = {0.f, 0.f};
  Runs<KEYS> runs = {};
  u32 key = keys.first / KEYS * KEYS;
  if (keys.first < keys.end) {
    runs.start(keys, key);
    runs.next(keys, key);
    copy_tile<D>(lds.k, keys, keys.k, runs, key);
  }
  for (; key < keys.end; key += KEYS) {
    copies_wait();
    block_sync();                                                      // K is there; V's place is free
    copy_tile<D>(lds.v, keys, keys.v, runs, key);

    float score[KEYS / 8][4] = {};
    #pragma unroll
    for (u32 d = 0; d < D / 16; d++)
      #pragma unroll
      for (u32 n = 0; n < KEYS / 16; n++) {
        u32 k[4];
        load_matrices(k, &lds.k[16 * n + lane / 16 * 8 + lane % 8][16 * d + lane / 8 % 2 * 8]);
        mma_16x8x16(score[2 * n], q[d], k[0], k[1]);
        mma_16x8x16(score[2 * n + 1], q[d], k[2], k[3]);
      }
    if (a.softcap != 0.f)
      #pragma unroll
      for (u32 i = 0; i < KEYS / 2; i++) score[i / 4][i % 4] = soft_cap(score[i / 4][i % 4] * a.scale, a.softcap);
    if (key < all_see_from || key + KEYS > all_see_to)
      #pragma unroll
      for (u32 i = 0; i < KEYS / 2; i++) {
        const u32 half = i / 2 % 2, at = key + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (at < tile.first_key(my_rows[half]) || at >= tile.end_key(my_rows[half])) score[i / 4][i % 4] = MASKED;
      }

    #pragma unroll
    for (u32 half = 0; half < 2; half++) {
      float highest = top[half];
      #pragma unroll
      for (u32 n = 0; n < KEYS / 8; n++) highest = fmax_(highest, fmax_(score[n][2 * half], score[n][2 * half + 1]));
      highest = fmax_(highest, shfl_xor(highest, 1));
      highest = fmax_(highest, shfl_xor(highest, 2));
      const float factor = fast_exp2((top[half] - highest) * to_log2), base = highest * to_log2;
      top[half] = highest;
      sum[half] *= factor;
      #pragma unroll
      for (u32 n = 0; n < D / 8; n++) { values[n][2 * half] *= factor; values[n][2 * half + 1] *= factor; }
      #pragma unroll
      for (u32 i = 0; i < KEYS / 4; i++) {
        float& x = score[i / 2][2 * half + i % 2];
        x = fast_exp2(fma_(x, to_log2, -base));
        sum[half] += x;                                                // of this lane; the quad's are added at the end
      }
    }

    copies_wait();
    block_sync();                                                      // V is there; K's place is free
    if (key + KEYS < keys.end) {
      runs.next(keys, key + KEYS);
      copy_tile<D>(lds.k, keys, keys.k, runs, key + KEYS);
    }
    #pragma unroll
    for (u32 n = 0; n < KEYS / 16; n++) {
      const float *x = score[2 * n], *y = score[2 * n + 1];            // the layout of a result is that of an operand
      const u32 weights[4] = {pack(x[0], x[1]), pack(x[2], x[3]), pack(y[0], y[1]), pack(y[2], y[3])};
      #pragma unroll
      for (u32 d = 0; d < D / 16; d++) {
        u32 v[4];
        load_matrices_transposed(v, &lds.v[16 * n + lane % 16][16 * d + lane / 16 * 8]);
        mma_16x8x16(values[2 * d], weights, v[0], v[1]);
        mma_16x8x16(values[2 * d + 1], weights, v[2], v[3]);
      }
    }
  }

  #pragma unroll
  for (u32 half = 0; half < 2; half++) {
    float total = sum[half];
    total += shfl_xor(total, 1);
    total += shfl_xor(total, 2);
    const float factor = softmax_factor(a, tile.head, top[half] * to_log2, total);
    const u32 row = warp_row + lane / 4 + 8 * half;
    #pragma unroll
    for (u32 d = 0; d < D / 32; d++) {
      float x[4][2];
      #pragma unroll
      for (u32 i = 0; i < 8; i++) x[i / 2][i % 2] = values[4 * d + i / 2][2 * half + i % 2] * factor;
      transpose_quad(x);
      if (row < tile.rows) store_eight(a, tile.row + row, tile.head, (4 * d + lane % 4) * 8, &x[0][0]);
    }
  }
}
