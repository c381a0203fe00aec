//! Sixteen lanes in one AVX-512 register, with byte dot products by VNNI.
#![allow(unsafe_op_in_unsafe_fn)] // each function is one or two intrinsics under the contract of `Lanes`

use std::arch::x86_64::*;

use super::super::lanes::{Groups, Lanes, unroll};

#[derive(Clone, Copy)]
pub(in super::super) struct Avx512;

/// Shifts by a count below 8 that is constant after inlining. The intrinsics take the count as an immediate.
macro_rules! shift {
    ($op:ident, $b:expr, $n:expr) => {
        match $n {
            0 => $b,
            1 => $op::<1>($b),
            2 => $op::<2>($b),
            3 => $op::<3>($b),
            4 => $op::<4>($b),
            5 => $op::<5>($b),
            6 => $op::<6>($b),
            _ => $op::<7>($b),
        }
    };
}
pub(super) use shift;

impl Lanes for Avx512 {
    type Bytes = __m512i;
    type Ints = __m512i;
    type Floats = __m512;
    // 16 accumulators, and 8 registers each for weights and for scales and temporaries: 32 registers.
    const MAX_ROWS: usize = 16;
    const HOLDS_BLOCK: bool = true;

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[inline(always)]
    unsafe fn prefetch_second(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512i {
        _mm512_loadu_si512(p.cast())
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, b: __m512i) {
        _mm512_storeu_si512(p.cast(), b);
    }
    #[inline(always)]
    unsafe fn bits(b: __m512i, shift: u32, mask: u8) -> __m512i {
        // There is no byte shift; the mask removes bits that 16-bit lanes shift in from the neighbouring byte.
        _mm512_and_si512(shift!(_mm512_srli_epi16, b, shift), _mm512_set1_epi8(mask as i8))
    }
    #[inline(always)]
    unsafe fn merge_bits(a: __m512i, b: __m512i, shift: u32, mask: u8, left: u32) -> __m512i {
        let b = if shift >= left {
            shift!(_mm512_srli_epi16, b, shift - left)
        } else {
            shift!(_mm512_slli_epi16, b, left - shift)
        };
        // 0xEA: (b & mask) | a, for the operands in this order (C | A & B).
        _mm512_ternarylogic_epi32::<0xEA>(b, _mm512_set1_epi8((mask << left) as i8), a)
    }
    #[inline(always)]
    unsafe fn lookup(b: __m512i, table: &[u8; 16]) -> __m512i {
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), b)
    }
    #[inline(always)]
    unsafe fn trits(b: __m512i, power: u8) -> __m512i {
        // A byte in the upper half of 16 bits. The product's low 16 bits hold the byte product, and three times this
        // has the digit in its upper half.
        let power = _mm512_set1_epi16(i16::from(power));
        let digit = |v| _mm512_mulhi_epu16(_mm512_mullo_epi16(v, power), _mm512_set1_epi16(3));
        let (even, odd) = (_mm512_slli_epi16::<8>(b), _mm512_and_si512(b, _mm512_set1_epi16(-256)));
        _mm512_or_si512(digit(even), _mm512_slli_epi16::<8>(digit(odd)))
    }
    #[inline(always)]
    unsafe fn entries_of_eight<const N: usize>(table: &[[i8; 8]; N], index: __m512i) -> [__m512i; 2] {
        let low = _mm512_i32gather_epi64::<8>(_mm512_castsi512_si256(index), table.as_ptr().cast());
        let high = _mm512_i32gather_epi64::<8>(_mm512_extracti64x4_epi64::<1>(index), table.as_ptr().cast());
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
        [_mm512_permutex2var_epi32(low, even, high), _mm512_permutex2var_epi32(low, odd, high)]
    }
    #[inline(always)]
    unsafe fn entries_of_four<const N: usize>(table: &[[i8; 4]; N], index: __m512i) -> __m512i {
        _mm512_i32gather_epi32::<4>(index, table.as_ptr().cast())
    }
    #[inline(always)]
    unsafe fn signed<const FIRST: u32>(b: __m512i, signs: __m512i) -> __m512i {
        let lowest = _mm512_set4_epi32(0x0c0c_0c0c, 0x0808_0808, 0x0404_0404, 0);
        let bit = _mm512_set1_epi32(0x0804_0201 << FIRST);
        let negative = _mm512_test_epi8_mask(_mm512_shuffle_epi8(signs, lowest), bit);
        let offset = _mm512_set1_epi8(64);
        _mm512_mask_sub_epi8(_mm512_add_epi8(offset, b), negative, offset, b)
    }
    #[inline(always)]
    unsafe fn as_ints(b: __m512i) -> __m512i {
        b
    }
    #[inline(always)]
    unsafe fn as_bytes(a: __m512i) -> __m512i {
        a
    }
    #[inline(always)]
    unsafe fn dot_bytes<W: Groups<Self>, const N: usize>(w: &W, x: [*const i8; N], neg_sums: [i32; N]) -> [__m512i; N] {
        let mut acc = [_mm512_setzero_si512(); N];
        unroll!(r in 0..N, {
            acc[r] = _mm512_set1_epi32(neg_sums[r] << 7);
        });
        Self::dot(acc, w, x, u8::MAX)
    }
    #[inline(always)]
    unsafe fn dot<W: Groups<Self>, const N: usize>(
        mut acc: [__m512i; N],
        w: &W,
        x: [*const i8; N],
        _max_code: u8,
    ) -> [__m512i; N] {
        unroll!(r in 0..N, {
            unroll!(part in 0..W::PARTS, {
                for line in 0..W::LINES {
                    let at = x[r].add(4 * (W::LINES * part + line));
                    let x = _mm512_set1_epi32(at.cast::<i32>().read_unaligned());
                    acc[r] = _mm512_dpbusd_epi32(acc[r], w.group(part, line), x);
                }
            });
        });
        acc
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512i {
        _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m512i {
        _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u8) -> __m512i {
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn splat_i32(v: i32) -> __m512i {
        _mm512_set1_epi32(v)
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        _mm512_and_si512(a, b)
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }
    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        _mm512_xor_si512(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m512i, b: __m512i) -> __m512i {
        _mm512_sub_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn max(a: __m512i, b: __m512i) -> __m512i {
        _mm512_max_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn shl(a: __m512i, n: u32) -> __m512i {
        _mm512_sll_epi32(a, _mm_cvtsi32_si128(n as i32))
    }
    #[inline(always)]
    unsafe fn shr(a: __m512i, n: u32) -> __m512i {
        _mm512_srl_epi32(a, _mm_cvtsi32_si128(n as i32))
    }
    #[inline(always)]
    unsafe fn to_f32(a: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(a)
    }
    #[inline(always)]
    unsafe fn as_f32(a: __m512i) -> __m512 {
        _mm512_castsi512_ps(a)
    }
    #[inline(always)]
    unsafe fn as_i32(a: __m512) -> __m512i {
        _mm512_castps_si512(a)
    }
    #[inline(always)]
    unsafe fn reduce_add(a: __m512i) -> i32 {
        _mm512_reduce_add_epi32(a)
    }
    #[inline(always)]
    unsafe fn reduce_max(a: __m512i) -> i32 {
        _mm512_reduce_max_epi32(a)
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: __m512i) {
        _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(a));
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const u8) -> __m512 {
        _mm512_loadu_ps(p.cast())
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m512 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(Self::load_u16(p)))
    }
    #[inline(always)]
    unsafe fn splat_f32(v: f32) -> __m512 {
        _mm512_set1_ps(v)
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, a: __m512) {
        _mm512_storeu_ps(p, a)
    }
}
