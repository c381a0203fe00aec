// One small kernel for each class of instructions. One wave; x holds 1024 random words, y 1024 results.
#include "device.h"
#define K(name) KERNEL(WARP) name(u32* y, const u32* x)
#define LANE const int t = tid_x()
#define LDS __attribute__((address_space(3)))
typedef int i2v __attribute__((ext_vector_type(2)));
typedef int i4v __attribute__((ext_vector_type(4)));
typedef int i8v __attribute__((ext_vector_type(8)));
typedef float F4 __attribute__((ext_vector_type(4)));
typedef float F8 __attribute__((ext_vector_type(8)));
typedef float F16 __attribute__((ext_vector_type(16)));
typedef short s8v __attribute__((ext_vector_type(8)));
typedef short s16v __attribute__((ext_vector_type(16)));
typedef _Float16 H4 __attribute__((ext_vector_type(4)));

// Lanes that DPP does not write keep 1000 + t.
#define DPP(n, control, rows, bound) y[64 * n + t] = __builtin_amdgcn_update_dpp(1000 + t, x[t], control, rows, 0xf, bound)
K(dpp) {
  LANE;
  DPP(0, 0xb1, 0xf, false);   // quad_perm:[1,0,3,2]
  DPP(1, 0x111, 0xf, false);  // row_shr:1
  DPP(2, 0x103, 0xf, true);   // row_shl:3 bound_ctrl
  DPP(3, 0x123, 0x5, false);  // row_ror:3, even rows
  DPP(4, 0x140, 0xf, false);  // row_mirror
  DPP(5, 0x141, 0xf, false);  // row_half_mirror
}
// The exchanges of kernels/gpu.h: part n is the number of lane ^ 2^n.
K(exchanges) {
  LANE;
  DPP(0, 0xb1, 0xf, true);    // quad_perm:[1,0,3,2]
  DPP(1, 0x4e, 0xf, true);    // quad_perm:[2,3,0,1]
#if defined(__GFX9__)
  const int below = __builtin_amdgcn_update_dpp(x[t], x[t], 0x104, 0xf, 0x5, false);      // row_shl:4, even banks
  y[128 + t] = __builtin_amdgcn_update_dpp(below, x[t], 0x114, 0xf, 0xa, false);          // row_shr:4, odd banks
  DPP(3, 0x128, 0xf, true);   // row_ror:8
  y[256 + t] = __builtin_amdgcn_ds_swizzle(x[t], 0x401f);
  y[320 + t] = shuffle(x[t], t ^ 32);
#else
  DPP(2, 0x164, 0xf, true);   // row_xmask:4
  DPP(3, 0x168, 0xf, true);   // row_xmask:8
  y[256 + t] = __builtin_amdgcn_permlanex16(x[t], x[t], 0x76543210, 0xfedcba98, true, false);
#endif
}
// A row exchange as the operand of an addition.
K(sum_of_exchange) {
  LANE;
  float v = (float)(x[t] & 255);
#if defined(__GFX9__)
  asm volatile("s_nop 1\n v_add_f32_dpp %0, %0, %0 row_ror:8 row_mask:0xf bank_mask:0xf bound_ctrl:0" : "+v"(v));
#else
  asm volatile("v_add_f32_dpp %0, %0, %0 row_xmask:8 row_mask:0xf bank_mask:0xf bound_ctrl:1" : "+v"(v));
#endif
  y[t] = (u32)v;
}
// The source register is the destination: every lane reads the old value.
K(dpp_in_place) {
  LANE;
  float v = (float)(x[t] & 255);
  asm volatile("v_add_f32_dpp %0, %0, %0 row_shr:1 row_mask:0xf bank_mask:0xf" : "+v"(v));
  y[t] = (u32)v;
}
K(swizzle) {
  LANE;
  y[t] = __builtin_amdgcn_ds_swizzle(x[t], 0x041f);        // swap neighbours
  y[64 + t] = __builtin_amdgcn_ds_swizzle(x[t], 0x00a3);   // keep bits 0, 1; set 0, 2
  y[128 + t] = __builtin_amdgcn_ds_swizzle(x[t], 0x801b);  // quad_perm:[3,2,1,0]
}
K(lanes) {
  LANE;
  y[t] = __builtin_amdgcn_readfirstlane(x[t]) + __builtin_amdgcn_readlane(x[t], 5);
  y[64 + t] = (u32)ballot(x[t] & 1);
  y[128 + t] = (u32)(ballot(x[t] & 1) >> 32);
  y[192 + t] = (u32)__builtin_amdgcn_ds_permute((t ^ 1) << 2, t);
  y[256 + t] = 7;
  if (t & 1) y[256 + t] = shuffle(x[t], t ^ 2) + shuffle(x[t], t ^ 1);  // an even lane is disabled: it gives 0
}
#if !defined(__GFX9__)
K(permlane) {
  LANE;
  y[t] = __builtin_amdgcn_permlanex16(x[t], x[t], 0x76543210, 0xfedcba98, false, false);
  y[64 + t] = __builtin_amdgcn_permlane16(x[t], x[t], 0x89abcdef, 0x01234567, false, false);
}
#endif
#if defined(__GFX11__) || defined(__GFX12__)
  #define LOAD_LOW "ds_load_u16_d16"
