// The tensor types on the device: structs with one interface, and the type of this unit of compilation.
//
// A matrix is divided into tiles of 16 rows x 256 columns, ordered along the columns, then along the rows. A tile is
// contiguous and complete: quants and scales of its 4096 weights, in as many bytes as in GGUF (TQ1_0, NVFP4: more). It
// belongs to a group of 32 lanes: lane 4g + t owns rows g and g + 8, and in both rows the columns 64t .. 64t + 63.
// Group j (0..3) of a lane is 16 columns, word i (0..3) of a group is four. Element p of a word is column
// 64t + 16j + 4i + p.
//
// A load of a lane is 16 bytes, of the group of lanes 512 contiguous bytes. In the 4-bit types load j is group j. Byte
// p of word i holds the codes of row g (low nibble) and of row g + 8 (high nibble). After one AND a word is therefore
// an operand of dot4. Its bytes 0 and 2, widened to halves, are a fragment of the matrix units: a lane of mma.m16n8k16
// holds exactly rows g and g + 8. This needs no shuffle and no LDS. Scales are repacked so that a lane reads its own.
//
// The struct of a type:
//   BLOCK, BLOCK_BYTES       values and bytes of a block of the file
//   BYTES, COLS              of a tile; float types also have parts of a tile, with fewer columns
//   FLOATS                   dot takes float activations
//   load(tile, lane)         loads the lane's part into registers
//   dot(x.., lane, y0, y1)   adds the lane's products for rows g and g + 8. The activations of 256 columns are in the
//                            order of x_index (float_index): lanes with different t read adjacent bytes of LDS
//   prepare()                once after load and before fragment: scales as pairs of halves
//   fragment(j, i, a)        a[0] = row g, columns (k0, k2); a[1] = row g + 8, (k0, k2); a[2] = row g, (k1, k3); a[3] =
//                            row g + 8, (k1, k3); k0 = 64t + 16j + 4i. Packed f16, or bf16 for BF16
//   value(tile, row, col)    one weight, bit-exact with ggml's dequantisation
//   pack(tile, lane, raw)    makes the lane's part of a tile from blocks of the file (repack)
// Outside the matrix a tile holds codes and scales of zero, which mean the value 0 in every type.
#pragma once
#include "gpu.h"
#include "quant_bits.h"
#include "quant_basic.h"
#include "quant_k.h"
#include "quant_codebook.h"
#include "quant_few_bits.h"
#include "quant_grid.h"
#include "quant_float.h"

// The type of this unit (-DTYPE=Q4_K) names its kernels: TYPED_KERNEL(256, gemv_, GemvArgs) defines gemv_q4_k. In a
// unit of a pair of types (-DTYPE=Q4_K -DSECOND=Q6_K) it defines gemv_q4_k_q6_k.
#ifdef TYPE
using Tile = TYPE;
#define NAME_F32 f32
#define NAME_F16 f16
#define NAME_BF16 bf16
#define NAME_Q4_0 q4_0
#define NAME_Q4_1 q4_1
#define NAME_Q5_0 q5_0
#define NAME_Q5_1 q5_1
#define NAME_Q8_0 q8_0
#define NAME_Q2_K q2_k
#define NAME_Q3_K q3_k
#define NAME_Q4_K q4_k
#define NAME_Q5_K q5_k
#define NAME_Q6_K q6_k
#define NAME_IQ4_NL iq4_nl
#define NAME_IQ4_XS iq4_xs
#define NAME_MXFP4 mxfp4
#define NAME_NVFP4 nvfp4
#define NAME_Q1_0 q1_0
#define NAME_Q2_0 q2_0
#define NAME_TQ1_0 tq1_0
#define NAME_TQ2_0 tq2_0
#define NAME_IQ2_XXS iq2_xxs
#define NAME_IQ3_XXS iq3_xxs
#define NAME_IQ2_XS iq2_xs
#define NAME_IQ2_S iq2_s
#define NAME_IQ3_S iq3_s
#define NAME_IQ1_S iq1_s
#define NAME_IQ1_M iq1_m
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#ifdef SECOND
using SecondTile = SECOND;
#define TYPED(prefix) PASTE(prefix, PASTE(PASTE(NAME_, TYPE), PASTE(_, PASTE(NAME_, SECOND))))
#else
#define TYPED(prefix) PASTE(prefix, PASTE(NAME_, TYPE))
#endif
#define TYPED_KERNEL(threads, prefix, Args) KERNEL(threads, TYPED(prefix), Args)
#endif
