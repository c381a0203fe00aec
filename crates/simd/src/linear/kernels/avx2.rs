//! Sixteen lanes in two AVX2 registers (with FMA and F16C).
#![allow(unsafe_op_in_unsafe_fn)] // each function is one or two intrinsics under the contract of `Lanes`

use std::arch::x86_64::*;
use std::hint::black_box;

use super::super::lanes::{Groups, Lanes, unroll};
use super::avx512::shift;

#[derive(Clone, Copy)]
pub(in super::super) struct Avx2;

#[derive(Clone, Copy)]
pub(in super::super) struct Pair<T>(T, T);

impl Avx2 {
    /// Hides a loop count from the compiler if several rows are multiplied. Otherwise it would split the loop, process
    /// all groups of one row after another, and spill the codes to memory.
    #[inline(always)]
    fn rounds<const N: usize>(n: usize) -> usize {
        if N > 1 { black_box(n) } else { n }
    }

    /// Multiplies bytes up to 127 with i8. `maddubs` sums pairs in i16 and would saturate beyond 127. It adds as many
    /// groups in i16 as cannot overflow: `2 * 127 * max_code * groups < 2^15`.
    #[inline(always)]
    unsafe fn dot_narrow<W: Groups<Self>, const N: usize>(
        mut acc: [Pair<__m256i>; N],
        w: &W,
        x: [*const i8; N],
        groups: usize,
    ) -> [Pair<__m256i>; N] {
        let none = [Pair(_mm256_setzero_si256(), _mm256_setzero_si256()); N];
        if W::LINES > groups {
            for first in (0..Self::rounds::<N>(W::LINES)).step_by(groups) {
                let mut sums = none;
                for line in first..first + if groups > 2 { Self::rounds::<N>(groups) } else { groups } {
                    sums = Self::add_narrow(sums, w.group(0, line), x, line);
                }
                acc = Self::widen(acc, sums);
            }
            return acc;
        }
        let mut sums = none;
        unroll!(part in 0..W::PARTS, {
            if (W::LINES * part).is_multiple_of(groups) {
                sums = none;
            }
            for line in 0..Self::rounds::<N>(W::LINES) {
                sums = Self::add_narrow(sums, w.group(part, line), x, W::LINES * part + line);
            }
            if (W::LINES * (part + 1)).is_multiple_of(groups) || part + 1 == W::PARTS {
                acc = Self::widen(acc, sums);
            }
        });
        acc
    }

    /// Adds the products of group `g` for all rows.
    #[inline(always)]
    unsafe fn add_narrow<const N: usize>(
        mut sums: [Pair<__m256i>; N],
        w: Pair<__m256i>,
        x: [*const i8; N],
        g: usize,
    ) -> [Pair<__m256i>; N] {
        unroll!(r in 0..N, {
            let x = group_of(x[r], g);
            sums[r].0 = _mm256_add_epi16(sums[r].0, _mm256_maddubs_epi16(w.0, x));
            sums[r].1 = _mm256_add_epi16(sums[r].1, _mm256_maddubs_epi16(w.1, x));
        });
        sums
    }

    /// Adds sums in i16 to sums in i32.
    #[inline(always)]
    unsafe fn widen<const N: usize>(mut acc: [Pair<__m256i>; N], sums: [Pair<__m256i>; N]) -> [Pair<__m256i>; N] {
        let ones = _mm256_set1_epi16(1);
        unroll!(r in 0..N, {
            acc[r].0 = _mm256_add_epi32(acc[r].0, _mm256_madd_epi16(sums[r].0, ones));
            acc[r].1 = _mm256_add_epi32(acc[r].1, _mm256_madd_epi16(sums[r].1, ones));
        });
        acc
    }
}

/// Broadcasts four activations to all lanes.
#[inline(always)]
unsafe fn group_of(x: *const i8, g: usize) -> __m256i {
    _mm256_set1_epi32(x.add(4 * g).cast::<i32>().read_unaligned())
}

/// Applies an intrinsic to both halves.
macro_rules! both {
    ($op:ident, $a:expr) => {
        Pair($op($a.0), $op($a.1))
    };
    ($op:ident, $a:expr, $b:expr) => {
        Pair($op($a.0, $b.0), $op($a.1, $b.1))
    };
}

