// The CPU side of the portability layer, for tests: the same kernel source as plain C++17, one fiber per GPU thread. A
// kernel `name` becomes `cpu_name`, called with a grid, a block size and its argument struct. Blocks run one after
// another on the calling thread. Within a block, a wave (WARP lanes, 32 or 64) runs until all its lanes wait at the
// block barrier; then the next wave runs. This is the most extreme schedule that a GPU could choose. A missing barrier
// therefore gives a wrong result in one of the two wave orders, instead of a rare race.
//
// Compile to a shared object, whose thread-local storage holds the kernel's SHARED memory:
//   c++ -x c++ -O1 -std=c++17 -shared -fPIC -fvisibility=hidden -DWARP=32 -I kernels FILE.hip
// -DGPU_DROP_BARRIER=n omits the n-th block barrier of the source, for the mutation tests.
#pragma once
#include <link.h>
#include <sys/mman.h>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifndef WARP
  #define WARP 32
#endif
#ifndef GPU_DROP_BARRIER
  #define GPU_DROP_BARRIER -1
#endif
#define DEV static inline __attribute__((always_inline, unused))
#define SHARED static thread_local
#define TABLE static const
#define RESTRICT __restrict
#define GPU_EXPORT __attribute__((visibility("default")))

// long cpu_name(...) returns 0, or another value if the kernel failed; cpu_error() then gives the reason. `room` points
// to a block of fibers: null at first, then the block that a previous launch of any object left there. Stack guard
// pages are most of the mappings of a process, so all objects share one set. cpu_name_info holds a code object's
// metadata: the block size and the size of the arguments.
#define KERNEL(threads, name, Args) GPU_KERNEL(threads, name, Args)
#define KERNEL_AT_ONCE(threads, blocks, name, Args) GPU_KERNEL(threads, name, Args)
#define GPU_KERNEL(threads, name, Args)                                                                               \
  static void name(const Args& a);                                                                                    \
  extern "C" {                                                                                                        \
  extern GPU_EXPORT const u32 cpu_##name##_info[2];                                                                   \
  const u32 cpu_##name##_info[2] = {threads, (u32)sizeof(Args)};                                                      \
  GPU_EXPORT long cpu_##name(int gx, int gy, int gz, int block, const void* args, unsigned order, void** room) {      \
    return gpu::launch([](const void* p) { name(*(const Args*)p); }, args, {gx, gy, gz}, block, (gpu::Order)order,    \
                       *(gpu::Block**)room);                                                                          \
  }                                                                                                                   \
  }                                                                                                                   \
  static void name(const Args& a)

// ------------------------------------------------------------------------------------------------ context switch
// Saves the callee-saved registers on the stack and the stack pointer in *save, and resumes from `to`. The symbol is
// local, so every shared object has its own. FRAME is the number of words pushed. At the first switch to a fiber, word
// FRAME_RETURN is the entry point. The stack pointer is aligned as the ABI requires at a function's entry.
extern "C" void gpu_switch(void** save, void* to);
#if defined(__x86_64__)
constexpr int GPU_FRAME = 8, GPU_FRAME_RETURN = 6;
__asm__(".pushsection .text\n.type gpu_switch,@function\ngpu_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
        ".size gpu_switch, .-gpu_switch\n.popsection\n");
#elif defined(__aarch64__)
constexpr int GPU_FRAME = 20, GPU_FRAME_RETURN = 11;
__asm__(".pushsection .text\n.type gpu_switch,%function\ngpu_switch:\n"
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
        "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n  ret\n"
        ".size gpu_switch, .-gpu_switch\n.popsection\n");
#else
#error "gpu_cpu.h: add a context switch for this architecture"
#endif

