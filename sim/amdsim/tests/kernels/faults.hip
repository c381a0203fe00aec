// Kernels that must not run to their end, or that expose memory that was never written.
#include "device.h"

KERNEL(WARP) lds(u32* y, int index) {
  SHARED u32 s[WARP];
  const int t = tid_x();
  ((volatile u32*)s)[t + index] = t;
  barrier<1>();
  y[t] = s[t];
}
KERNEL(WARP) unwritten(u32* y) {
  SHARED u32 s[WARP];
  const int t = tid_x();
  if (t > 1000) s[t] = t;
  barrier<1>();
  y[t] = ((volatile u32*)s)[t];
}
KERNEL(WARP) unknown(u32* y) {
  u32 t = tid_x(), r;
  asm volatile("v_sad_u8 %0, %1, %1, %1" : "=v"(r) : "v"(t));
  y[t] = r;
}
KERNEL(WARP) trapped(u32* y) {
  y[tid_x()] = 1;
  __builtin_trap();
}
