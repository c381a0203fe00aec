// Attention over latent rows (MLA, absorbed): all heads attend to one row a token, whose first elements are V as well.
// What FewQueries does for other heads it does here, in f32 on the vector units; a row is read once for K and V. Rows
// and their values may be shorter than what the kernels hold, as in small models.
#include "attention_decode.h"
#include "attention_prefill_few.h"

template <class T, u32 THREADS, u32 QUERIES, bool PER_HEAD>
using LatentShape = Shape<T, LATENT_ROW, THREADS, QUERIES, PER_HEAD, LATENT_VALUES>;
static_assert(LatentShape<float, ATTENTION_THREADS, 2, false>::HEADS == ATTENTION_LATENT_HEADS, "the host's grid");

#define ATTENTION_LATENT(type, suffix)                                                           \
  KERNEL(ATTENTION_THREADS, attention_latent_decode_##suffix, AttentionArgs) {                   \
    attention_decode<LatentShape<type, ATTENTION_THREADS, 2, false>>(a);                         \
  }                                                                                              \
  KERNEL(ATTENTION_DECODE_HEAD_THREADS, attention_latent_decode_head_##suffix, AttentionArgs) {  \
    attention_decode<LatentShape<type, ATTENTION_DECODE_HEAD_THREADS, 1, true>>(a);              \
  }                                                                                              \
  KERNEL(ATTENTION_THREADS, attention_latent_prefill_##suffix, AttentionArgs) {                  \
    pdl_launch(); pdl_wait();                                                                    \
    attention_prefill_few<type, LATENT_ROW, 2, true, LATENT_VALUES>(a);                          \
    pad_rows(reload(a));                                                                         \
  }
ATTENTION_LATENT(f16, f16)
ATTENTION_LATENT(float, f32)
