// Attention of one token per sequence, for heads of each size.
#include "attention_decode.h"

// Wide heads leave room for fewer of them at once.
#define ATTENTION_DECODE(type, suffix, D)                                                                \
  KERNEL(ATTENTION_THREADS, attention_decode_##suffix##_d##D, AttentionArgs) {                           \
    attention_decode<Shape<type, D, ATTENTION_THREADS, D <= 256 ? 4 : 2, false>>(a);                     \
  }                                                                                                      \
  KERNEL(ATTENTION_DECODE_HEAD_THREADS, attention_decode_head_##suffix##_d##D, AttentionArgs) {          \
    attention_decode<Shape<type, D, ATTENTION_DECODE_HEAD_THREADS, 1, true>>(a);                         \
  }
ATTENTION_DECODE(f16, f16, 64)
ATTENTION_DECODE(f16, f16, 128)
ATTENTION_DECODE(f16, f16, 256)
ATTENTION_DECODE(f16, f16, 512)
ATTENTION_DECODE(float, f32, 64)
ATTENTION_DECODE(float, f32, 128)
ATTENTION_DECODE(float, f32, 256)
ATTENTION_DECODE(float, f32, 512)
