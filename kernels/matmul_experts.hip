// matmul_experts_<type>_n{16,64}: `matmul` over rows grouped by expert; each group is a whole number of blocks of rows.
// matmul_gated_experts_<type>_n{16,64}: the gated activation of the products with gate and up. A separate unit, so that
// models without experts neither compile nor load it.
#define MATMUL_OF_EXPERTS
#define WEIGHTS_IN_SHARED                // with wgmma
#include "cached_experts.h"
#include "matmul_gated.h"

// Points `product` to the expert of its block of rows, whose copies are at `copies`. Returns false for a block without
// an expert.
DEV bool of_expert(MatmulArgs& product, const MatmulExpertsArgs& a, const u8* copies, u32 by) {
  pdl_wait();                          // an earlier kernel chose the experts
  const u32 expert = ld_step(a.experts + by);
  if (expert == NO_EXPERT) return false;
  const u32 slot = slot_of(a.cached, expert);
  product.weights = tiles_of(a.cached, slot, copies, product.weights, expert * a.expert_bytes);
  if (product.bias) product.bias += (u64)expert * product.out_rows;
  return true;
}

template <int N> DEV void matmul_experts(const MatmulExpertsArgs& a) {
  MatmulArgs product = a.product;
  const MatmulPlace<N> at(product, bid_x());
  if (!of_expert(product, a, a.cached.tiles, at.by)) return;
  MatmulSums<N> sums;
  multiply<Tile>(sums, product, at);
  add_groups(sums, at);                // there are no splits to add
  if (at.kw == 0) store_sums(sums, product, at, product.out);
}

template <int N> DEV void matmul_gated_experts(const MatmulGatedExpertsArgs& a) {
  MatmulArgs product = a.gate.product;
  const GatedPlace<N> at(product, bid_x());
  if (at.is_up) {
    product.weights = a.weights_up;
    product.bias = a.bias_up;
  }
  if (!of_expert(product, a.gate, at.is_up ? a.gate.cached.tiles_up : a.gate.cached.tiles, at.by)) return;
  MatmulSums<N> sums;
  multiply<Tile>(sums, product, at);
  finish_gated(sums, product, at, a.activation, a.format_out);
}

#define MATMUL_EXPERTS_KERNEL(N) \
  MATMUL_BLOCK(N, PASTE(TYPED(matmul_experts_), _n##N), MatmulExpertsArgs) { matmul_experts<N>(a); } \
  MATMUL_BLOCK(N, PASTE(TYPED(matmul_gated_experts_), _n##N), MatmulGatedExpertsArgs) { matmul_gated_experts<N>(a); }
MATMUL_EXPERTS_KERNEL(16)
MATMUL_EXPERTS_KERNEL(64)
