// Tiled matrix product: 16-byte loads, LDS, and the matrix unit if there is one.
#include "device.h"
#define THREADS (4 * WARP)
#define BM 64
#define BN 64
#define BK 32
#define LD (BK + 8)

// C[M][N] f32 = A[M][K] * B[N][K]^T in f16; M, N multiples of 64, K of 32. Four waves of 32x32 each.
KERNEL(THREADS) gemm(float* RESTRICT C, const f16* RESTRICT A, const f16* RESTRICT B, int M, int N, int K) {
  SHARED f16 As[BM * LD], Bs[BN * LD];
  const int t = tid_x(), wave = t / WARP, lane = lane_id(), m0 = bid_y() * BM, n0 = bid_x() * BN;
  const int wm = (wave >> 1) * 32, wn = (wave & 1) * 32;
  float acc[2][2][MMA_ACC];
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      for (int e = 0; e < MMA_ACC; e++) acc[i][j][e] = 0.f;
  for (int k0 = 0; k0 < K; k0 += BK) {
    for (int i = t; i < BM * BK / 8; i += THREADS) {
      const int r = i / (BK / 8), c = (i % (BK / 8)) * 8;
      for (int e = 0; e < 4; e++) {
        ((u32*)(As + r * LD + c))[e] = ((const u32*)(A + (long)(m0 + r) * K + k0 + c))[e];
        ((u32*)(Bs + r * LD + c))[e] = ((const u32*)(B + (long)(n0 + r) * K + k0 + c))[e];
      }
    }
    barrier<1>();
    for (int k = 0; k < BK; k += 16)
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
          mma(acc[i][j], As + (wm + 16 * i) * LD + k, LD, Bs + (wn + 16 * j) * LD + k, LD);
    barrier<2>();
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      for (int e = 0; e < MMA_ACC; e++)
        C[(long)(m0 + wm + 16 * i + mma_row(lane, e)) * N + n0 + wn + 16 * j + mma_col(lane)] = acc[i][j][e];
}
