// matmul_experts_<type>_n{16,64}: `matmul` over rows that lie in runs of one expert each, every run a whole number of
// blocks of rows. A unit of its own, so that models without experts neither compile nor load it.
#define MATMUL_OF_EXPERTS
#define WEIGHTS_IN_SHARED                // where wgmma multiplies
#include "matmul_multiply.h"
#include "matmul_finish.h"

template <int N> DEV void matmul_experts(const MatmulExpertsArgs& a) {
  MatmulArgs product = a.product;
  const MatmulPlace<N> at(product, bid_x());
  pdl_wait();                          // the experts were chosen by a kernel before
  const u32 expert = ld_step(a.experts + at.by);
  if (expert == NO_EXPERT) return;
  product.weights += expert * a.expert_bytes;
  if (product.bias) product.bias += (u64)expert * product.out_rows;
  MatmulSums<N> sums;
  multiply<Tile>(sums, product, at);
  finish(sums, product, at);
}

#define MATMUL_EXPERTS_KERNEL(N) \
  MATMUL_BLOCK(N, PASTE(TYPED(matmul_experts_), _n##N), MatmulExpertsArgs) { matmul_experts<N>(a); }
MATMUL_EXPERTS_KERNEL(16)
MATMUL_EXPERTS_KERNEL(64)
