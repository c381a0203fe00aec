// The rows of latent attention (MLA): products of each head with its own matrix, and the store of latent rows.
#include "activation.h"
#include "block_sum.h"
#include "mma.h"
#include "rope.h"

// ------------------------------------------------------------------------------------------------ products of heads
constexpr u32 TILE = HEAD_PRODUCTS_TILE, STEP = 64, STRIDE = STEP + 8;

// Returns columns c .. c + 4 of a row of halves, with zeros from `cols` on.
DEV v2 load_halves(const u16* row, u32 c, u32 cols) {
  if (cols % 4 == 0) return c < cols ? ld8(row + c) : v2{0, 0};
  u32 h[4];
  for (u32 i = 0; i < 4; i++) h[i] = c + i < cols ? row[c + i] : 0;
  return {h[0] | h[1] << 16, h[2] | h[3] << 16};
}

struct Operands {
  alignas(16) f16 x[TILE * STRIDE], weights[TILE * STRIDE];
};

// A block computes 64 rows and 64 outputs of a head. A wave has 16 rows and its share of the tiles of 16 outputs. Waves
// without rows only load operands. An output's order of summation depends only on its columns.
KERNEL(HEAD_PRODUCTS_THREADS, head_products, HeadProductsArgs) {
  constexpr u32 TURNS = TILE * STEP / 4 / HEAD_PRODUCTS_THREADS, TILES = TILE / 4 / (HEAD_PRODUCTS_THREADS / WARP);
  SHARED Operands lds;
  pdl_launch(); pdl_wait();
  const u32 thread = (u32)tid_x(), head = (u32)bid_z();
  const u32 first_out = (u32)bid_x() * TILE, first_row = (u32)bid_y() * TILE;
  const u32 row_tile = thread / WARP % 4, first_tile = thread / WARP / 4 * TILES;
  const float* in = a.x + (u64)head * a.x_head;
  const u64 x_stride = (u64)a.heads * a.x_head;
  const bool aligned = is_aligned(a.x, 16) && a.x_head % 4 == 0;
  const u16* matrix = a.weights + (u64)head * a.out_cols * a.cols;
  const bool works = first_row + 16 * row_tile < a.rows;

  float sums[TILES][MMA_ACC] = {};
  for (u32 k = 0; k < a.cols; k += STEP) {
    Four fours[TURNS];
    v2 halves[TURNS];
    #pragma unroll
    for (u32 i = 0; i < TURNS; i++) {
      const u32 r = (thread + i * HEAD_PRODUCTS_THREADS) / (STEP / 4);
      const u32 c = k + (thread + i * HEAD_PRODUCTS_THREADS) % (STEP / 4) * 4;
      const bool has_row = first_row + r < a.rows, has_out = first_out + r < a.out_cols;
      fours[i] = load_four(in + (first_row + r) * x_stride, aligned, c, has_row ? a.cols : 0);
      halves[i] = load_halves(matrix + (u64)(first_out + r) * a.cols, has_out ? c : a.cols, a.cols);
    }
    #pragma unroll
    for (u32 i = 0; i < TURNS; i++) {
      const u32 r = (thread + i * HEAD_PRODUCTS_THREADS) / (STEP / 4);
      const u32 c = (thread + i * HEAD_PRODUCTS_THREADS) % (STEP / 4) * 4;
      const float* v = fours[i].v;
      *(v2*)&lds.x[r * STRIDE + c] = {f2h_sat(v[0]) | (u32)f2h_sat(v[1]) << 16, f2h_sat(v[2]) | (u32)f2h_sat(v[3]) << 16};
      *(v2*)&lds.weights[r * STRIDE + c] = halves[i];
    }
    block_sync();                                        // the operands are in LDS
    if (works)
      for (u32 d = 0; d < STEP; d += 16)
        #pragma unroll
        for (u32 n = 0; n < TILES; n++)
          mma_16x16x16(sums[n], lds.x + 16 * row_tile * STRIDE + d, STRIDE,
                       lds.weights + 16 * (first_tile + n) * STRIDE + d, STRIDE);
    block_sync();                                        // the operands have been read
  }

  const u32 cols = a.heads * a.out_head;
  #pragma unroll
  for (u32 n = 0; n < TILES; n++)
    #pragma unroll
    for (u32 i = 0; i < (u32)MMA_ACC; i++) {
      const u32 row = first_row + 16 * row_tile + (u32)mma_row(lane_id(), (int)i);
      const u32 out = first_out + 16 * (first_tile + n) + (u32)mma_col(lane_id(), (int)i);
      if (row < a.rows && out < a.out_cols)
        store_activation(a.out, a.format_out, row, head * a.out_head + out, cols, sums[n][i]);
    }
  // The padding after the last head, which all formats but F32 have.
  if (a.format_out == FORMAT_F32 || head + 1 != a.heads || bid_x() != 0) return;
  const u32 padding = ((cols + 255) & ~255u) - cols;
  for (u32 i = thread; i < TILE * padding; i += HEAD_PRODUCTS_THREADS)
    if (first_row + i / padding < a.rows)
      store_activation(a.out, a.format_out, first_row + i / padding, cols + i % padding, cols, 0.f);
}

