// Attention of one token per sequence, for heads of each size.
#include "attention_decode.h"
#if GPU_NV
  #include "attention_decode_nv.h"
#endif

// Wide heads leave room for fewer heads at once.
#define ATTENTION_DECODE(type, suffix, D)                                                                \
  KERNEL(ATTENTION_THREADS, attention_decode_##suffix##_d##D, AttentionArgs) {                           \
    attention_decode<Shape<type, D, ATTENTION_THREADS, D <= 256 ? 4 : 2, false>>(a);                     \
  }                                                                                                      \
  KERNEL(ATTENTION_DECODE_HEAD_THREADS, attention_decode_head_##suffix##_d##D, AttentionArgs) {          \
    attention_decode<Shape<type, D, ATTENTION_DECODE_HEAD_THREADS, 1, true>>(a);                         \
  }
// The number is that of blocks on a multiprocessor at once, which share its registers.
#define ATTENTION_DECODE_MMA(type, suffix, D)                                                                 \
  KERNEL_AT_ONCE(ATTENTION_DECODE_MMA_THREADS, 2, attention_decode_mma_##suffix##_d##D, AttentionArgs) {      \
    attention_decode_mma<type, D, ATTENTION_DECODE_MMA_THREADS>(a);                                           \
  }                                                                                                           \
  KERNEL_AT_ONCE(ATTENTION_DECODE_MMA_MANY_THREADS, 4, attention_decode_mma_many_##suffix##_d##D, AttentionArgs) { \
    attention_decode_mma<type, D, ATTENTION_DECODE_MMA_MANY_THREADS>(a);                                      \
  }
#if GPU_NV
  #define ATTENTION_DECODE_NARROW ATTENTION_DECODE_MMA
#else
  #define ATTENTION_DECODE_NARROW ATTENTION_DECODE
#endif
ATTENTION_DECODE_NARROW(f16, f16, 64)
ATTENTION_DECODE_NARROW(f16, f16, 128)
ATTENTION_DECODE_NARROW(f16, f16, 256)
ATTENTION_DECODE_NARROW(i8, int8, 64)
ATTENTION_DECODE_NARROW(i8, int8, 128)
ATTENTION_DECODE_NARROW(i8, int8, 256)
ATTENTION_DECODE(f16, f16, 512)
ATTENTION_DECODE(i8, int8, 512)
ATTENTION_DECODE(float, f32, 64)
ATTENTION_DECODE(float, f32, 128)
ATTENTION_DECODE(float, f32, 256)
ATTENTION_DECODE(float, f32, 512)