// Internal linkage throughout: one process loads several of these objects, of both wave sizes, and C++ would merge
// their inline variables.
namespace {
namespace gpu {

constexpr int MAX_THREADS = 1024;
constexpr size_t STACK = 64 << 10, PAGE = 4096;
constexpr u32 POISON = 0xcdcdcdcd;      // content of a block's memory before the block writes it

enum Order : unsigned { UP = 0, DOWN = 1 };   // of the waves in a block, and of the blocks in the grid
enum State : u8 { RUNNABLE, AT_WAVE_OP, AT_BARRIER, DONE };

struct Site { const char* file; int line; };  // where a fiber waits
struct Fiber { void* sp; State state; Site site; };

struct Block {
  Fiber fiber[MAX_THREADS];
  u32 slot[2][MAX_THREADS];             // values being exchanged; two, because a lane may be one exchange ahead
  u8 parity[MAX_THREADS];
  void* scheduler_sp;
  int thread, threads, x, y, z;
  int wave_end;                         // one past the last lane of the running wave
  bool in_kernel, failed;
  void (*kernel)(const void*);
  const void* args;
  Order order;
  char* stacks() { return (char*)this + STACK; }      // MAX_THREADS + 1: the last one is for reporting a fault
  int guarded;                          // stacks whose lowest page is inaccessible
};

// A block and its stacks share one region of the address space, aligned to a power of two. The address of a fiber's
// stack therefore gives the block and the thread, without a lookup in thread-local storage.
constexpr size_t REGION = (size_t)(MAX_THREADS + 2) * STACK, ALIGNMENT = 128 << 20;
static_assert(sizeof(Block) <= STACK && REGION <= ALIGNMENT, "a block is before its stacks, in one region");
inline __attribute__((always_inline)) size_t here() { return (size_t)__builtin_frame_address(0); }
inline __attribute__((always_inline)) Block* running() { return (Block*)(here() & ~(ALIGNMENT - 1)); }
inline __attribute__((always_inline)) int running_thread() { return (int)((here() & (ALIGNMENT - 1)) / STACK) - 1; }

// Initialised, so that it is below all SHARED arrays, out of reach of a kernel that writes past them.
struct Thread { Block* block; char error[256]; };
static thread_local Thread self = {nullptr, "no kernel has failed"};

__attribute__((format(printf, 1, 2))) inline void fail(const char* format, ...) {
  Block* b = self.block;
  if (!b->failed) {
    va_list list;
    va_start(list, format);
    int n = snprintf(self.error, sizeof self.error, "block %d,%d,%d: ", b->x, b->y, b->z);
    vsnprintf(self.error + n, sizeof self.error - n, format, list);
    va_end(list);
  }
  b->failed = true;
}

// Leaves the fiber. The next lane of the wave resumes directly, and the scheduler only after the last lane, which
// halves the number of switches. Not inlined, so that switches always go from one code address to the same one, which
// branch prediction expects.
__attribute__((noinline)) inline void wait(State state, Site site) {
  Block* b = running();
  Fiber* f = &b->fiber[b->thread];
  f->state = state;
  f->site = site;
  void* to = b->scheduler_sp;
  if (b->thread + 1 < b->wave_end && f[1].state == RUNNABLE && !b->failed) {
    b->thread++;
    to = f[1].sp;
  }
  gpu_switch(&f->sp, to);
}

inline void entry() {
  running()->kernel(running()->args);
  wait(DONE, {"", 0});
  __builtin_unreachable();
}

inline void resume(Block* b, int thread) {
  b->thread = thread;
  b->in_kernel = true;
  gpu_switch(&b->scheduler_sp, b->fiber[thread].sp);
  b->in_kernel = false;
}

inline const char* base_name(const char* path) { const char* s = strrchr(path, '/'); return s ? s + 1 : path; }

inline void describe(const Fiber& f, char (&text)[96]) {
  if (f.state == DONE) snprintf(text, sizeof text, "has returned");
  else snprintf(text, sizeof text, "is at the %s of %.60s:%d", f.state == AT_BARRIER ? "barrier" : "wave operation",
                base_name(f.site.file), f.site.line);
}

inline bool same(const Site& a, const Site& b) {
  return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}

// True if all threads lo..hi wait at one place.
inline bool converged(Block* b, int lo, int hi, const char* what) {
  for (int i = lo + 1; i < hi; i++) {
    const Fiber &f = b->fiber[lo], &g = b->fiber[i];
    if (f.state == g.state && same(f.site, g.site)) continue;
    char one[96], other[96];
    describe(f, one);
    describe(g, other);
    fail("divergent %s: thread %d %s, thread %d %s", what, lo, one, i, other);
    return false;
  }
  return true;
}

// Runs one wave until its lanes have returned or wait at the block barrier.
inline bool run_wave(Block* b, int wave) {
  const int lo = wave * WARP, hi = lo + WARP < b->threads ? lo + WARP : b->threads;
  if (b->fiber[lo].state == DONE) return true;
  b->wave_end = hi;
  for (;;) {
    bool wave_op = false;
    for (int i = lo; i < hi; i++) {
      if (b->fiber[i].state == RUNNABLE) resume(b, i);
      if (b->failed) return false;
      wave_op |= b->fiber[i].state == AT_WAVE_OP;
    }
    if (!converged(b, lo, hi, wave_op ? "wave operation" : "barrier")) return false;
    if (!wave_op) return true;
    for (int i = lo; i < hi; i++) b->fiber[i].state = RUNNABLE;
  }
}

inline bool run_block(Block* b) {
  for (int i = 0; i < b->threads; i++) {
    // Stack tops at equal page offsets would all fall into the same few cache sets.
    void** sp = (void**)(b->stacks() + (size_t)(i + 1) * STACK - 64 - (i % 61) * 64) - GPU_FRAME;
    memset(sp, 0, GPU_FRAME * sizeof *sp);
    sp[GPU_FRAME_RETURN] = (void*)entry;
    b->fiber[i] = {sp, RUNNABLE, {"", 0}};
    b->parity[i] = 0;
  }
  for (u32& value : b->slot[0]) value = POISON;
  for (u32& value : b->slot[1]) value = POISON;
  const int waves = (b->threads + WARP - 1) / WARP;
  for (;;) {
    for (int k = 0; k < waves; k++)
      if (!run_wave(b, b->order == UP ? k : waves - 1 - k)) return false;
    // Waves that have returned do not count at a barrier; all others must wait at the same one.
    int first = -1;
    for (int w = 0; w < waves; w++) {
      const Fiber& f = b->fiber[w * WARP];
      if (f.state == DONE) continue;
      if (first < 0) first = w * WARP;
      const Fiber& g = b->fiber[first];
      if (!same(f.site, g.site)) {
        fail("divergent barrier: thread %d is at %s:%d, thread %d at %s:%d", first, base_name(g.site.file), g.site.line,
             w * WARP, base_name(f.site.file), f.site.line);
        return false;
      }
    }
    if (first < 0) return true;
    for (int i = 0; i < b->threads; i++)
      if (b->fiber[i].state == AT_BARRIER) b->fiber[i].state = RUNNABLE;
  }
}

// This object's thread-local storage on the calling thread, which holds the SHARED arrays.
struct Storage { char* start; size_t bytes; };
inline int find_storage(dl_phdr_info* object, size_t, void* found) {
  Storage storage = {nullptr, 0};
  bool ours = false;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const auto& header = object->dlpi_phdr[i];
    const size_t start = object->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_TLS) storage = {(char*)object->dlpi_tls_data, header.p_memsz};
    if (header.p_type == PT_LOAD) ours |= (size_t)&find_storage - start < header.p_memsz;
  }
  if (ours) *(Storage*)found = storage;
  return ours;
}

