// matmul_<type>_n{8,16,32,64}: quantised weights times 8, 16, 32 or 64 activation rows a block, on the matrix units.
// matmul_<type>_<type>_n{8,16,32,64}: two matrices of one stack in one launch.
#define WEIGHTS_IN_SHARED                // with wgmma
#include "matmul_multiply.h"
#include "matmul_finish.h"

// Computes block `x` among the blocks of a matrix of type T.
template <class T, int N> DEV void matmul(const MatmulArgs& a, u32 x) {
  const MatmulPlace<N> at(a, x);
  MatmulSums<N> sums;
  multiply<T>(sums, a, at);
  finish(sums, a, at);
}

#ifndef SECOND
#define MATMUL_KERNEL(N) \
  MATMUL_BLOCK(N, PASTE(TYPED(matmul_), _n##N), MatmulArgs) { matmul<Tile, N>(a, bid_x()); }
MATMUL_KERNEL(8)
MATMUL_KERNEL(16)
MATMUL_KERNEL(32)
MATMUL_KERNEL(64)
#else
template <int N> DEV void matmul_pair(const MatmulPairArgs& a) {
  const u32 x = bid_x(), blocks = MatmulPlace<N>::width(a.first);
  if (x < blocks) matmul<Tile, N>(a.first, x);
  else matmul<SecondTile, N>(a.second, x - blocks);
}
#define MATMUL_KERNEL(N) \
  MATMUL_BLOCK(N, PASTE(TYPED(matmul_), _n##N), MatmulPairArgs) { matmul_pair<N>(a); }
MATMUL_KERNEL(8)
MATMUL_KERNEL(16)
MATMUL_KERNEL(32)
MATMUL_KERNEL(64)
#endif
