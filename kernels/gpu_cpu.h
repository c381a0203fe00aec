// gpu_cpu.h -- the same kernel source as plain C++17: one fiber per GPU thread, WARP = 32 or 64 at compile time.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <sys/mman.h>
#ifndef WARP
  #define WARP 32
#endif
#define DEV static inline __attribute__((always_inline, unused))
// A kernel `name` is exported as `long cpu_name(gx, gy, gz, block, const void* args, order)`; args: its argument struct.
#define KERNEL(threads, name, Args)                                                                              \
  static void name(const Args& a);                                                                               \
  extern "C" long cpu_##name(int gx, int gy, int gz, int n, const void* args, unsigned order) {                  \
    return gpu::launch([](void* p) { name(*(const Args*)p); }, (void*)args, gx, gy, gz, n, order);               \
  }                                                                                                              \
  static void name(const Args& a)
#define SHARED static thread_local
#define RESTRICT __restrict
namespace gpu {
enum { RUN, WSYNC, BSYNC, DONE };
struct fiber { void* sp; int state; void* site; };
struct block {
  fiber f[1024]; void* main_sp; int cur, n, bx, by, bz;
  u32 slot[2][1024]; unsigned par[1024];
  void (*fn)(void*); void* arg; char* stacks; long switches; unsigned order; u64 vote[2][32];
};
inline thread_local block* B;
constexpr size_t STACK = 64 << 10;
#if defined(__x86_64__)
extern "C" void gpu_switch(void** save, void* to);
__asm__(".weak gpu_switch\n.type gpu_switch,@function\ngpu_switch:\n"
        " pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
        " movq %rsp,(%rdi); movq %rsi,%rsp\n"
        " popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret\n");
#else
#error "add a context switch for this architecture (or use ucontext)"
#endif
__attribute__((noinline)) inline void yield(int st, void* site) {   // a fiber never migrates, but B must be re-read after it
  block* b = B; fiber& f = b->f[b->cur]; f.state = st; f.site = site; gpu_switch(&f.sp, b->main_sp);
}
inline void entry() { block* b = B; b->fn(b->arg); b = B; yield(DONE, nullptr); __builtin_unreachable(); }
inline void die(const char* m, int a, int c) { fprintf(stderr, "gpu_cpu: %s (thread %d, thread %d) block %d,%d,%d\n", m, a, c, B->bx, B->by, B->bz); abort(); }
inline void run_block(block* b) {
  for (int i = 0; i < b->n; i++) {
    char* top = b->stacks + (size_t)(i + 1) * STACK - 64 - (i % 61) * 192; void** s = (void**)top;
    *--s = nullptr; *--s = (void*)entry; s -= 6; memset(s, 0, 48); b->f[i] = {s, RUN, nullptr}; b->par[i] = 0;
  }
  const int nw = (b->n + WARP - 1) / WARP;
  for (;;) {
    int done = 0;
    for (int k = 0; k < nw; k++) {
      const int w = b->order == 0 ? k : b->order == 1 ? nw - 1 - k : (int)((k * 7u + b->order) % nw);   // wave order: 0 up, 1 down
      const int lo = w * WARP, hi = lo + WARP < b->n ? lo + WARP : b->n;
      for (;;) {                                                     // one wave until all its lanes wait at the block barrier
        bool warp = false;
        for (int i = lo; i < hi; i++) {
          if (b->f[i].state == RUN || b->f[i].state == WSYNC) { b->cur = i; b->f[i].state = RUN; gpu_switch(&b->main_sp, b->f[i].sp); b->switches++; }
          warp |= b->f[i].state == WSYNC;
        }
        if (!warp) break;
        for (int i = lo; i < hi; i++) if (b->f[i].state != WSYNC || b->f[i].site != b->f[lo].site) die("divergent wave operation", lo, i);
      }
    }
    for (int i = 0; i < b->n; i++) done += b->f[i].state == DONE;
    if (done == b->n) return;
    for (int i = 0; i < b->n; i++) {
      if (b->f[i].state == DONE) { if ((i / WARP) * WARP == i || b->f[(i / WARP) * WARP].state != DONE) {} continue; }
      b->f[i].state = RUN;
    }
  }
}
inline long launch(void (*fn)(void*), void* arg, int gx, int gy, int gz, int n, unsigned order) {
  static thread_local block* b = nullptr;
  if (!b) { b = (block*)calloc(1, sizeof(block)); b->stacks = (char*)mmap(0, STACK * 1024, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); }
  B = b; b->fn = fn; b->arg = arg; b->n = n; b->order = order; b->switches = 0;
  for (int z = 0; z < gz; z++) for (int y = 0; y < gy; y++) for (int x = 0; x < gx; x++) { b->bx = x; b->by = y; b->bz = z; run_block(b); }
  return b->switches;
}
}
DEV int tid_x() { return gpu::B->cur; }
DEV int bid_x() { return gpu::B->bx; }
DEV int bid_y() { return gpu::B->by; }
DEV int bid_z() { return gpu::B->bz; }
DEV int lane_id() { return gpu::B->cur & (WARP - 1); }
#define GPU_SITE ((void*)__builtin_return_address(0))
DEV void block_sync() { gpu::yield(gpu::BSYNC, nullptr); }
DEV void block_sync_all() { block_sync(); }
DEV void warp_sync()  { gpu::yield(gpu::WSYNC, nullptr); }
__attribute__((noinline)) static u32 shfl_u32(u32 v, int src) {
  gpu::block* b = gpu::B; const int t = b->cur; const unsigned p = b->par[t]++ & 1;
  b->slot[p][t] = v; gpu::yield(gpu::WSYNC, nullptr);
  b = gpu::B; return b->slot[p][(t & ~(WARP - 1)) + (src & (WARP - 1))];
}
DEV u32 shfl_xor_u32(u32 v, int m) { return shfl_u32(v, lane_id() ^ m); }
DEV float h2f(f16 h) {
  u32 s = (u32)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023, r;
  if (e == 31) r = s | 0x7f800000 | (m << 13);
  else if (e) r = s | ((e + 112) << 23) | (m << 13);
  else { float f = (float)m * 5.9604644775390625e-8f; memcpy(&r, &f, 4); r |= s; }
  float f; memcpy(&f, &r, 4); return f;
}
DEV f16 f2h(float f) {
  u32 x; memcpy(&x, &f, 4); u32 s = (x >> 16) & 0x8000; x &= 0x7fffffff;
  if (x >= 0x7f800000) return (f16)(s | (x > 0x7f800000 ? 0x7e00 : 0x7c00));
  if (x >= 0x477ff000) return (f16)(s | 0x7c00);
  if (x < 0x38800000) { float a; memcpy(&a, &x, 4); return (f16)(s | (u32)lrintf(a * 16777216.f)); }
  x += 0xfff + ((x >> 13) & 1); return (f16)(s | ((x - 0x38000000) >> 13));
}
DEV float fdot2(u32 a, u32 b, float c) { return fmaf(h2f((f16)(a >> 16)), h2f((f16)(b >> 16)), fmaf(h2f((f16)a), h2f((f16)b), c)); }
DEV i32 dot4(u32 a, u32 b, i32 c) { for (int i = 0; i < 4; i++) c += (i32)(i8)(a >> 8 * i) * (i32)(i8)(b >> 8 * i); return c; }
DEV float fast_exp2(float x) { return exp2f(x); }
DEV float fast_rcp(float x) { return 1.f / x; }
DEV float fast_rsqrt(float x) { return 1.f / sqrtf(x); }
DEV float fmax_(float a, float b) { return fmaxf(a, b); }
DEV float fabs_(float a) { return fabsf(a); }
DEV float rint_(float a) { return rintf(a); }
DEV float fma_(float a, float b, float c) { return fmaf(a, b, c); }
DEV u32 atomic_add_u32(u32* p, u32 v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
DEV void atomic_add_f32(float* p, float v) { *p += v; }
DEV u64 atomic_max_u64(u64* p, u64 v) { u64 o = *p; if (v > o) *p = v; return o; }
DEV void device_fence() {}
