// matmul_experts_<type>_n{16,64}: `matmul` over rows grouped by expert; each group is a whole number of blocks of rows.
// matmul_gated_experts_<type>_n{16,64}: the gated activation of the products with gate and up. A separate unit, so that
// models without experts neither compile nor load it.
#define MATMUL_OF_EXPERTS
#define WEIGHTS_IN_SHARED                // with wgmma
#include "cached_experts.h"
#include "matmul_gated.h"

// Returns the expert of a block of rows, or NO_EXPERT if nothing is computed.
DEV u32 expert_of(const MatmulExpertsArgs& a, u32 by) {
  pdl_wait();                          // an earlier kernel chose the experts
  const u32 expert = ld_step(a.experts + by);
  return expert == NO_EXPERT || is_here(a.cached, slot_of(a.cached, expert)) ? expert : NO_EXPERT;
}
// Returns the tiles of an expert: its copy among `copies` if there is one.
DEV const u8* weights_of(const MatmulExpertsArgs& a, const u8* copies, const u8* weights, u32 expert) {
  return tiles_of(a.cached, slot_of(a.cached, expert), copies, weights, expert * a.expert_bytes);
}
DEV const float* bias_of(const float* bias, u32 expert, u32 out_rows) {
  return bias ? bias + (u64)expert * out_rows : bias;
}

template <int N> DEV void matmul_experts(const MatmulExpertsArgs& a) {
  MatmulArgs product = a.product;
  const MatmulPlace<N> at(product, bid_x());
  const u32 expert = expert_of(a, at.by);
  if (expert == NO_EXPERT) return;
  product.weights = weights_of(a, a.cached.tiles, product.weights, expert);
  product.bias = bias_of(product.bias, expert, product.out_rows);
  MatmulSums<N> sums;
  multiply<Tile>(sums, product, at);
  add_groups(sums, at);                // there are no splits to add
  if (at.kw == 0) store_sums(sums, product, at, product.out);
}

template <int N> DEV void matmul_gated_experts(const MatmulGatedExpertsArgs& a) {
  MatmulArgs product = a.gate.product;
  const GatedPlace<N> at(product, bid_x());
  const u32 expert = expert_of(a.gate, at.by);
  if (expert == NO_EXPERT) return;
  const u8* copies = at.is_up ? a.gate.cached.tiles_up : a.gate.cached.tiles;
  product.weights = weights_of(a.gate, copies, at.is_up ? a.weights_up : product.weights, expert);
  product.bias = bias_of(product.bias, expert, product.out_rows);
  const float* bias_up = bias_of(a.bias_up, expert, product.out_rows);
  MatmulSums<N> sums;
  multiply<Tile>(sums, product, at);
  finish_gated(sums, product, bias_up, at, a.activation, a.format_out);
}

#define MATMUL_EXPERTS_KERNEL(N) \
  MATMUL_BLOCK(N, PASTE(TYPED(matmul_experts_), _n##N), MatmulExpertsArgs) { matmul_experts<N>(a); } \
  MATMUL_BLOCK(N, PASTE(TYPED(matmul_gated_experts_), _n##N), MatmulGatedExpertsArgs) { matmul_gated_experts<N>(a); }
MATMUL_EXPERTS_KERNEL(16)
MATMUL_EXPERTS_KERNEL(64)