// ------------------------------------------------------------------------------------------------ rows of the cache
// A block has a row.
template <class T> DEV void latent_store(const LatentStoreArgs& a) {
  SHARED float waves[LATENT_STORE_THREADS / WARP];
  const u32 thread = (u32)tid_x(), row = (u32)bid_x(), num_pairs = a.rope_dim / 2, row_dim = a.rank + a.rope_dim;
  const float* angles = a.angles + (u64)row * a.rope_dim;
  const bool halves = (a.flags & ROTATION_NEOX) != 0;
  const auto first = [&](u32 pair) { return halves ? pair : 2 * pair; };
  const auto second = [&](u32 pair) { return halves ? pair + num_pairs : 2 * pair + 1; };
  const float* q = a.q + (u64)row * a.num_heads * (a.plain_dim + a.rope_dim);
  float* queries = a.queries + (u64)row * a.num_heads * row_dim;
  float factor = 1.f;
  if (a.temperature != 0.f) {
    const u32 contexts = (ld_step(a.positions + row) + a.temperature_offset) / a.temperature_context;
    factor = 1.f + a.temperature * log_accurate(1.f + (float)contexts);
    for (u32 i = thread; i < a.num_heads * a.rank; i += LATENT_STORE_THREADS)
      queries[i / a.rank * row_dim + i % a.rank] *= factor;
  }
  for (u32 i = thread; i < a.num_heads * num_pairs; i += LATENT_STORE_THREADS) {
    const u32 head = i / num_pairs, pair = i % num_pairs;
    const float* from = q + head * (a.plain_dim + a.rope_dim) + a.plain_dim;
    float* to = queries + head * row_dim + a.rank + 2 * pair;
    const float u = from[first(pair)], v = from[second(pair)], c = angles[pair], s = angles[num_pairs + pair];
    to[0] = factor * fma_(u, c, -(v * s));
    to[1] = factor * fma_(u, s, v * c);
  }

  const float* latent = a.latent + (u64)row * row_dim;
  float squares = 0.f;
  for (u32 i = thread; i < a.rank; i += LATENT_STORE_THREADS) squares = fma_(latent[i], latent[i], squares);
  const float scale = fast_rsqrt(block_sum<LATENT_STORE_THREADS>(squares, waves) / (float)a.rank + a.eps);
  const u32 slot = ld_step(a.slot_mapping + row);
  if (slot == NO_SLOT) return;
  T* cache = (T*)a.cache + (u64)slot * row_dim;
  for (u32 i = thread; i < a.rank; i += LATENT_STORE_THREADS) store_cache(cache + i, latent[i] * scale * a.norm[i]);
  for (u32 pair = thread; pair < num_pairs; pair += LATENT_STORE_THREADS) {
    const float u = latent[a.rank + first(pair)], v = latent[a.rank + second(pair)];
    const float c = angles[pair], s = angles[num_pairs + pair];
    store_cache(cache + a.rank + 2 * pair, fma_(u, c, -(v * s)));
    store_cache(cache + a.rank + 2 * pair + 1, fma_(u, s, v * c));
  }
}

KERNEL(LATENT_STORE_THREADS, latent_store_f16, LatentStoreArgs) {
  pdl_launch(); pdl_wait();
  latent_store<f16>(a);
}
KERNEL(LATENT_STORE_THREADS, latent_store_f32, LatentStoreArgs) {
  pdl_launch(); pdl_wait();
  latent_store<float>(a);
}
