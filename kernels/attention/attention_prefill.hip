// Attention of prompt chunks over the paged cache. A block takes up to 64 rows (tokens; 128 on NVIDIA) of one sequence
// and one head. It walks the keys in tiles with an online softmax (flash attention). Over a cache of f16 or int8 the
// products use the matrix units, with q, the weights and int8 elements converted to f16. Over an f32 cache, and for
// heads that are not a multiple of eight, everything is f32 on the vector units.
#include "attention_prefill_few.h"
#if GPU_NV
  #include "attention_prefill_nv.h"
  #include "attention_prefill_wgmma.h"
#else
  #include "attention_prefill_mma.h"
#endif

// Over f16 and int8.
template <class T, u32 D> DEV void attention_prefill_narrow(const AttentionArgs& a) {
  // That many output columns would fill all registers on the matrix units' path; on NVIDIA, over f16, warps share them.
  if constexpr (D > 256 && !(GPU_NV && sizeof(T) == 2)) attention_prefill_few<T, D, 2, true>(a);
  else if (a.head_dim % 8 == 0) attention_prefill_mma<T, D>(a);
  else attention_prefill_few<T, D, 1, false>(a);  // one row: no more registers than the other path
}
template <u32 D> DEV void attention_prefill_f16(const AttentionArgs& a) {
#if GPU_WGMMA
  if constexpr (D <= 256) {
    if (a.head_dim % 8 == 0) attention_prefill_wgmma<D>(a);
    else if ((u32)tid_x() < ATTENTION_THREADS) attention_prefill_few<f16, D, 1, false>(a);
  } else
#endif
    attention_prefill_narrow<f16, D>(a);
}
template <u32 D> DEV void attention_prefill_int8(const AttentionArgs& a) { attention_prefill_narrow<i8, D>(a); }
template <u32 D> DEV void attention_prefill_f32(const AttentionArgs& a) {
  attention_prefill_few<float, D, D <= 256 ? 4 : 2, true>(a);
}

#define ATTENTION_PREFILL(suffix, D)              \
  {                                               \
    pdl_launch(); pdl_wait();                     \
    attention_prefill_##suffix<D>(a);             \
    pad_rows(reload(a));                          \
  }
#define ATTENTION_PREFILL_PLAIN(suffix, D) \
  KERNEL(ATTENTION_THREADS, attention_prefill_##suffix##_d##D, AttentionArgs) ATTENTION_PREFILL(suffix, D)
#if GPU_WGMMA
constexpr u32 PREFILL_THREADS = ATTENTION_PREFILL_WGMMA_THREADS;
#else
constexpr u32 PREFILL_THREADS = ATTENTION_THREADS;
#endif
// setmaxnreg moves registers between warpgroups only in kernels that declare how many blocks run at once.
#define ATTENTION_PREFILL_GROUPS(suffix, D) \
  KERNEL_AT_ONCE(PREFILL_THREADS, 1, attention_prefill_##suffix##_d##D, AttentionArgs) ATTENTION_PREFILL(suffix, D)
ATTENTION_PREFILL_GROUPS(f16, 64)
ATTENTION_PREFILL_GROUPS(f16, 128)
ATTENTION_PREFILL_GROUPS(f16, 256)
ATTENTION_PREFILL_PLAIN(f16, 512)
ATTENTION_PREFILL_PLAIN(f32, 64)
ATTENTION_PREFILL_PLAIN(f32, 128)
ATTENTION_PREFILL_PLAIN(f32, 256)
ATTENTION_PREFILL_PLAIN(f32, 512)
ATTENTION_PREFILL_PLAIN(int8, 64)
ATTENTION_PREFILL_PLAIN(int8, 128)
ATTENTION_PREFILL_PLAIN(int8, 256)
ATTENTION_PREFILL_PLAIN(int8, 512)