#else
  #define LOAD_LOW "ds_read_u16_d16"
#endif
#if defined(__GFX12__)
  #define WAIT "s_wait_dscnt 0x0"
#else
  #define WAIT "s_waitcnt lgkmcnt(0)"
#endif
K(d16) {
  LANE;
  SHARED u32 s[64];
  s[t] = x[t];
  asm volatile("" ::"v"((LDS u32*)s) : "memory");
  barrier<1>();
  u32 low = 0x12340000u | t, high = 0x5678u | t << 16, at = t * 4;
  asm volatile(LOAD_LOW " %0, %1\n " WAIT : "+v"(low) : "v"(at));
  asm volatile(LOAD_LOW "_hi %0, %1 offset:2\n " WAIT : "+v"(high) : "v"(at));
  y[t] = low;
  y[64 + t] = high;
}
struct __attribute__((packed)) Unaligned { u32 v; };
K(unaligned) {
  LANE;
  SHARED u32 s[WARP + 1];
  s[t] = x[t];
  if (t == 0) s[WARP] = x[WARP];
  barrier<1>();
  y[t] = ((const Unaligned*)((const u8*)s + t * 4 + 2))->v;
}
K(bytes) {
  LANE;
  const u8* p = (const u8*)x;
  ((u8*)y)[t] = p[3 * t] + ((const i8*)p)[t + 1];
  ((u16*)(y + 64))[t] = ((const u16*)x)[t] + (u16)((const i16*)x)[t + 7];
  y[128 + t] = (u32)(i32)((const i8*)p)[t] + (u32)(i32)((const i16*)x)[t];
}
K(perm) {
  LANE;
  y[t] = __builtin_amdgcn_perm(x[t], x[t + 64], x[t + 128] & 0x0f0f0f0f);
  y[64 + t] = __builtin_amdgcn_alignbyte(x[t], x[t + 64], x[t + 128]);
  y[128 + t] = __builtin_amdgcn_alignbit(x[t], x[t + 64], x[t + 128]);
  y[192 + t] = __builtin_amdgcn_ubfe(x[t], 5, 9) + __builtin_amdgcn_sbfe(x[t], 3, 12);
}
K(dot) {
  LANE;
  y[t] = dot4(x[t], x[t + 64], (i32)x[t + 128]);
  y[64 + t] = unsigned_dot4(x[t], x[t + 64], 5u);
}
K(bits) {
  LANE;
  y[t] = __builtin_popcount(x[t]);
  y[64 + t] = __builtin_clz(x[t] >> (t & 31) | 1) + 64 * __builtin_ctz(x[t] | 0x80000000u);
  y[128 + t] = __builtin_bitreverse32(x[t]);
  y[192 + t] = (x[t] & x[t + 64]) | (~x[t] & x[t + 128]);
}
K(wide) {
  LANE;
  u64 a = (u64)x[t] << 32 | x[t + 64], b = (u64)x[t + 128] << 32 | x[t + 192];
  u64 r[5] = {a + b, a - b, a * b, a >> (b & 63), (u64)((i64)a >> (b & 63))};
  for (int i = 0; i < 5; i++) { y[128 * i + t] = (u32)r[i]; y[128 * i + 64 + t] = (u32)(r[i] >> 32); }
  y[640 + t] = (a < b) + 2 * ((i64)a < (i64)b);
}
K(divide) {
  LANE;
  y[t] = x[t] / ((x[t + 64] & 0xff) + 1) + x[t] % 77u;
  y[64 + t] = (u32)((i32)x[t] / ((i32)x[t + 64] | 1));
  y[128 + t] = (u32)((((u64)x[t] << 32) | x[t + 64]) / 1000003u >> 7);
  float a = (float)(i32)x[t], b = (float)(i32)x[t + 64];
  y[192 + t] = f32_bits(a / b);
  double c = (double)(i32)x[t], d = (double)(i32)x[t + 64];
  u64 q = __builtin_bit_cast(u64, c / d);
  y[256 + t] = (u32)q;
  y[320 + t] = (u32)(q >> 32);
}
K(floats) {
  LANE;
  float a = (float)(i32)x[t] * 1e-7f, b = (float)(i32)x[t + 64] * 1e-8f, c = (float)(i32)x[t + 128];
  y[t] = f32_bits(__builtin_fmaf(a, b, c));
  y[64 + t] = f32_bits(__builtin_amdgcn_fmed3f(a, b, 3.f));
  y[128 + t] = f32_bits(__builtin_rintf(a)) ^ f32_bits(__builtin_floorf(b));
  y[192 + t] = (u32)(i32)a + (u32)__builtin_fabsf(b);
  y[256 + t] = f32_bits(__builtin_sqrtf(__builtin_fabsf(a)));
  y[320 + t] = f32_bits(__builtin_ldexpf(a, (int)(x[t] & 31) - 16));
  // NaN, infinities and zeros of both signs among ordinary numbers
  float s = bits_f32(t & 1 ? (x[t] & 0x80000000u) | (t & 2 ? 0x7f800000u : 0) | (t & 4 ? 0x400000u : 0) : x[t]);
  y[384 + t] = __builtin_isnan(s) + 2 * __builtin_isinf(s) + 4 * (s < 1.f) + 8 * !(s < 1.f) + 16 * (s != s);
}
// Within an ulp or two
K(transcendental) {
  LANE;
  float v = (float)(x[t] & 0xffff) * (1.f / 65536.f) - 0.25f;
  y[t] = f32_bits(__builtin_amdgcn_sinf(v));
  y[64 + t] = f32_bits(__builtin_amdgcn_cosf(v));
  y[128 + t] = f32_bits(__builtin_amdgcn_logf(v + 1.f));
  y[192 + t] = f32_bits(fast_exp2(16.f * v));
  y[256 + t] = f32_bits(fast_rsqrt(v + 1.f));
}
K(halves) {
  LANE;
  h2v a = {(_Float16)(float)(i32)(x[t] & 1023), (_Float16)0.1f}, b = {(_Float16)0.3f, (_Float16)(float)(x[t + 64] & 15)};
  y[t] = __builtin_bit_cast(u32, a * b + b);
  y[64 + t] = __builtin_bit_cast(u32, a + b);
  y[128 + t] = f2h((float)(i32)x[t] * 1e-9f) | f2h((float)(i32)x[t] * 1e-14f) << 16;
  y[192 + t] = f32_bits(h2f((f16)x[t] & 0xfbff) + h2f((f16)(x[t] >> 16) & 0xfbff) * 2.f);
  y[256 + t] = __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pkrtz((float)(i32)x[t] * 1e-9f, 1e9f));
  _Float16 c = a[0] / (_Float16)(float)((x[t] & 15) + 1);
  y[320 + t] = __builtin_bit_cast(u16, c);
}
K(lds_atomics) {
  LANE;
  SHARED u32 s[8];
  SHARED float f[8];
  if (t < 8) { s[t] = 0; f[t] = 0; }
  barrier<1>();
  __hip_atomic_fetch_add(&s[t & 7], x[t], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  __hip_atomic_fetch_add(&f[t & 7], (float)(x[t] & 255), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  barrier<2>();
  if (t < 8) { y[t] = s[t]; y[64 + t] = (u32)f[t]; }
}
K(atomics) {
  LANE;
  u32 old = atomic_add(y, x[t] & 255);
  y[64 + t] = old;
  atomic_max(y + 1, x[t]);
  __hip_atomic_fetch_min((i32*)y + 2, (i32)x[t], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  __hip_atomic_fetch_xor(y + 3, x[t], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  atomic_add((u64*)(y + 4), (u64)x[t] << 8);
  atomic_add((float*)y + 6, (float)(x[t] & 255));
  u32 expected = 0;
  while (!__hip_atomic_compare_exchange_strong(y + 7, &expected, expected + x[t], __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                               __HIP_MEMORY_SCOPE_AGENT)) {}
  y[128 + t] = __hip_atomic_exchange(y + 8, x[t], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
K(scratch) {
  LANE;
  u32 a[40];
  for (int i = 0; i < 40; i++) a[i] = x[(i * 7 + t) & 63];
  u32 s = 0;
  for (int i = 0; i < 20; i++) {
    const int j = (x[i] % 40 + t) % 40;
    a[j] += a[(j + 3) % 40];
    s += a[j];
  }
  y[t] = s;
}
static __attribute__((device, noinline)) u32 called(u32* a, u32 v) {
  for (int i = 0; i < 8; i++) a[(v + i) & 7] += v >> i;
  return a[v & 7];
}
K(call) {
  LANE;
  u32 a[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  y[t] = called(a, x[t]) + called(a, x[t + 64]);
}
static __attribute__((constant)) const u32 table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
K(constants) {
  LANE;
  y[t] = table[x[t] & 15];
}
K(lds_sizes) {
  LANE;
  SHARED u64 s[3 * WARP];
  volatile u8* b = (volatile u8*)s;
  volatile u16* h = (volatile u16*)(s + WARP);
  for (int i = 0; i < 8; i++) b[8 * t + i] = (u8)(x[t] >> (4 * i));
  for (int i = 0; i < 4; i++) h[4 * t + i] = (u16)(x[t] >> (5 * i));
  ((volatile u64*)s)[2 * WARP + t] = (u64)x[t] * x[64 + t];
  barrier<1>();
  const u64 bytes = ((volatile u64*)s)[t ^ 1], halves = ((volatile u64*)s)[WARP + (t ^ 1)];
  y[t] = (u32)bytes ^ (u32)(bytes >> 32);
  y[64 + t] = (u32)halves ^ (u32)(halves >> 32);
  y[128 + t] = (u32)(((volatile u64*)s)[2 * WARP + (t ^ 2)] >> 16) + b[8 * t + 3] + h[4 * (t ^ 3) + 1];
}
typedef u32 u4v __attribute__((ext_vector_type(4)));
typedef u32 u3v __attribute__((ext_vector_type(3)));
K(wide_memory) {
  LANE;
  u4v v = *(const u4v*)(x + 4 * t);
  *(u4v*)(y + 4 * (t ^ 1)) = v + 1;
  u3v w = *(const u3v*)(x + 4 * t + 256);
  *(u3v*)(y + 4 * t + 256) = w.zxy;
  *(u64*)(y + 512 + 2 * t) = *(const u64*)(x + 2 * t) - *(const u64*)(x + 512 + 2 * t);
}
K(extremes) {
  LANE;
  const u32 a = x[t], b = x[64 + t], c = x[128 + t];
  y[t] = (a < b ? a : b) + ((i32)a < (i32)c ? c : a);
  y[64 + t] = (u32)__builtin_elementwise_sub_sat(a, b) + (u32)__builtin_elementwise_add_sat((i32)a, (i32)c);
  y[128 + t] = __builtin_elementwise_max(__builtin_elementwise_max(a, b), c);
  y[192 + t] = f32_bits((float)(a >> 8 & 255) + (float)(a >> 24) * 256.f);
}
// All lanes compute the same values: scalar registers are used, and from GFX11.5 on scalar floats
KERNEL(WARP) uniform(u32* y, const u32* x, int n) {
  LANE;
  float sum = 1.f;
  u64 mixed = 1;
  for (int i = 0; i < n; i++) {
    const u32 v = x[8 * i];
    sum = __builtin_fmaf((float)(v & 255), 0.5f, sum);
    mixed = mixed * 3 + (((u64)v << 32 | x[8 * i + 1]) >> (v & 31));
    if (mixed > (u64)v << 33) mixed -= v;
    mixed ^= (u32)__builtin_popcountll(mixed) + (u32)__builtin_ctz(v | 256) + (u32)((i32)v >> 3) / (u32)(i + 1);
  }
  y[t] = (u32)mixed;
  y[64 + t] = (u32)(mixed >> 32);
  y[128 + t] = f32_bits(fast_rcp(sum));
  y[192 + t] = f32_bits(__builtin_truncf(sum * 0.3f) - __builtin_floorf(sum * 0.7f));
}
#if defined(__GFX9__) || defined(__GFX10__)
K(sdwa) {
  LANE;
  u32 r = x[128 + t], q = x[128 + t];
  asm volatile("v_and_b32_sdwa %0, %1, %2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_2 src1_sel:WORD_1"
               : "+v"(r) : "v"(x[t]), "v"(x[64 + t]));
  asm volatile("v_or_b32_sdwa %0, sext(%1), %2 dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:BYTE_3 src1_sel:DWORD"
               : "+v"(q) : "v"(x[t]), "v"(x[64 + t]));
  y[t] = r;
  y[64 + t] = q;
}
#endif
#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
K(accumulators) {
  LANE;
  u32 r;
  asm volatile("v_accvgpr_write_b32 a7, %1\n s_nop 4\n v_accvgpr_read_b32 %0, a7" : "=v"(r) : "v"(x[t]) : "a7");
  y[t] = r;
}
#endif

// A pointer to LDS or to global memory, lane by lane
K(flat) {
  LANE;
  SHARED u32 s[64];
  s[t] = x[t];
  barrier<1>();
  u32* p = x[64 + t] & 1 ? &s[t ^ 1] : (u32*)&x[128 + t];
  y[t] = *(volatile u32*)p;
}
K(buffers) {
  LANE;
#if defined(__GFX9__)
  const int flags = 0x00027000;
#else
  const int flags = 0x31004000;
#endif
  __amdgpu_buffer_rsrc_t r = __builtin_amdgcn_make_buffer_rsrc((void*)x, 0, 128 * 4, flags);
  y[t] = __builtin_amdgcn_raw_buffer_load_b32(r, t * 16, 0, 0);  // beyond the buffer's end from lane 32 on
  __amdgpu_buffer_rsrc_t w = __builtin_amdgcn_make_buffer_rsrc((void*)(y + 64), 0, 16 * 4, flags);
  __builtin_amdgcn_raw_buffer_store_b32(x[t], w, t * 4, 0, 0);   // dropped from lane 16 on
}
K(time) {
  LANE;
  u64 before = __builtin_readcyclecounter();
  __builtin_amdgcn_s_sleep(1);
  y[t] = __builtin_readcyclecounter() > before;
}

// ---- matrix units: rows of A and columns of B are contiguous in x and x + 512, D is stored by rows
#if defined(__GFX11__)
K(matrix_i8) {
  LANE;
  i4v a, b;
  i8v c = 3;
  for (int i = 0; i < 4; i++) { a[i] = x[(t & 15) * 4 + i]; b[i] = x[512 + (t & 15) * 4 + i]; }
  c = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, a, false, b, c, false);
  for (int i = 0; i < 8; i++) y[(2 * i + (t >> 4)) * 16 + (t & 15)] = c[i];
}
K(matrix_u4) {
  LANE;
  i2v a, b;
  i8v c = 0;
  for (int i = 0; i < 2; i++) { a[i] = x[(t & 15) * 2 + i]; b[i] = x[512 + (t & 15) * 2 + i]; }
  c = __builtin_amdgcn_wmma_i32_16x16x16_iu4_w32(false, a, false, b, c, false);
  for (int i = 0; i < 8; i++) y[(2 * i + (t >> 4)) * 16 + (t & 15)] = c[i];
}
K(matrix_bf16) {
  LANE;
  s16v a, b;
  F8 c = 0;
  for (int i = 0; i < 16; i++) {
    a[i] = ((const u16*)x)[(t & 15) * 16 + i] & 0xbfff;
    b[i] = ((const u16*)(x + 512))[(t & 15) * 16 + i] & 0xbfff;
  }
  c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c);
  for (int i = 0; i < 8; i++) y[(2 * i + (t >> 4)) * 16 + (t & 15)] = f32_bits(c[i]);
}
#elif defined(__GFX12__)
K(matrix_i8) {
  LANE;
  i2v a, b;
  i8v c = 3;
  for (int i = 0; i < 2; i++) { a[i] = x[(t & 15) * 4 + (t >> 4) * 2 + i]; b[i] = x[512 + (t & 15) * 4 + (t >> 4) * 2 + i]; }
  c = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, a, false, b, c, false);
  for (int i = 0; i < 8; i++) y[(8 * (t >> 4) + i) * 16 + (t & 15)] = c[i];
}
K(matrix_u4) {
  LANE;
  i8v c = 0;
  c = __builtin_amdgcn_wmma_i32_16x16x16_iu4_w32_gfx12(false, x[(t & 15) * 2 + (t >> 4)], false,
                                                       x[512 + (t & 15) * 2 + (t >> 4)], c, false);
  for (int i = 0; i < 8; i++) y[(8 * (t >> 4) + i) * 16 + (t & 15)] = c[i];
}
K(matrix_bf16) {
  LANE;
  s8v a, b;
  F8 c = 0;
  for (int i = 0; i < 8; i++) {
    a[i] = ((const u16*)x)[(t & 15) * 16 + (t >> 4) * 8 + i] & 0xbfff;
    b[i] = ((const u16*)(x + 512))[(t & 15) * 16 + (t >> 4) * 8 + i] & 0xbfff;
  }
  c = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c);
  for (int i = 0; i < 8; i++) y[(8 * (t >> 4) + i) * 16 + (t & 15)] = f32_bits(c[i]);
}
K(matrix_fp8) {
  LANE;
  i2v a, b;
  F8 c = 0;
  for (int i = 0; i < 2; i++) {
    a[i] = x[(t & 15) * 4 + (t >> 4) * 2 + i] & 0xbfbfbfbf | 0x01010101;
    b[i] = x[512 + (t & 15) * 4 + (t >> 4) * 2 + i] & 0xbfbfbfbf | 0x01010101;
  }
  c = __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(a, b, c);
  for (int i = 0; i < 8; i++) y[(8 * (t >> 4) + i) * 16 + (t & 15)] = f32_bits(c[i]);
}
#elif defined(__gfx942__) || defined(__gfx90a__)
typedef short s4v __attribute__((ext_vector_type(4)));
K(matrix_bf16) {
  LANE;
  s4v a, b;
  F4 c = 0;
  for (int i = 0; i < 4; i++) {
    a[i] = ((const u16*)x)[(t & 15) * 16 + (t >> 4) * 4 + i] & 0xbfff;
    b[i] = ((const u16*)(x + 512))[(t & 15) * 16 + (t >> 4) * 4 + i] & 0xbfff;
  }
  c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
  for (int i = 0; i < 4; i++) y[(4 * (t >> 4) + i) * 16 + (t & 15)] = f32_bits(c[i]);
}
K(matrix_32) {
  LANE;
  H4 a, b;
  F16 c = 0;
  for (int i = 0; i < 4; i++) {
    a[i] = (_Float16)(float)((const i8*)x)[(t & 31) * 8 + (t >> 5) * 4 + i];
    b[i] = (_Float16)(float)((const i8*)(x + 512))[(t & 31) * 8 + (t >> 5) * 4 + i];
  }
  c = __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0);
  for (int i = 0; i < 16; i++) y[((i >> 2) * 8 + (t >> 5) * 4 + (i & 3)) * 32 + (t & 31)] = f32_bits(c[i]);
}
#if defined(__gfx942__)
// D overlaps C, as compilers arrange it if both have four registers.
K(matrix_overlap) {
  LANE;
  H4 a, b;
  for (int i = 0; i < 4; i++) {
    a[i] = (_Float16)(float)((const i8*)x)[(t & 15) * 16 + (t >> 4) * 4 + i];
    b[i] = (_Float16)(float)((const i8*)(x + 512))[(t & 15) * 16 + (t >> 4) * 4 + i];
  }
  float d[4];
  asm volatile("v_mov_b32 v40, 1.0\n v_mov_b32 v41, 2.0\n v_mov_b32 v42, 4.0\n v_mov_b32 v43, -1.0\n s_nop 7\n"
               "v_mfma_f32_16x16x16_f16 v[42:45], %4, %5, v[40:43]\n s_nop 15\n"
               "v_mov_b32 %0, v42\n v_mov_b32 %1, v43\n v_mov_b32 %2, v44\n v_mov_b32 %3, v45"
               : "=&v"(d[0]), "=&v"(d[1]), "=&v"(d[2]), "=&v"(d[3]) : "v"(a), "v"(b)
               : "v40", "v41", "v42", "v43", "v44", "v45");
  for (int i = 0; i < 4; i++) y[(4 * (t >> 4) + i) * 16 + (t & 15)] = f32_bits(d[i]);
}
K(matrix_k32_i8) {
  LANE;
  i4v c = 3;
  long a = *(const long*)(x + (t & 15) * 8 + (t >> 4) * 2), b = *(const long*)(x + 512 + (t & 15) * 8 + (t >> 4) * 2);
  c = __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, 0, 0, 0);
  for (int i = 0; i < 4; i++) y[(4 * (t >> 4) + i) * 16 + (t & 15)] = c[i];
}
K(matrix_k32_fp8) {
  LANE;
  const long m = 0xbfbfbfbfbfbfbfbfl, one = 0x0101010101010101l;
  F4 c = 0;
  long a = *(const long*)(x + (t & 15) * 8 + (t >> 4) * 2) & m | one;
  long b = *(const long*)(x + 512 + (t & 15) * 8 + (t >> 4) * 2) & m | one;
  c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, c, 0, 0, 0);
  for (int i = 0; i < 4; i++) y[(4 * (t >> 4) + i) * 16 + (t & 15)] = f32_bits(c[i]);
}
#endif
#endif
