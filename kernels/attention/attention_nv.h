// Shared by prefill and decode on NVIDIA's matrix units: asynchronous copies into shared memory, loads of matrices from
// there, products. The instructions need compute capability 8.0.
#pragma once
#include "attention.h"

// A weight is 2^(score - top). `top` is the largest score of earlier tiles, and is raised only when a score exceeds it
// by more than RISE. Weights stay far below the largest half, and most tiles do not rescale the sums.
constexpr float RISE = 8.f;

// Copies 16 bytes, or stores zeros if not `valid`.
DEV void copy_async(u32 to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
// Copies 8 bytes, or stores zeros if not `valid`.
DEV void copy_async8(u32 to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(to), "l"(from), "r"(valid ? 8 : 0) : "memory");
}
DEV void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
DEV void store_shared(u32 to, v4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
               :: "r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
DEV v4 load_shared16(u32 from) {
  v4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from) : "memory");
  return x;
}
DEV v2 load_shared8(u32 from) {
  v2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from) : "memory");
  return x;
}
DEV u32 load_shared4(u32 from) {
  u32 x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
// Loads four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
DEV void load_matrices(u32* x, u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(row) : "memory");
}
DEV void load_matrices_transposed(u32* x, u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(row) : "memory");
}
DEV void mma_16x8x16(float* c, const u32* a, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV u32 pack(float low, float high) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
// Transposes an 8x8 matrix of halves; lane l has elements 2 * (l % 4) and 2 * (l % 4) + 1 of row l / 4.
DEV u32 transposed(u32 x) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(x));
  return r;
}
