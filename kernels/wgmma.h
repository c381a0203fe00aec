// This is what Hopper alone has: products of a warpgroup (four warps of which the first one's number is a multiple of
// four) with one operand in shared memory, the copy engine, and barriers that count its bytes. GPU_WGMMA says whether
// the code is for such a GPU (compute capability 9.0, compiled for sm_90a).
#pragma once
#include "gpu.h"
#if GPU_WGMMA

// ------------------------------------------------------------------------------------------------ barriers, copies
// A barrier's phase ends when `count` threads have arrived and all bytes that they have announced are there. Waits name
// the parity of the phase whose end they wait for.
DEV void barrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}
// The copy engine sees the barriers that this thread has made.
DEV void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEV void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
DEV void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
DEV void barrier_wait(u32 barrier, u32 parity) {
  u32 done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  } while (!done);
}
// Copies to shared memory; bytes and both addresses are multiples of 16.
DEV void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// ------------------------------------------------------------------------------------------------ products
// Describes B in shared memory without a swizzle: core matrices of 8 rows x 16 bytes, each 128 bytes in a row; the two
// halves of 16 columns follow each other, the next 8 rows lie `stride` bytes behind these.
DEV u64 wgmma_operand(u32 address, u32 stride) {
  return (u64)(address & 0x3ffff) >> 4 | (u64)(128 >> 4) << 16 | (u64)(stride >> 4) << 32;
}
// Registers that were written may be read by products from here on.
DEV void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Waits for all products since.
DEV void wgmma_end() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// Brings the four warps together. They need not be for a product, but its operands are then all there at once.
DEV void warpgroup_sync() {
  warp_sync();
  asm volatile("bar.sync %0, 128;" :: "r"(8 + (tid_x() >> 7)) : "memory");
}

// c += a * b^T for 64 rows of a and 8 * NT rows of b, of 16 columns. A warp has 16 of the 64 rows: a and c[n] are as in
// mma_16x8x16.
#define WGMMA_C(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define WGMMA(type, n, sums, operands, outputs) \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " {" sums "}, " operands ", 1, 1, 1, 0;" \
               : outputs : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define WGMMA_LIST(...) __VA_ARGS__
#define WGMMA_OF(NT, n, sums, operands, outputs) \
  template <bool BF16> DEV void wgmma(float (&c)[NT][4], const u32* a, u64 b) { \
    if constexpr (BF16) WGMMA("bf16", n, sums, operands, WGMMA_LIST(outputs)); \
    else WGMMA("f16", n, sums, operands, WGMMA_LIST(outputs)); \
  }
#define WGMMA_8 "%0,%1,%2,%3"
#define WGMMA_16 WGMMA_8 ",%4,%5,%6,%7"
#define WGMMA_32 WGMMA_16 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_64 WGMMA_32 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_C2 WGMMA_C(0), WGMMA_C(1)
#define WGMMA_C4 WGMMA_C2, WGMMA_C(2), WGMMA_C(3)
#define WGMMA_C8 WGMMA_C4, WGMMA_C(4), WGMMA_C(5), WGMMA_C(6), WGMMA_C(7)
WGMMA_OF(1, 8, WGMMA_8, "{%4,%5,%6,%7}, %8", WGMMA_LIST(WGMMA_C(0)))
WGMMA_OF(2, 16, WGMMA_16, "{%8,%9,%10,%11}, %12", WGMMA_LIST(WGMMA_C2))
WGMMA_OF(4, 32, WGMMA_32, "{%16,%17,%18,%19}, %20", WGMMA_LIST(WGMMA_C4))
WGMMA_OF(8, 64, WGMMA_64, "{%32,%33,%34,%35}, %36", WGMMA_LIST(WGMMA_C8))
#endif
