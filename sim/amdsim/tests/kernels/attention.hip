// Paged attention of one query token a sequence: indirect addresses, online softmax, a reduction through LDS.
#include "device.h"
#define THREADS 256
#define HD 128
#define PAGE 16
#define WAVES (THREADS / WARP)
#define PER (HD / WARP)  // elements a lane

// q [sequence][heads][HD] f32, K and V [page][kv heads][PAGE][HD] f16, table [sequence][maxpages]
KERNEL(THREADS) attention(float* RESTRICT o, const float* RESTRICT q, const f16* RESTRICT K, const f16* RESTRICT V,
                          const i32* RESTRICT table, const i32* RESTRICT lens, int heads, int kvh, int maxpages, float scale) {
  SHARED float sm[WAVES], sl[WAVES], so[WAVES][HD];
  const int h = bid_x(), s = bid_y(), t = tid_x(), wave = t / WARP, lane = t & (WARP - 1);
  const int kv = h / (heads / kvh), len = lens[s];
  const float* qp = q + ((long)s * heads + h) * HD + lane * PER;
  u32 qh[PER / 2];
  for (int i = 0; i < PER / 2; i++)
    qh[i] = (u32)f2h(qp[2 * i] * scale * LOG2E) | ((u32)f2h(qp[2 * i + 1] * scale * LOG2E) << 16);
  float m = -1e30f, sum = 0.f, acc[PER];
  for (int i = 0; i < PER; i++) acc[i] = 0.f;
  for (int j = wave; j < len; j += WAVES) {
    const int page = table[s * maxpages + j / PAGE];
    const long at = (((long)page * kvh + kv) * PAGE + (j % PAGE)) * HD + lane * PER;
    float d = 0.f;
    for (int i = 0; i < PER / 2; i++) d = dot2(((const u32*)(K + at))[i], qh[i], d);
    d = warp_sum(d);
    const float mn = __builtin_fmaxf(m, d), c = fast_exp2(m - mn), p = fast_exp2(d - mn);
    sum = sum * c + p;
    m = mn;
    for (int i = 0; i < PER; i++) acc[i] = __builtin_fmaf(p, h2f(V[at + i]), acc[i] * c);
  }
  if (lane == 0) { sm[wave] = m; sl[wave] = sum; }
  for (int i = 0; i < PER; i++) so[wave][lane * PER + i] = acc[i];
  barrier<1>();
  if (t < HD) {
    float M = -1e30f, L = 0.f, A = 0.f;
    for (int i = 0; i < WAVES; i++) M = __builtin_fmaxf(M, sm[i]);
    for (int i = 0; i < WAVES; i++) {
      float c = fast_exp2(sm[i] - M);
      L = __builtin_fmaf(sl[i], c, L);
      A = __builtin_fmaf(so[i][t], c, A);
    }
    o[((long)s * heads + h) * HD + t] = A / L;
  }
}