// Overwrites a block's SHARED memory: on a GPU a block does not find what the previous block left.
inline void poison(Storage shared) {
  Thread kept = self;
  __asm__ volatile("" : : "r"(&self) : "memory");     // `self` is in the range of memset; the compiler cannot know
  memset(shared.start, POISON & 255, shared.bytes);
  __asm__ volatile("" : : "r"(&self) : "memory");
  self = kept;
}

// Maps enough memory to contain an aligned, zeroed region, and unmaps the rest.
inline Block* make_room() {
  char* space = (char*)mmap(nullptr, REGION + ALIGNMENT, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return nullptr;
  char* start = (char*)(((size_t)space + ALIGNMENT - 1) & ~(ALIGNMENT - 1));
  if (start > space) munmap(space, start - space);
  munmap(start + REGION, space + ALIGNMENT - start);
  return (Block*)start;
}

// Makes the lowest page of every used stack inaccessible. It stays so from launch to launch.
inline bool guard_stacks(Block* b, int threads) {
  for (; b->guarded < threads; b->guarded++)
    if (mprotect(b->stacks() + b->guarded * STACK, PAGE, PROT_NONE)) return false;
  return true;
}

inline long launch(void (*kernel)(const void*), const void* args, const int (&grid)[3], int threads, Order order,
                   Block*& room) {
  if (threads < 1 || threads > MAX_THREADS) { strcpy(self.error, "block size out of range"); return 1; }
  if (!room) room = make_room();
  if (!room || !guard_stacks(room, threads)) { strcpy(self.error, "no memory for the fibers"); return 1; }
  Block* b = room;
  b->kernel = kernel;
  b->args = args;
  b->threads = threads;
  b->order = order;
  b->failed = false;
  self.block = b;
  Storage shared = {nullptr, 0};
  dl_iterate_phdr(find_storage, &shared);
  const long blocks = (long)grid[0] * grid[1] * grid[2];
  for (long k = 0; k < blocks; k++) {
    const long i = order == UP ? k : blocks - 1 - k;
    b->x = (int)(i % grid[0]);
    b->y = (int)(i / grid[0] % grid[1]);
    b->z = (int)(i / grid[0] / grid[1]);
    poison(shared);
    if (!run_block(b)) break;
  }
  self.block = nullptr;
  return b->failed;
}

// Numbers a block barrier, records its place when the object is loaded, and omits it if it is the one to drop.
constexpr int FIRST_BARRIER = __COUNTER__ + 1, MAX_BARRIERS = 256;
static Site barriers[MAX_BARRIERS];
static int num_barriers;
template <int N, class Place> struct Barrier { static const bool noted; };
template <int N, class Place> const bool Barrier<N, Place>::noted = [] {
  barriers[N] = Place::site();
  if (num_barriers <= N) num_barriers = N + 1;
  return true;
}();
template <int N, class Place> inline void barrier() {
  static_assert(N < MAX_BARRIERS, "raise MAX_BARRIERS");
  __asm__ volatile("" : : "r"(&Barrier<N, Place>::noted));      // a use, without which the place would not be recorded
  if constexpr (N != GPU_DROP_BARRIER) wait(AT_BARRIER, Place::site());
}

// Offers a value to the other lanes of the wave and returns all of theirs.
__attribute__((noinline)) inline const u32* exchange(u32 value, Site site) {
  Block* b = running();
  const int t = running_thread();
  u32* slot = b->slot[b->parity[t] ^= 1];
  slot[t] = value;
  wait(AT_WAVE_OP, site);
  return slot + (t & ~(WARP - 1));
}
}  // namespace gpu
}  // namespace