impl Lanes for Avx2 {
    type Bytes = Pair<__m256i>;
    type Ints = Pair<__m256i>;
    type Floats = Pair<__m256>;
    // 8 of 16 registers are accumulators; the weights come from the first-level cache.
    const MAX_ROWS: usize = 4;
    const HOLDS_BLOCK: bool = false;

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[inline(always)]
    unsafe fn prefetch_second(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }
    #[inline(always)]
    unsafe fn load(p: *const u8) -> Pair<__m256i> {
        Pair(_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast()))
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, b: Pair<__m256i>) {
        _mm256_storeu_si256(p.cast(), b.0);
        _mm256_storeu_si256(p.add(32).cast(), b.1);
    }
    #[inline(always)]
    unsafe fn bits(b: Pair<__m256i>, shift: u32, mask: u8) -> Pair<__m256i> {
        let mask = _mm256_set1_epi8(mask as i8);
        Pair(
            _mm256_and_si256(shift!(_mm256_srli_epi16, b.0, shift), mask),
            _mm256_and_si256(shift!(_mm256_srli_epi16, b.1, shift), mask),
        )
    }
    #[inline(always)]
    unsafe fn merge_bits(a: Pair<__m256i>, b: Pair<__m256i>, shift: u32, mask: u8, left: u32) -> Pair<__m256i> {
        let b = Self::bits(b, shift, mask);
        Pair(
            _mm256_or_si256(a.0, shift!(_mm256_slli_epi16, b.0, left)),
            _mm256_or_si256(a.1, shift!(_mm256_slli_epi16, b.1, left)),
        )
    }
    #[inline(always)]
    unsafe fn lookup(b: Pair<__m256i>, table: &[u8; 16]) -> Pair<__m256i> {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
        Pair(_mm256_shuffle_epi8(table, b.0), _mm256_shuffle_epi8(table, b.1))
    }
    #[inline(always)]
    unsafe fn trits(b: Pair<__m256i>, power: u8) -> Pair<__m256i> {
        // A byte in the upper half of 16 bits, as in `avx512`.
        let power = _mm256_set1_epi16(i16::from(power));
        let digit = |v| _mm256_mulhi_epu16(_mm256_mullo_epi16(v, power), _mm256_set1_epi16(3));
        let digits = |b| {
            let (even, odd) = (_mm256_slli_epi16::<8>(b), _mm256_and_si256(b, _mm256_set1_epi16(-256)));
            _mm256_or_si256(digit(even), _mm256_slli_epi16::<8>(digit(odd)))
        };
        Pair(digits(b.0), digits(b.1))
    }
    #[inline(always)]
    unsafe fn entries_of_eight<const N: usize>(table: &[[i8; 8]; N], index: Pair<__m256i>) -> [Pair<__m256i>; 2] {
        let four = |index| _mm256_castsi256_ps(_mm256_i32gather_epi64::<8>(table.as_ptr().cast(), index));
        let eight = |index| {
            let (low, high) = (four(_mm256_castsi256_si128(index)), four(_mm256_extracti128_si256::<1>(index)));
            // AVX2 shuffles the halves of a register separately, so rows 4 and 5 come before 2 and 3.
            let sorted = |v| _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_castps_si256(v));
            [
                sorted(_mm256_shuffle_ps::<0b10_00_10_00>(low, high)),
                sorted(_mm256_shuffle_ps::<0b11_01_11_01>(low, high)),
            ]
        };
        let (low, high) = (eight(index.0), eight(index.1));
        [Pair(low[0], high[0]), Pair(low[1], high[1])]
    }
    #[inline(always)]
    unsafe fn entries_of_four<const N: usize>(table: &[[i8; 4]; N], index: Pair<__m256i>) -> Pair<__m256i> {
        let table = table.as_ptr().cast();
        Pair(_mm256_i32gather_epi32::<4>(table, index.0), _mm256_i32gather_epi32::<4>(table, index.1))
    }
    #[inline(always)]
    unsafe fn signed<const FIRST: u32>(b: Pair<__m256i>, signs: Pair<__m256i>) -> Pair<__m256i> {
        let lowest = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x0404_0404, 0x0808_0808, 0x0c0c_0c0c));
        let bit = _mm256_set1_epi32(0x0804_0201 << FIRST);
        let codes = |b, signs| {
            let negative = _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(signs, lowest), bit), bit);
            // The second operand is -1 or 1 and sets the sign of the result.
            let value = _mm256_sign_epi8(b, _mm256_or_si256(negative, _mm256_set1_epi8(1)));
            _mm256_add_epi8(_mm256_set1_epi8(64), value)
        };
        Pair(codes(b.0, signs.0), codes(b.1, signs.1))
    }
    #[inline(always)]
    unsafe fn as_ints(b: Pair<__m256i>) -> Pair<__m256i> {
        b
    }
    #[inline(always)]
    unsafe fn as_bytes(a: Pair<__m256i>) -> Pair<__m256i> {
        a
    }
    #[inline(always)]
    unsafe fn dot_bytes<W: Groups<Self>, const N: usize>(
        w: &W,
        x: [*const i8; N],
        _neg_sums: [i32; N],
    ) -> [Pair<__m256i>; N] {
        let (ones, flip, zero) = (_mm256_set1_epi16(1), _mm256_set1_epi8(-128), _mm256_setzero_si256());
        let mut acc = [Pair(zero, zero); N];
        unroll!(part in 0..W::PARTS, {
            for line in 0..Self::rounds::<N>(W::LINES) {
                let w = w.group(part, line);
                let w = Pair(_mm256_xor_si256(w.0, flip), _mm256_xor_si256(w.1, flip));
                let size = both!(_mm256_abs_epi8, w);
                unroll!(r in 0..N, {
                    let x = group_of(x[r], W::LINES * part + line);
                    // A magnitude of up to 128 times an x with the weight's sign: the sum of two such products fits in
                    // i16.
                    let products =
                        |w, size| _mm256_madd_epi16(_mm256_maddubs_epi16(size, _mm256_sign_epi8(x, w)), ones);
                    acc[r].0 = _mm256_add_epi32(acc[r].0, products(w.0, size.0));
                    acc[r].1 = _mm256_add_epi32(acc[r].1, products(w.1, size.1));
                });
            }
        });
        acc
    }
    #[inline(always)]
    unsafe fn dot<W: Groups<Self>, const N: usize>(
        acc: [Pair<__m256i>; N],
        w: &W,
        x: [*const i8; N],
        max_code: u8,
    ) -> [Pair<__m256i>; N] {
        match max_code {
            0..=15 => Self::dot_narrow(acc, w, x, 8),
            16..=31 => Self::dot_narrow(acc, w, x, 4),
            32..=63 => Self::dot_narrow(acc, w, x, 2),
            _ => Self::dot_narrow(acc, w, x, 1),
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Pair<__m256i> {
        let v = _mm_loadu_si128(p.cast());
        Pair(_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(v)))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Pair<__m256i> {
        let v = _mm_loadu_si128(p.cast());
        Pair(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(v)))
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u8) -> Pair<__m256i> {
        let (low, high) = (_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(16).cast()));
        Pair(_mm256_cvtepu16_epi32(low), _mm256_cvtepu16_epi32(high))
    }
    #[inline(always)]
    unsafe fn splat_i32(v: i32) -> Pair<__m256i> {
        let v = _mm256_set1_epi32(v);
        Pair(v, v)
    }
    #[inline(always)]
    unsafe fn and(a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        both!(_mm256_and_si256, a, b)
    }
    #[inline(always)]
    unsafe fn or(a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        both!(_mm256_or_si256, a, b)
    }
    #[inline(always)]
    unsafe fn xor(a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        both!(_mm256_xor_si256, a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        both!(_mm256_sub_epi32, a, b)
    }
    #[inline(always)]
    unsafe fn max(a: Pair<__m256i>, b: Pair<__m256i>) -> Pair<__m256i> {
        both!(_mm256_max_epi32, a, b)
    }
    #[inline(always)]
    unsafe fn shl(a: Pair<__m256i>, n: u32) -> Pair<__m256i> {
        let n = _mm_cvtsi32_si128(n as i32);
        Pair(_mm256_sll_epi32(a.0, n), _mm256_sll_epi32(a.1, n))
    }
    #[inline(always)]
    unsafe fn shr(a: Pair<__m256i>, n: u32) -> Pair<__m256i> {
        let n = _mm_cvtsi32_si128(n as i32);
        Pair(_mm256_srl_epi32(a.0, n), _mm256_srl_epi32(a.1, n))
    }
    #[inline(always)]
    unsafe fn to_f32(a: Pair<__m256i>) -> Pair<__m256> {
        both!(_mm256_cvtepi32_ps, a)
    }
    #[inline(always)]
    unsafe fn as_f32(a: Pair<__m256i>) -> Pair<__m256> {
        both!(_mm256_castsi256_ps, a)
    }
    #[inline(always)]
    unsafe fn as_i32(a: Pair<__m256>) -> Pair<__m256i> {
        both!(_mm256_castps_si256, a)
    }
    #[inline(always)]
    unsafe fn reduce_add(a: Pair<__m256i>) -> i32 {
        let a = _mm256_add_epi32(a.0, a.1);
        let a = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
        let a = _mm_add_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
        _mm_cvtsi128_si32(_mm_add_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
    }
    #[inline(always)]
    unsafe fn reduce_max(a: Pair<__m256i>) -> i32 {
        let a = _mm256_max_epi32(a.0, a.1);
        let a = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
        let a = _mm_max_epi32(a, _mm_shuffle_epi32::<0b01_00_11_10>(a));
        _mm_cvtsi128_si32(_mm_max_epi32(a, _mm_shuffle_epi32::<0b10_11_00_01>(a)))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: Pair<__m256i>) {
        let narrow = |a| _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
        _mm_storeu_si128(p.cast(), _mm_packs_epi16(narrow(a.0), narrow(a.1)));
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const u8) -> Pair<__m256> {
        Pair(_mm256_loadu_ps(p.cast()), _mm256_loadu_ps(p.add(32).cast()))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Pair<__m256> {
        Pair(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Pair<__m256> {
        let bits = Self::load_u16(p);
        Pair(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits.0)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits.1)))
    }
    #[inline(always)]
    unsafe fn splat_f32(v: f32) -> Pair<__m256> {
        let v = _mm256_set1_ps(v);
        Pair(v, v)
    }
    #[inline(always)]
    unsafe fn add(a: Pair<__m256>, b: Pair<__m256>) -> Pair<__m256> {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: Pair<__m256>, b: Pair<__m256>) -> Pair<__m256> {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: Pair<__m256>, b: Pair<__m256>, c: Pair<__m256>) -> Pair<__m256> {
        Pair(_mm256_fmadd_ps(a.0, b.0, c.0), _mm256_fmadd_ps(a.1, b.1, c.1))
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, a: Pair<__m256>) {
        _mm256_storeu_ps(p, a.0);
        _mm256_storeu_ps(p.add(8), a.1);
    }
}
