// The device functions of the test kernels, only for AMD GPUs.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef u16 f16;
typedef long long i64;

#define DEV static __attribute__((device)) inline __attribute__((always_inline))
#define KERNEL(threads) extern "C" __attribute__((global)) \
  __attribute__((amdgpu_flat_work_group_size(threads, threads))) void
#define SHARED __attribute__((shared))
#define RESTRICT __restrict

#if defined(__GFX9__)
  #define WARP 64
#else
  #define WARP 32
#endif

DEV int tid_x() { return (int)__builtin_amdgcn_workitem_id_x(); }
DEV int bid_x() { return (int)__builtin_amdgcn_workgroup_id_x(); }
DEV int bid_y() { return (int)__builtin_amdgcn_workgroup_id_y(); }
DEV int lane_id() {
#if WARP == 64
  return (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
#else
  return (int)__builtin_amdgcn_mbcnt_lo(~0u, 0u);
#endif
}

#define FENCE(order) __builtin_amdgcn_fence(order, "workgroup", "local")
// With -DNO_BARRIER=n the n-th barrier of the kernel is omitted: the tests then expect a wrong result.
#ifndef NO_BARRIER
  #define NO_BARRIER 0
#endif
template <int number> DEV void barrier() {
  FENCE(__ATOMIC_RELEASE);
  if (number != NO_BARRIER) __builtin_amdgcn_s_barrier();
  FENCE(__ATOMIC_ACQUIRE);
}

DEV float bits_f32(u32 u) { return __builtin_bit_cast(float, u); }
DEV u32 f32_bits(float f) { return __builtin_bit_cast(u32, f); }
DEV float h2f(f16 h) { return (float)__builtin_bit_cast(_Float16, h); }
DEV f16 f2h(float f) { return __builtin_bit_cast(u16, (_Float16)f); }

DEV u32 shuffle(u32 v, int lane) { return (u32)__builtin_amdgcn_ds_bpermute(lane << 2, (int)v); }
DEV u32 shuffle_xor(u32 v, int mask) { return shuffle(v, lane_id() ^ mask); }
DEV i32 shuffle_xor(i32 v, int mask) { return (i32)shuffle_xor((u32)v, mask); }
DEV float shuffle_xor(float v, int mask) { return bits_f32(shuffle_xor(f32_bits(v), mask)); }
DEV float warp_sum(float v) {
  for (int m = WARP / 2; m; m >>= 1) v += shuffle_xor(v, m);
  return v;
}
DEV u64 ballot(bool p) {
#if WARP == 64
  return __builtin_amdgcn_ballot_w64(p);
#else
  return __builtin_amdgcn_ballot_w32(p);
#endif
}

DEV float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
DEV float fast_rcp(float x) { return __builtin_amdgcn_rcpf(x); }
DEV float fast_rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
#define LOG2E 1.44269504088896340736f

#if defined(__gfx900__) || defined(__gfx1010__) || defined(__gfx9_generic__)
  #define NO_DOT
#endif
typedef _Float16 h2v __attribute__((ext_vector_type(2)));
DEV float dot2(u32 a, u32 b, float c) {
#if defined(NO_DOT)
  h2v x = __builtin_bit_cast(h2v, a), y = __builtin_bit_cast(h2v, b);
  return c + (float)x[0] * (float)y[0] + (float)x[1] * (float)y[1];
#else
  return __builtin_amdgcn_fdot2(__builtin_bit_cast(h2v, a), __builtin_bit_cast(h2v, b), c, false);
#endif
}
DEV i32 dot4(u32 a, u32 b, i32 c) {
#if defined(__GFX11__) || defined(__GFX12__)
  return __builtin_amdgcn_sudot4(true, (int)a, true, (int)b, c, false);
#elif defined(NO_DOT)
  for (int i = 0; i < 4; i++) c += (i32)(i8)(a >> 8 * i) * (i32)(i8)(b >> 8 * i);
  return c;
#else
  return __builtin_amdgcn_sdot4((int)a, (int)b, c, false);
#endif
}

DEV u32 unsigned_dot4(u32 a, u32 b, u32 c) {
#if defined(NO_DOT)
  for (int i = 0; i < 4; i++) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
#else
  return __builtin_amdgcn_udot4(a, b, c, false);
#endif
}

template <class T> DEV T atomic_add(T* p, T v) {
  return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
template <class T> DEV T atomic_max(T* p, T v) {
  return __hip_atomic_fetch_max(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// One 16x16x16 tile: accumulator i of a lane is element (mma_row, mma_col) of A * B^T; K is contiguous in both
// operands.
#define MMA_ACC (256 / WARP)
DEV int mma_col(int l) { return l & 15; }
#if defined(__GFX11__)
typedef _Float16 h16v __attribute__((ext_vector_type(16)));
typedef float f8v __attribute__((ext_vector_type(8)));
DEV int mma_row(int l, int i) { return 2 * i + (l >> 4); }
DEV void mma(float* acc, const f16* A, int lda, const f16* B, int ldb) {
  int l = lane_id() & 15;
  h16v a, b;
  f8v c;
  for (int i = 0; i < 16; i++) {
    a[i] = __builtin_bit_cast(_Float16, A[l * lda + i]);
    b[i] = __builtin_bit_cast(_Float16, B[l * ldb + i]);
  }
  for (int i = 0; i < 8; i++) c[i] = acc[i];
  c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c);
  for (int i = 0; i < 8; i++) acc[i] = c[i];
}
#elif defined(__GFX12__)
typedef _Float16 h8v __attribute__((ext_vector_type(8)));
typedef float f8v __attribute__((ext_vector_type(8)));
DEV int mma_row(int l, int i) { return 8 * (l >> 4) + i; }
DEV void mma(float* acc, const f16* A, int lda, const f16* B, int ldb) {
  int l = lane_id(), r = l & 15, k = (l >> 4) * 8;
  h8v a, b;
  f8v c;
  for (int i = 0; i < 8; i++) {
    a[i] = __builtin_bit_cast(_Float16, A[r * lda + k + i]);
    b[i] = __builtin_bit_cast(_Float16, B[r * ldb + k + i]);
  }
  for (int i = 0; i < 8; i++) c[i] = acc[i];
  c = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c);
  for (int i = 0; i < 8; i++) acc[i] = c[i];
}
#elif defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__)
typedef _Float16 h4v __attribute__((ext_vector_type(4)));
typedef float f4v __attribute__((ext_vector_type(4)));
DEV int mma_row(int l, int i) { return 4 * (l >> 4) + i; }
DEV void mma(float* acc, const f16* A, int lda, const f16* B, int ldb) {
  int l = lane_id(), r = l & 15, k = (l >> 4) * 4;
  h4v a, b;
  f4v c;
  for (int i = 0; i < 4; i++) {
    a[i] = __builtin_bit_cast(_Float16, A[r * lda + k + i]);
    b[i] = __builtin_bit_cast(_Float16, B[r * ldb + k + i]);
    c[i] = acc[i];
  }
  c = __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
  for (int i = 0; i < 4; i++) acc[i] = c[i];
}
#else
DEV int mma_row(int l, int i) { return (l >> 4) * MMA_ACC + i; }
DEV void mma(float* acc, const f16* A, int lda, const f16* B, int ldb) {
  int l = lane_id();
  for (int i = 0; i < MMA_ACC; i++)
    for (int k = 0; k < 16; k += 2)
      acc[i] = dot2(*(const u32*)(A + mma_row(l, i) * lda + k), *(const u32*)(B + mma_col(l) * ldb + k), acc[i]);
}
#endif