// ------------------------------------------------------------------------------------------------ the loader's side
extern "C" {
extern GPU_EXPORT const u32 cpu_wave_size;
const u32 cpu_wave_size = WARP;
// Returns why the last launch on this thread failed.
GPU_EXPORT const char* cpu_error() { return gpu::self.error; }
// Block barriers in the source are numbered 0 .. cpu_barrier_sites() - 1; one that was not compiled has no file.
GPU_EXPORT int cpu_barrier_sites() { return gpu::num_barriers; }
GPU_EXPORT const char* cpu_barrier_file(int n) { return gpu::barriers[n].file; }
GPU_EXPORT int cpu_barrier_line(int n) { return gpu::barriers[n].line; }
// For a handler of SIGSEGV and similar signals: returns the stack on which to enter cpu_fault, if this thread is in a
// kernel. cpu_fault ends the kernel. The fiber's own stack may be the one that overflowed.
GPU_EXPORT void* cpu_fault_stack() {
  gpu::Block* b = gpu::self.block;
  return b && b->in_kernel ? (char*)b + gpu::REGION - 64 : nullptr;
}
GPU_EXPORT void cpu_fault(const char* what, void* address) {
  gpu::Block* b = gpu::self.block;
  gpu::fail("thread %d: %s at %p", b->thread, what, address);
  gpu::wait(gpu::DONE, {"", 0});
}
}

