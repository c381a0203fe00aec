// matmul_gated_<type>_n<N>: the gated activation of the products with gate and up, which are never in memory. A
// separate unit, because its blocks of 64 rows have other shapes than those of `matmul`.
#define MATMUL_OF_GATE
#define WEIGHTS_IN_SHARED                // with wgmma
#include "matmul_gated.h"

template <int N> DEV void matmul_gated(const MatmulGatedArgs& a) {
  MatmulArgs product = a.product;
  const GatedPlace<N> at(product, bid_x());
  if (at.is_up) product.weights = a.weights_up;
  MatmulSums<N> sums;
  multiply<Tile>(sums, product, at);
  finish_gated(sums, product, a.bias_up, at, a.activation, a.format_out);
}

#define MATMUL_GATED_KERNEL(N) \
  MATMUL_BLOCK(N, PASTE(TYPED(matmul_gated_), _n##N), MatmulGatedArgs) { matmul_gated<N>(a); }
MATMUL_GATED_KERNEL(8)
MATMUL_GATED_KERNEL(16)
MATMUL_GATED_KERNEL(32)
MATMUL_GATED_KERNEL(64)
