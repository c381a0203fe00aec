// Attention over latent rows (MLA, absorbed): all heads attend to one row per token, whose first elements are also V.
// FewQueries computes it in f32 on the vector units; a row is read once for K and V. Rows and values may be shorter
// than the kernels' sizes, as in small models. On NVIDIA, prefill over an f16 cache uses the matrix units, as for other
// heads.
#include "attention_decode.h"
#include "attention_prefill_few.h"
#if GPU_NV
  #include "attention_prefill_nv.h"
#endif

template <class T, u32 THREADS, u32 QUERIES, bool PER_HEAD>
using LatentShape = Shape<T, LATENT_ROW, THREADS, QUERIES, PER_HEAD, LATENT_VALUES>;
static_assert(LatentShape<float, ATTENTION_THREADS, 2, false>::HEADS == ATTENTION_LATENT_HEADS, "the host's grid");

template <class T> DEV void attention_latent_prefill(const AttentionArgs& a) {
  #if GPU_NV
    if constexpr (sizeof(T) == 2)
      if (a.head_dim % 8 == 0) return attention_prefill_mma<T, LATENT_ROW>(a);
  #endif
  attention_prefill_few<T, LATENT_ROW, 2, true, LATENT_VALUES>(a);
}

#define ATTENTION_LATENT(type, suffix)                                                           \
  KERNEL(ATTENTION_THREADS, attention_latent_decode_##suffix, AttentionArgs) {                   \
    attention_decode<LatentShape<type, ATTENTION_THREADS, 2, false>>(a);                         \
  }                                                                                              \
  KERNEL(ATTENTION_DECODE_HEAD_THREADS, attention_latent_decode_head_##suffix, AttentionArgs) {  \
    attention_decode<LatentShape<type, ATTENTION_DECODE_HEAD_THREADS, 1, true>>(a);              \
  }                                                                                              \
  KERNEL(ATTENTION_THREADS, attention_latent_prefill_##suffix, AttentionArgs) {                  \
    pdl_launch(); pdl_wait();                                                                    \
    attention_latent_prefill<type>(a);                                                           \
    pad_rows(reload(a));                                                                         \
  }
ATTENTION_LATENT(f16, f16)
ATTENTION_LATENT(float, f32)
