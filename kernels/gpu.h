// The portability layer: one kernel source for four compilers.
//   clang -x hip          AMD, ahead of time     __AMDGCN__
//   hipRTC                AMD, at run time       __AMDGCN__, and its own prelude
//   NVRTC, nvcc           NVIDIA                 __CUDACC_RTC__, __CUDACC__
//   any C++17 compiler    CPU, for tests         none of them (host/gpu_cpu.h)
// The GPU code needs no vendor header and no device library. Kernels therefore have no blockDim and no gridDim: block
// sizes are compile-time constants, and grids come with the arguments. AMD code objects have no hidden arguments.
//
// Vocabulary, on every platform:
//   KERNEL(threads, name, Args) { ... a.field ... },  DEV function,  MEM member function,  SHARED variable of a block,
//   TABLE constant array
//   KERNEL_AT_ONCE(threads, blocks, name, Args): limits registers so that `blocks` blocks fit a multiprocessor (NVIDIA
//     only; AMD's compilers choose themselves)
//   WARP (lanes of a wave: 32 or 64), tid_x, bid_x, bid_y, bid_z, lane_id
//   block_sync (orders LDS), warp_sync, shfl_*, warp_ballot, atomics, fences
//   h2f, f2h, dot4, fdot2, hsub2.., fast_*, mul_rn, add_rn, v4 / v2 and loads, lookup16, pdl_wait, pdl_launch
//   ld_step, ld_host, st_step (numbers that change from step to step)
#pragma once

typedef unsigned char  u8;
typedef signed char    i8;
typedef unsigned short u16;
typedef short          i16;
typedef unsigned int   u32;
typedef int            i32;
typedef unsigned long long u64;
typedef u16 f16;                       // storage of a half; vendors' half headers differ, so arithmetic uses functions

// ================================================================================================ AMD
#if defined(__AMDGCN__)
#define GPU_AMD 1
#define GPU_NV 0
#define GPU_WGMMA 0

// ---- language and target
#ifndef __global__                     // hipRTC's prelude defines them
  #define __global__ __attribute__((global))
  #define __device__ __attribute__((device))
  #define __shared__ __attribute__((shared))
  #define __constant__ __attribute__((constant))
#endif
#define DEV static __attribute__((device)) inline __attribute__((always_inline))
#define MEM __attribute__((device)) inline __attribute__((always_inline))
#define SHARED __attribute__((shared))
#define TABLE static __attribute__((device)) const
#define KERNEL(threads, name, Args) extern "C" __attribute__((global)) \
        __attribute__((amdgpu_flat_work_group_size(threads, threads))) void name(const Args a)
#define KERNEL_AT_ONCE(threads, blocks, name, Args) KERNEL(threads, name, Args)

// The family determines the wave size, because clang 22 lacks __AMDGCN_WAVEFRONT_SIZE__.
#ifndef WARP
  #if defined(__GFX8__) || defined(__GFX9__)
    #define WARP 64
  #else
    #define WARP 32
  #endif
#endif
// Matrix units are listed by target. The generation does not determine them: gfx117x belong to gfx11 and have gfx12's
// units, gfx125x belong to gfx12 and have neither. __has_builtin is true for gfx125x, but the compiler then aborts. A
// target in no list uses dot products.
#if defined(__gfx1100__) || defined(__gfx1101__) || defined(__gfx1102__) || defined(__gfx1103__) || \
    defined(__gfx1150__) || defined(__gfx1151__) || defined(__gfx1152__) || defined(__gfx1153__) || \
    defined(__gfx1154__) || defined(__gfx11_generic__)
  #define HAS_WMMA11 (WARP == 32)
#elif defined(__gfx1200__) || defined(__gfx1201__) || defined(__gfx12_generic__) || defined(__gfx1170__) || \
      defined(__gfx1171__) || defined(__gfx1172__)
  #define HAS_WMMA12 (WARP == 32)
#elif defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || \
      defined(__gfx942__) || defined(__gfx950__)
  #define HAS_MFMA 1
