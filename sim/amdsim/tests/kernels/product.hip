// One product of the engine's matrix units: c = a * b^T of 16 x 16 tiles, in bf16 (WITH_BF16) or f16.
#include "../../../../kernels/mma.h"

struct Args { float* c; const u16* a; const u16* b; };

KERNEL(WARP, product, Args) {
  MmaA x;
  MmaB y;
  float acc[MMA_ACC] = {};
  mma_load(x, a.a, 16);
  mma_load(y, a.b, 16);
  mma<WITH_BF16>(acc, x, y);
  for (int i = 0; i < MMA_ACC; i++) a.c[16 * mma_row(lane_id(), i) + mma_col(lane_id(), i)] = acc[i];
}