// ------------------------------------------------------------------------------------------------ the kernel's side
DEV int tid_x() { return gpu::running_thread(); }
DEV int bid_x() { return gpu::running()->x; }
DEV int bid_y() { return gpu::running()->y; }
DEV int bid_z() { return gpu::running()->z; }
DEV int lane_id() { return tid_x() & (WARP - 1); }
#define block_sync()                                                                          \
  do {                                                                                        \
    struct place { static gpu::Site site() { return {__FILE__, __LINE__}; } };                \
    gpu::barrier<__COUNTER__ - gpu::FIRST_BARRIER, place>();                                  \
  } while (0)
// The default arguments are the caller's source location, which the lanes of a wave must share.
#define GPU_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
DEV void warp_sync(GPU_PLACE) { gpu::wait(gpu::AT_WAVE_OP, {file, line}); }
DEV u32 shfl_u32(u32 v, int src, GPU_PLACE) { return gpu::exchange(v, {file, line})[src & (WARP - 1)]; }
DEV u32 of_first_lane(u32 v, GPU_PLACE) { return gpu::exchange(v, {file, line})[0]; }
template <int M> DEV u32 shfl_xor(u32 v, GPU_PLACE) { return gpu::exchange(v, {file, line})[lane_id() ^ M]; }
DEV u64 warp_ballot(bool p, GPU_PLACE) {
  const u32* votes = gpu::exchange(p, {file, line});
  u64 mask = 0;
  for (int i = 0; i < WARP; i++) mask |= (u64)(votes[i] == 1) << i;     // a lane that the block lacks holds POISON
  return mask;
}

#if defined(__F16C__) || defined(__aarch64__)
DEV float h2f(f16 h) { return (float)__builtin_bit_cast(_Float16, h); }
DEV f16 f2h(float f) { return __builtin_bit_cast(f16, (_Float16)f); }
#else                                   // where the compiler would call a function for each
DEV float h2f(f16 h) {
  const u32 sign = (u32)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
  u32 bits;
  if (exponent == 31) bits = sign | 0x7f800000 | (mantissa << 13);
  else if (exponent) bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  else {
    const float subnormal = (float)mantissa * 0x1p-24f;
    memcpy(&bits, &subnormal, 4);
    bits |= sign;
  }
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
DEV f16 f2h(float f) {                  // to nearest, ties to even
  u32 bits;
  memcpy(&bits, &f, 4);
  const u32 sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits >= 0x7f800000) return (f16)(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
  if (bits >= 0x477ff000) return (f16)(sign | 0x7c00);               // 65520 and above round to infinity
  if (bits < 0x38800000) return (f16)(sign | (u32)lrintf(fabsf(f) * 0x1p24f));      // subnormal half
  bits += 0xfff + ((bits >> 13) & 1);
  return (f16)(sign | ((bits - 0x38000000) >> 13));
}
#endif
DEV float fdot2(u32 a, u32 b, float c) {
  return fmaf(h2f((f16)(a >> 16)), h2f((f16)(b >> 16)), fmaf(h2f((f16)a), h2f((f16)b), c));
}
DEV i32 dot4(u32 a, u32 b, i32 c) {
  for (int i = 0; i < 4; i++) c += (i32)(i8)(a >> 8 * i) * (i32)(i8)(b >> 8 * i);
  return c;
}
DEV float fast_exp2(float x) { return exp2f(x); }
DEV float fast_rcp(float x) { return 1.f / x; }
DEV float fast_rsqrt(float x) { return 1.f / sqrtf(x); }
DEV float fmax_(float a, float b) { return fmaxf(a, b); }
DEV float fabs_(float a) { return fabsf(a); }
DEV float rint_(float a) { return rintf(a); }
DEV float fma_(float a, float b, float c) { return fmaf(a, b, c); }
// Threads take turns, so nothing interrupts these.
DEV u32  atomic_add_u32(u32* p, u32 v) { u32 old = *p; *p += v; return old; }
DEV void lds_add_u64(u64* p, u64 v) { *p += v; }
DEV void release_fence() {}
DEV void acquire_fence() {}
