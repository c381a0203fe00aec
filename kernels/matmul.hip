// matmul_<type>_n{8,16,32,64}: quantised weights times 8, 16, 32 or 64 activation rows a block, on the matrix units.
#include "matmul_multiply.h"
#include "matmul_finish.h"

template <int N> DEV void matmul(const MatmulArgs& a) {
  const MatmulPlace<N> at(a);
  MatmulSums<N> sums;
  multiply(sums, a, at);
  finish(sums, a, at);
}

#define MATMUL_KERNEL(N) \
  KERNEL(MATMUL_THREADS_N##N, PASTE(TYPED(matmul_), _n##N), MatmulArgs) { matmul<N>(a); }
MATMUL_KERNEL(8)
MATMUL_KERNEL(16)
MATMUL_KERNEL(32)
MATMUL_KERNEL(64)