#endif
#if defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx940__) || \
    defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__) || defined(__gfx1011__) || \
    defined(__gfx1012__) || defined(__gfx1030__) || defined(__gfx1031__) || defined(__gfx1032__) || \
    defined(__gfx1033__) || defined(__gfx1034__) || defined(__gfx1035__) || defined(__gfx1036__) || \
    defined(__gfx10_3_generic__)
  #define HAS_SDOT4 1                  // v_dot4_i32_i8
  #define HAS_FDOT2 1                  // v_dot2_f32_f16
#elif defined(__GFX11__) || defined(__GFX12__)
  #define HAS_SUDOT4 1                 // v_dot4_i32_iu8, the successor of v_dot4_i32_i8
  #if __has_builtin(__builtin_amdgcn_fdot2)  // gfx125x have none
    #define HAS_FDOT2 1
  #endif
#endif

// ---- threads
DEV int tid_x() { return (int)__builtin_amdgcn_workitem_id_x(); }
DEV int bid_x() { return (int)__builtin_amdgcn_workgroup_id_x(); }
DEV int bid_y() { return (int)__builtin_amdgcn_workgroup_id_y(); }
DEV int bid_z() { return (int)__builtin_amdgcn_workgroup_id_z(); }
DEV int lane_id() {
#if WARP == 64
  return (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
#else
  return (int)__builtin_amdgcn_mbcnt_lo(~0u, 0u);
#endif
}
// Fences for LDS only neither invalidate the cache nor wait for stores to global memory. clang < 19 has only full
// fences.
#if __clang_major__ >= 19
  #define LOCAL_FENCE(order) __builtin_amdgcn_fence(order, "workgroup", "local")
#else
  #define LOCAL_FENCE(order) __builtin_amdgcn_fence(order, "workgroup")
#endif
DEV void block_sync() { LOCAL_FENCE(__ATOMIC_RELEASE); __builtin_amdgcn_s_barrier(); LOCAL_FENCE(__ATOMIC_ACQUIRE); }
DEV void warp_sync() {                 // lanes run in lockstep: this keeps the compiler from reordering LDS accesses
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
DEV u32 shfl_u32(u32 v, int src) { return (u32)__builtin_amdgcn_ds_bpermute(src << 2, (int)v); }
DEV u32 of_first_lane(u32 v) { return (u32)__builtin_amdgcn_readfirstlane((int)v); }
// By DPP, an operand of the vector unit, where it can exchange these lanes. Other exchanges go through LDS.
template <int CONTROL> DEV u32 dpp(u32 v) {
  return (u32)__builtin_amdgcn_update_dpp(0, (int)v, CONTROL, 0xf, 0xf, true);
}
template <int M> DEV u32 shfl_xor(u32 v) {
  static_assert(M == 1 || M == 2 || M == 4 || M == 8 || M == 16 || M == 32, "a power of two");
  if constexpr (M == 1) return dpp<0xb1>(v);               // quad_perm:[1,0,3,2]
  else if constexpr (M == 2) return dpp<0x4e>(v);          // quad_perm:[2,3,0,1]
#if defined(__GFX9__)
  else if constexpr (M == 4) {
    const int below = __builtin_amdgcn_update_dpp((int)v, (int)v, 0x104, 0xf, 0x5, false);       // row_shl:4
    return (u32)__builtin_amdgcn_update_dpp(below, (int)v, 0x114, 0xf, 0xa, false);              // row_shr:4
  } else if constexpr (M == 8) return dpp<0x128>(v);       // row_ror:8
  else if constexpr (M == 16) return (u32)__builtin_amdgcn_ds_swizzle((int)v, 0x401f);           // needs no address
  else return shfl_u32(v, lane_id() ^ M);
#else
  else if constexpr (M < 16) return dpp<0x160 | M>(v);     // row_xmask
  else return (u32)__builtin_amdgcn_permlanex16((int)v, (int)v, 0x76543210, (int)0xfedcba98, true, false);
#endif
}
DEV u64 warp_ballot(bool p) {
#if !__has_builtin(__builtin_amdgcn_ballot_w32)              // clang <= 15
  return __builtin_amdgcn_uicmp((u32)p, 0u, 33 /* not equal */);
#elif WARP == 64
  return __builtin_amdgcn_ballot_w64(p);
#else
  return __builtin_amdgcn_ballot_w32(p);
#endif
}
// Between blocks, use agent scope: caches of different compute units are not coherent at a narrower scope.
DEV u32 atomic_add_u32(u32* p, u32 v) {
  return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
DEV void lds_add_u64(u64* p, u64 v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP); }
DEV void release_fence() { __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent"); }
DEV void acquire_fence() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent"); }

// ---- numbers
typedef _Float16 h2v __attribute__((ext_vector_type(2)));
DEV float h2f(f16 h) { return (float)__builtin_bit_cast(_Float16, h); }
DEV f16 f2h(float f) { return __builtin_bit_cast(u16, (_Float16)f); }
DEV h2v as_halves(u32 w) { return __builtin_bit_cast(h2v, w); }
DEV u32 hsub2(u32 a, u32 b) { return __builtin_bit_cast(u32, as_halves(a) - as_halves(b)); }
DEV u32 hmul2(u32 a, u32 b) { return __builtin_bit_cast(u32, as_halves(a) * as_halves(b)); }
DEV u32 hfma2(u32 a, u32 b, u32 c) {
  return __builtin_bit_cast(u32, __builtin_elementwise_fma(as_halves(a), as_halves(b), as_halves(c)));
}
DEV float fdot2(u32 a, u32 b, float c) {
#if defined(HAS_FDOT2)
  return __builtin_amdgcn_fdot2(as_halves(a), as_halves(b), c, false);
#else
  return c + (float)as_halves(a)[0] * (float)as_halves(b)[0] + (float)as_halves(a)[1] * (float)as_halves(b)[1];
#endif
}
DEV i32 dot4(u32 a, u32 b, i32 c) {
#if defined(HAS_SDOT4)
  return __builtin_amdgcn_sdot4((int)a, (int)b, c, false);
#elif defined(HAS_SUDOT4)
  return __builtin_amdgcn_sudot4(true, (int)a, true, (int)b, c, false);
#else
  for (int i = 0; i < 4; i++) c += (i32)(i8)(a >> 8 * i) * (i32)(i8)(b >> 8 * i);
  return c;
#endif
}
#if __has_builtin(__builtin_amdgcn_exp2f)
DEV float fast_exp2(float x) { return __builtin_amdgcn_exp2f(x); }
#else                                  // clang <= 15 compiles this to a bare v_exp_f32
DEV float fast_exp2(float x) { return __builtin_exp2f(x); }
#endif
DEV float fast_rcp(float x) { return __builtin_amdgcn_rcpf(x); }
DEV float fast_rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
DEV float fmax_(float a, float b) { return __builtin_fmaxf(a, b); }
DEV float fabs_(float a) { return __builtin_fabsf(a); }
DEV float rint_(float a) { return __builtin_rintf(a); }
DEV float fma_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEV float mul_rn(float a, float b) {
  #pragma clang fp contract(off)
  return a * b;
}
DEV float add_rn(float a, float b) {
  #pragma clang fp contract(off)
  return a + b;
}

// ---- memory
typedef u32 v4 __attribute__((ext_vector_type(4)));
typedef u32 v2 __attribute__((ext_vector_type(2)));
DEV v4 ld16s(const void* p) { return __builtin_nontemporal_load((const v4*)p); }
DEV v2 ld8s(const void* p) { return __builtin_nontemporal_load((const v2*)p); }
DEV u32 ld4s(const void* p) { return __builtin_nontemporal_load((const u32*)p); }
DEV u32 ld2s(const void* p) { return __builtin_nontemporal_load((const u16*)p); }
DEV u32 ld1s(const void* p) { return __builtin_nontemporal_load((const u8*)p); }
#if defined(GPU_SCALAR_STEP)           // a mutation for sim/amdsim/tests/coherence.rs
DEV u32 ld_step(const u32* p) { return *p; }
#else
DEV u32 ld_step(const u32* p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
#endif
DEV u64 ld_host(const u64* p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM); }
DEV void st_step(u64* p, u64 v) { __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT); }
DEV void loads_first() { __builtin_amdgcn_sched_barrier(0); }
DEV u32 recomputed(int x) { asm volatile("" : "+v"(x)); return (u32)x; }
DEV void lookup16(u32 w, u32 t0, u32 t1, u32 t2, u32 t3, u32& low, u32& high) {
  const u32 n[2] = {w & 0x0f0f0f0fu, (w >> 4) & 0x0f0f0f0fu};
  u32 r[2];
  for (int k = 0; k < 2; k++) {
    const u32 first = __builtin_amdgcn_perm(t1, t0, n[k] & 0x07070707u);    // selectors 0..3 are the second operand
    const u32 second = __builtin_amdgcn_perm(t3, t2, n[k] & 0x07070707u);
    r[k] = __builtin_amdgcn_perm(second, first, 0x03020100u | ((n[k] >> 1) & 0x04040404u));
  }
  low = r[0];
  high = r[1];
}
DEV void pdl_wait() {}
DEV void pdl_launch() {}
DEV void prefetch(const void*) {}

// ================================================================================================ NVIDIA
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define GPU_AMD 0
#define GPU_NV 1
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  #define GPU_WGMMA 1                  // wgmma.h
#else
  #define GPU_WGMMA 0
#endif

// ---- language
#define DEV static __device__ __forceinline__
#define MEM __device__ __forceinline__
#define SHARED __shared__
#define TABLE static __device__ const
#define KERNEL(threads, name, Args) extern "C" __global__ __launch_bounds__(threads) \
        void name(const __grid_constant__ Args a)
#define KERNEL_AT_ONCE(threads, blocks, name, Args) extern "C" __global__ __launch_bounds__(threads, blocks) \
        void name(const __grid_constant__ Args a)
#if GPU_WGMMA
#define KERNEL_OF_CLUSTER(threads, blocks, name, Args) extern "C" __global__ __launch_bounds__(threads) \
        __cluster_dims__(blocks, 1, 1) void name(const __grid_constant__ Args a)
#endif
#define WARP 32

// ---- threads
DEV int tid_x() { return (int)threadIdx.x; }
DEV int bid_x() { return (int)blockIdx.x; }
DEV int bid_y() { return (int)blockIdx.y; }
DEV int bid_z() { return (int)blockIdx.z; }
DEV int lane_id() { u32 r; asm("mov.u32 %0, %%laneid;" : "=r"(r)); return (int)r; }
DEV void block_sync() { __syncthreads(); }
DEV void warp_sync() { __syncwarp(); }
DEV u32 shfl_u32(u32 v, int src) { return __shfl_sync(0xffffffffu, v, src); }
DEV u32 of_first_lane(u32 v) { return shfl_u32(v, 0); }
template <int M> DEV u32 shfl_xor(u32 v) { return __shfl_xor_sync(0xffffffffu, v, M); }
DEV u64 warp_ballot(bool p) { return __ballot_sync(0xffffffffu, p); }
DEV u32 atomic_add_u32(u32* p, u32 v) { return atomicAdd(p, v); }
DEV void lds_add_u64(u64* p, u64 v) { atomicAdd(p, v); }
DEV u32 atomic_arrive_u32(u32* p, u32 v) {           // releases before and acquires after
  u32 r;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(r) : "l"(p), "r"(v) : "memory");
  return r;
}
DEV void release_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
DEV void acquire_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// ---- numbers
DEV float h2f(f16 h) { float f; asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h)); return f; }
DEV f16 f2h(float f) { f16 h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
DEV u32 hsub2(u32 a, u32 b) { u32 r; asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEV u32 hmul2(u32 a, u32 b) { u32 r; asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b)); return r; }
DEV u32 hfma2(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
// Halves saturate; a NaN stays NaN.
DEV u32 hclamp2(u32 a) {
  u32 r;
  asm("{ .reg .b32 t; min.NaN.f16x2 t, %1, %2; max.NaN.f16x2 %0, t, %3; }"
      : "=r"(r) : "r"(a), "r"(0x7bff7bffu), "r"(0xfbfffbffu));
  return r;
}
DEV u32 halves_sat(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return hclamp2(r);
}
DEV float fdot2(u32 a, u32 b, float c) {
  return fmaf(h2f((f16)(a >> 16)), h2f((f16)(b >> 16)), fmaf(h2f((f16)a), h2f((f16)b), c));
}
DEV i32 dot4(u32 a, u32 b, i32 c) {
  i32 r;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
DEV float fast_exp2(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float fast_rcp(float x) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float fast_rsqrt(float x) { float r; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float fmax_(float a, float b) { return fmaxf(a, b); }
DEV float fabs_(float a) { return fabsf(a); }
DEV float rint_(float a) { return rintf(a); }
DEV float fma_(float a, float b, float c) { return fmaf(a, b, c); }
DEV float mul_rn(float a, float b) { return __fmul_rn(a, b); }
DEV float add_rn(float a, float b) { return __fadd_rn(a, b); }

// ---- memory. Addresses in shared memory are in bytes, so that the compiler folds constant offsets into instructions.
DEV u32 shared_address(const void* p) {
  u64 address;
  asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(p));
  return (u32)address;
}
// Weights are read once: their loads bypass L1, and L2 fetches 256 bytes.
struct __align__(16) v4 { u32 x, y, z, w; };
struct __align__(8)  v2 { u32 x, y; };
#if GPU_WGMMA && defined(WEIGHTS_IN_SHARED)       // the copy engine has brought them
DEV v4 ld16s(const void* p) { return *(const v4*)p; }
DEV v2 ld8s(const void* p) { return *(const v2*)p; }
DEV u32 ld4s(const void* p) { return *(const u32*)p; }
DEV u32 ld2s(const void* p) { return *(const u16*)p; }
DEV u32 ld1s(const void* p) { return *(const u8*)p; }
#else
DEV v4 ld16s(const void* p) {
  v4 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  return r;
}
DEV v2 ld8s(const void* p) {
  v2 r;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0,%1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(p));
  return r;
}
DEV u32 ld4s(const void* p) { u32 r; asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(r) : "l"(p)); return r; }
DEV u32 ld2s(const void* p) { u16 r; asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(r) : "l"(p)); return r; }
DEV u32 ld1s(const void* p) { u32 r; asm volatile("ld.global.nc.u8 %0, [%1];" : "=r"(r) : "l"(p)); return r; }
#endif
DEV u32 ld_step(const u32* p) { return *p; }
DEV v4 ld16_once(const void* p) {
  v4 r;
  asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "l"(p));
  return r;
}
DEV void st16_once(void* p, v4 v) {
  asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
DEV u64 ld_host(const u64* p) { u64 r; asm volatile("ld.global.u64 %0, [%1];" : "=l"(r) : "l"(p)); return r; }
DEV void st_step(u64* p, u64 v) { *p = v; }
DEV void loads_first() { asm volatile("" ::: "memory"); }
DEV u32 recomputed(int x) { return (u32)x; }
DEV void lookup16(u32 w, u32 t0, u32 t1, u32 t2, u32 t3, u32& low, u32& high) {
  const u32 half = 0x32103210u | ((w & 0x88888888u) >> 1);     // selectors are nibbles; only three of their bits count
  u32 r[2];
  for (int k = 0; k < 2; k++)
    r[k] = __byte_perm(__byte_perm(t0, t1, w >> (16 * k)), __byte_perm(t2, t3, w >> (16 * k)), half >> (16 * k));
  low = __byte_perm(r[0], r[1], 0x6420);
  high = __byte_perm(r[0], r[1], 0x7531);
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
DEV void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEV void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#else
DEV void pdl_wait() {}
DEV void pdl_launch() {}
#endif
DEV void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" :: "l"(p)); }

// ================================================================================================ CPU
#else
#define GPU_AMD 0
#define GPU_NV 0
#define GPU_WGMMA 0
#define GPU_CPU 1
#define MEM inline __attribute__((always_inline))
#include "host/gpu_cpu.h"
DEV float mul_rn(float a, float b) { return a * b; }         // ISO C++ mode: nothing is contracted
DEV float add_rn(float a, float b) { return a + b; }
DEV u32 pack_halves2(float low, float high) { return (u32)f2h(low) | (u32)f2h(high) << 16; }
DEV u32 hsub2(u32 a, u32 b) { return pack_halves2(h2f((f16)a) - h2f((f16)b), h2f(a >> 16) - h2f(b >> 16)); }
DEV u32 hmul2(u32 a, u32 b) { return pack_halves2(h2f((f16)a) * h2f((f16)b), h2f(a >> 16) * h2f(b >> 16)); }
DEV u32 hfma2(u32 a, u32 b, u32 c) {
  return pack_halves2(fma_(h2f((f16)a), h2f((f16)b), h2f((f16)c)), fma_(h2f(a >> 16), h2f(b >> 16), h2f(c >> 16)));
}
struct alignas(16) v4 { u32 x, y, z, w; };
struct alignas(8)  v2 { u32 x, y; };
DEV v4 ld16s(const void* p) { return *(const v4*)p; }
DEV v2 ld8s(const void* p) { return *(const v2*)p; }
DEV u32 ld4s(const void* p) { return *(const u32*)p; }
DEV u32 ld2s(const void* p) { return *(const u16*)p; }
DEV u32 ld1s(const void* p) { return *(const u8*)p; }
DEV u32 ld_step(const u32* p) { return *p; }
DEV u64 ld_host(const u64* p) { return *p; }
DEV void st_step(u64* p, u64 v) { *p = v; }
DEV void loads_first() {}
DEV u32 recomputed(int x) { return (u32)x; }
DEV void lookup16(u32 w, u32 t0, u32 t1, u32 t2, u32 t3, u32& low, u32& high) {
  const u32 t[4] = {t0, t1, t2, t3};
  const auto entry = [&](u32 n) { return (t[n >> 2] >> (8 * (n & 3))) & 255u; };
  low = high = 0;
  for (int p = 0; p < 4; p++) {
    low |= entry((w >> (8 * p)) & 15) << (8 * p);
    high |= entry((w >> (8 * p + 4)) & 15) << (8 * p);
  }
}
DEV void pdl_wait() {}
DEV void pdl_launch() {}
DEV void prefetch(const void*) {}
#endif

// ================================================================================================ all
// Definitions for all platforms:
//   mul_rn, add_rn     each rounded; hipRTC and NVRTC contract a product and a sum to one fma by default
//   hsub2, hmul2, ..   on the two halves of a word, each rounded once;  fdot2: c + a.x * b.x + a.y * b.y
//   halves_sat         two numbers as the saturated halves of a word, as f2h_sat;  hclamp2: the same for two halves
//   dot4               c + four products of signed bytes
//   ld16s .. ld1s      streaming loads, for weights, which are read once
//   ld16_once          data that is read once in a step, and written: not kept in NVIDIA's L2. AMD's last-level cache
//   st16_once          may have room for it until the next step.
//   ld_step            a number that changes from step to step: of the batch, or the expert of a row. Never through
//                      AMD's scalar cache: runtimes were seen not to invalidate it for the kernels of a graph. An
//                      atomic load reads L2.
//   ld_host, st_step   ld_host reads page-locked memory as it was at the launch; st_step stores a number of a step. On
//                      NVIDIA ld_host is a plain load: volatile or relaxed loads of one line run one after the other,
//                      in 1 us each.
//   loads_first        keeps the loads before it ahead of the arithmetic after it; compilers move loads down to save
//                      registers
//   recomputed         hides a lane's number from AMD's compiler. The compiler then recomputes derived values where
//                      they are used, instead of hoisting them out of the loop. There they would occupy registers (a
//                      condition: scalar registers) and spill.
//   lookup16           bytes of the 16-byte table {t0, .., t3}, selected by the low and by the high nibbles of w.
//                      Permutes select among eight entries by three bits; another one selects the upper or lower eight
//                      by the fourth.
//   shfl_xor<M>        the number of lane ^ M, which must be active
//   combine_lanes      the numbers of LANES neighbouring lanes, combined by `op` with lane ^ LANES / 2 first and
//                      lane ^ 1 last. All of these lanes get the result.
//   of_first_lane      the number of lane 0 of a wave, in all of its lanes
//   release_fence      a thread's earlier writes become visible to all blocks before its next atomic
//   acquire_fence      later reads see what others released before the thread's last atomic
//   pdl_wait           NVIDIA's programmatic dependent launch: a kernel may start before the previous one has ended. It
//                      calls pdl_wait before it touches anything but weights and the step's inputs. `copy_step` has
//                      written those before any other kernel of the step starts (`Stream::launch_apart`). EVERY kernel
//                      must call it, because order is transitive.
//   pdl_launch         the next kernel may start from here on
//   prefetch           requests a line of L2, even while another kernel may write it; useful only before pdl_wait
DEV v4 ld16(const void* p) { return *(const v4*)p; }
#if !GPU_NV
DEV v4 ld16_once(const void* p) { return ld16(p); }
DEV void st16_once(void* p, v4 v) { *(v4*)p = v; }
#endif
DEV v2 ld8(const void* p) { return *(const v2*)p; }

DEV bool is_aligned(const void* p, u32 bytes) { return ((u64)p & (bytes - 1)) == 0; }     // to a power of two
DEV float bits_f32(u32 u) { union { u32 u; float f; } x; x.u = u; return x.f; }
DEV u32 f32_bits(float f) { union { u32 u; float f; } x; x.f = f; return x.u; }
DEV float clamp_half(float f) { return f > 65504.f ? 65504.f : f < -65504.f ? -65504.f : f; }    // a NaN stays NaN
DEV u16 f2h_sat(float f) { return f2h(clamp_half(f)); }
#if !GPU_NV
DEV u32 halves_sat(float low, float high) { return (u32)f2h_sat(low) | (u32)f2h_sat(high) << 16; }
DEV u32 hclamp2(u32 a) { return halves_sat(h2f((f16)(a & 0xffff)), h2f((f16)(a >> 16))); }
#endif
DEV float lo_h(u32 w) { return h2f((f16)(w & 0xffff)); }
DEV float hi_h(u32 w) { return h2f((f16)(w >> 16)); }
DEV u32 splat(f16 h) { return (u32)h | (u32)h << 16; }
// A bf16 is the upper half of an f32, rounded to nearest even; a NaN stays NaN.
DEV float bf2f(u16 b) { return bits_f32((u32)b << 16); }
DEV u16 f2bf(float f) {
  const u32 u = f32_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (u16)(u >> 16 | 0x40);
  return (u16)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
constexpr float LOG2E = 1.44269504088896340736f;
DEV float fast_exp(float x) { return fast_exp2(x * LOG2E); }

template <int M> DEV float shfl_xor(float v) { return bits_f32(shfl_xor<M>(f32_bits(v))); }
template <int M> DEV i32 shfl_xor(i32 v) { return (i32)shfl_xor<M>((u32)v); }
template <int M> DEV u64 shfl_xor(u64 v) { return (u64)shfl_xor<M>((u32)(v >> 32)) << 32 | shfl_xor<M>((u32)v); }
template <int LANES, class T, class F> DEV T combine_lanes(T v, F op) {
  if constexpr (LANES > 1) return combine_lanes<LANES / 2>(op(v, shfl_xor<LANES / 2>(v)), op);
  else return v;
}
template <int LANES, class T> DEV T sum_lanes(T v) { return combine_lanes<LANES>(v, [](T a, T b) { return a + b; }); }
template <int LANES, class T> DEV T max_lanes(T v) {
  return combine_lanes<LANES>(v, [](T a, T b) { return a > b ? a : b; });
}
template <int LANES> DEV float max_lanes(float v) {
  return combine_lanes<LANES>(v, [](float a, float b) { return fmax_(a, b); });
}
template <class T> DEV T warp_sum(T v) { return sum_lanes<WARP>(v); }
DEV float warp_max(float v) { return max_lanes<WARP>(v); }
DEV bool warp_any(bool p) { return warp_ballot(p) != 0; }
