// Maps floats to unsigned integers with the same order.
#pragma once
#include "gpu.h"

// -0 and 0 have the same number. Only a NaN can have the number 0.
DEV u32 ordered(float f) {
  const u32 bits = f32_bits(f);
  return bits == 0x80000000u ? bits : bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEV float unordered(u32 key) { return bits_f32(key >> 31 ? key & 0x7fffffffu : ~key); }
