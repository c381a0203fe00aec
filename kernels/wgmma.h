// Features that only Hopper has: products of a warpgroup with one operand in shared memory, the copy engine, and
// barriers that count its bytes. A warpgroup is four warps, the first of which has a number divisible by four.
// GPU_WGMMA is 1 if the code is for such a GPU (compute capability 9.0, compiled for sm_90a).
#pragma once
#include "gpu.h"
#if GPU_WGMMA

// ------------------------------------------------------------------------------------------------ barriers, copies
// A phase of a barrier ends when `count` threads have arrived and all announced bytes have been copied. A wait names
// the parity of the phase whose end it waits for.
DEV void barrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(count) : "memory");
}
// Makes the barriers of this thread visible to the copy engine.
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

// ------------------------------------------------------------------------------------------------ clusters
// The blocks of a cluster run at the same time. After all of them have arrived, their earlier writes to each other's
// shared memory are visible. Before the first arrival, a block may not have started yet.
DEV void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEV void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores to block `rank` of the cluster, at the offset that `address` has in this block.
DEV void cluster_store(u32 address, u32 rank, float v) {
  asm volatile("{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.f32 [there], %2; }"
               :: "r"(address), "r"(rank), "f"(v) : "memory");
}

// ------------------------------------------------------------------------------------------------ products
// Describes B in shared memory without a swizzle: core matrices of 8 rows x 16 bytes, 128 contiguous bytes each. The
// two halves of 16 columns are adjacent, the next 8 rows are at distance `stride` bytes.
DEV u64 wgmma_operand(u32 address, u32 stride) {
  return (u64)(address & 0x3ffff) >> 4 | (u64)(128 >> 4) << 16 | (u64)(stride >> 4) << 32;
}
// Describes rows of 64 halves (128 bytes) in shared memory, whose 16-byte chunks are permuted by the row's last three
// bits (`swizzled`). Eight rows begin at a multiple of 1,024 bytes. More columns follow at distance `stride` bytes;
// only `wgmma_rows` reads those in one product.
DEV u64 wgmma_swizzled(u32 address, u32 stride) {
  return (u64)(address & 0x3ffff) >> 4 | (u64)(stride >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}
// The byte offset of the eight halves of a row from `column` (one of 64) on.
DEV u32 swizzled(u32 row, u32 column) { return row * 128 + ((column / 8 ^ row) % 8) * 16; }
// Lets products read what threads have written to shared memory, after all those threads have called this and
// synchronised.
DEV void shared_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Lets products read registers that were written before.
DEV void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Makes one group of the products since the last call.
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all groups but the newest GROUPS.
template <u32 GROUPS> DEV void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(GROUPS) : "memory");
}
// Keeps sums from being read before the preceding wait.
template <u32 NT> DEV void wgmma_sums_there(float (&c)[NT][4]) {
  #pragma unroll
  for (u32 i = 0; i < 4 * NT; i++) asm volatile("" : "+f"(c[i / 4][i % 4]) :: "memory");
}
// Stores four 8x8 matrices of 16-bit numbers, held by lanes as in mma_16x8x16. Lane l gives the address of row l % 8 of
// matrix l / 8.
DEV void store_matrices(u32 row, const u32* x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(row), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
// A warpgroup gives registers back, or takes registers that others gave back, so that a thread has COUNT (a multiple of
// 8).
template <u32 COUNT> DEV void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT)); }
template <u32 COUNT> DEV void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT)); }
// Synchronises the four warps. A product does not require it, but then finds all its operands ready.
DEV void warpgroup_sync() {
  warp_sync();
  asm volatile("bar.sync %0, 128;" :: "r"(8 + (tid_x() >> 7)) : "memory");
}

// c += a * b^T for 64 rows of a and 8 * NT rows of b, of 16 columns. A warp has 16 of the 64 rows; a and c[n] are as in
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
#define WGMMA_128 WGMMA_64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
                  ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_256 WGMMA_128 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
                  ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95" \
                  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
                  ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_C2 WGMMA_C(0), WGMMA_C(1)
#define WGMMA_C4 WGMMA_C2, WGMMA_C(2), WGMMA_C(3)
#define WGMMA_C8 WGMMA_C4, WGMMA_C(4), WGMMA_C(5), WGMMA_C(6), WGMMA_C(7)
#define WGMMA_C16 WGMMA_C8, WGMMA_C(8), WGMMA_C(9), WGMMA_C(10), WGMMA_C(11), WGMMA_C(12), WGMMA_C(13), WGMMA_C(14), \
                  WGMMA_C(15)
#define WGMMA_C32 WGMMA_C16, WGMMA_C(16), WGMMA_C(17), WGMMA_C(18), WGMMA_C(19), WGMMA_C(20), WGMMA_C(21), \
                  WGMMA_C(22), WGMMA_C(23), WGMMA_C(24), WGMMA_C(25), WGMMA_C(26), WGMMA_C(27), WGMMA_C(28), \
                  WGMMA_C(29), WGMMA_C(30), WGMMA_C(31)
WGMMA_OF(1, 8, WGMMA_8, "{%4,%5,%6,%7}, %8", WGMMA_LIST(WGMMA_C(0)))
WGMMA_OF(2, 16, WGMMA_16, "{%8,%9,%10,%11}, %12", WGMMA_LIST(WGMMA_C2))
WGMMA_OF(4, 32, WGMMA_32, "{%16,%17,%18,%19}, %20", WGMMA_LIST(WGMMA_C4))
WGMMA_OF(8, 64, WGMMA_64, "{%32,%33,%34,%35}, %36", WGMMA_LIST(WGMMA_C8))

// c = a * b^T, or c += a * b^T if ADDS, of f16, both in shared memory.
#define WGMMA_SHARED_OF(NT, n, sums, operands, outputs) \
  template <bool ADDS> DEV void wgmma_shared(float (&c)[NT][4], u64 a, u64 b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" sums "}, " operands ", 1, 1, 0, 0;" \
                 : outputs : "l"(a), "l"(b), "n"(ADDS ? 1 : 0)); \
  }
WGMMA_SHARED_OF(8, 64, WGMMA_64, "%32, %33, %34", WGMMA_LIST(WGMMA_C8))
WGMMA_SHARED_OF(16, 128, WGMMA_128, "%64, %65, %66", WGMMA_LIST(WGMMA_C16))

// c += a * b for 16 rows of b, of f16, in their order in shared memory.
#define WGMMA_ROWS_OF(NT, n, sums, operands, outputs) \
  DEV void wgmma_rows(float (&c)[NT][4], const u32* a, u64 b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" sums "}, " operands ", 1, 1, 1, 1;" \
                 : outputs : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
  }
WGMMA_ROWS_OF(8, 64, WGMMA_64, "{%32,%33,%34,%35}, %36", WGMMA_LIST(WGMMA_C8))
WGMMA_ROWS_OF(16, 128, WGMMA_128, "{%64,%65,%66,%67}, %68", WGMMA_LIST(WGMMA_C16))
WGMMA_ROWS_OF(32, 256, WGMMA_256, "{%128,%129,%130,%131}, %132", WGMMA_LIST(WGMMA_C32))
#endif
