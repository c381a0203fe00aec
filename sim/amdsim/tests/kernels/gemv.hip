// Quantised matrix times vector: bytes, dot4, halves.
#include "device.h"
#define THREADS 256
#define ROWS (THREADS / WARP)  // one wave a row
struct Q8 { float d, s; u32 q[8]; };
DEV u32 word(const u8* p) { const u16* h = (const u16*)p; return (u32)h[0] | ((u32)h[1] << 16); }

// Q4_0: f16 scale, 16 bytes of two 4-bit values each
KERNEL(THREADS) gemv_q4_0(float* RESTRICT y, const u8* RESTRICT W, const Q8* RESTRICT x, int rows, int cols) {
  const int row = bid_x() * ROWS + tid_x() / WARP, lane = tid_x() & (WARP - 1), blocks = cols / 32;
  if (row >= rows) return;
  float acc = 0.f;
  const u8* w = W + (long)row * blocks * 18;
  for (int b = lane; b < blocks; b += WARP) {
    const u8* p = w + b * 18;
    int s = 0;
    for (int j = 0; j < 4; j++) {
      u32 q = word(p + 2 + 4 * j);
      s = dot4(q & 0x0f0f0f0fu, x[b].q[j], s);
      s = dot4((q >> 4) & 0x0f0f0f0fu, x[b].q[j + 4], s);
    }
    acc += h2f(*(const f16*)p) * (x[b].d * (float)s - 8.f * x[b].s);
  }
  acc = warp_sum(acc);
  if (lane == 0) y[row] = acc;
}

// Q4_K: f16 scale and minimum, twelve bytes of 6-bit scales and minima, 128 bytes of 4-bit values
KERNEL(THREADS) gemv_q4_k(float* RESTRICT y, const u8* RESTRICT W, const Q8* RESTRICT x, int rows, int cols) {
  const int row = bid_x() * ROWS + tid_x() / WARP, lane = tid_x() & (WARP - 1), parts = cols / 32;
  if (row >= rows) return;
  float acc = 0.f;
  const u8* w = W + (long)row * (cols / 256) * 144;
  for (int b = lane; b < parts; b += WARP) {
    const u8* p = w + (b / 8) * 144;
    const int i = b & 7;
    const u8* sc = p + 4;
    int scale, minimum;
    if (i < 4) {
      scale = sc[i] & 63;
      minimum = sc[i + 4] & 63;
    } else {
      scale = (sc[i + 4] & 15) | ((sc[i - 4] >> 6) << 4);
      minimum = (sc[i + 4] >> 4) | ((sc[i] >> 6) << 4);
    }
    const u32* q = (const u32*)(p + 16 + (i / 2) * 32);
    const int shift = (i & 1) * 4;
    int s = 0;
    for (int j = 0; j < 8; j++) s = dot4((q[j] >> shift) & 0x0f0f0f0fu, x[b].q[j], s);
    acc += h2f(*(const f16*)p) * (float)scale * x[b].d * (float)s - h2f(*(const f16*)(p + 2)) * (float)minimum * x[b].s;
  }
  acc = warp_sum(acc);
  if (lane == 0) y[row] = acc;
}
