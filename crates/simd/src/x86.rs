//! AVX2 (with FMA and F16C) and AVX-512 (with VNNI, which all but its first generation has): the tokens and the
//! functions compiled for them.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

use half::f16;

use super::{Kernel, LANES, Simd};

pub(super) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

pub(super) fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

/// # Safety
/// The CPU must have what `has_avx2` asks for.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// # Safety
/// The CPU must have what `has_avx512` asks for.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// Created only in `run_avx2`, so it proves that the CPU has AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
struct Avx2(());

/// Created only in `run_avx512`, so it proves that the CPU has AVX-512 F, BW, VL and DQ.
#[derive(Debug, Clone, Copy)]
struct Avx512(());

/// Writes trait methods with one unsafe expression as their body. The token proves that it is sound.
macro_rules! intrinsics {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $t:ty),*) $(-> $out:ty)? $body:block)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        fn $name(self, $($arg: $t),*) $(-> $out)? {
            // SAFETY: `self` proves that the CPU has the instructions, and references are valid for 16 elements.
            unsafe { $body }
        }
    )*};
}

impl Simd for Avx512 {
    type V = __m512;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn prefetch<T>(self, x: &T) {
        prefetch(x);
    }

    intrinsics! {
        fn splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        fn load(x: &[f32; LANES]) -> __m512 { _mm512_loadu_ps(x.as_ptr()) }
        fn store(v: __m512, out: &mut [f32; LANES]) { _mm512_storeu_ps(out.as_mut_ptr(), v) }
        fn load_f16(x: &[f16; LANES]) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
        fn to_f16(v: __m512) -> [f16; LANES] {
            let mut out = [f16::ZERO; LANES];
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
            out
        }
        fn load_i8(x: &[i8; LANES]) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
        }
        fn load_nibbles(x: &[i8; LANES]) -> [__m512; 2] {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            let low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
            [_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(bytes))]
        }
        fn to_i8(v: __m512) -> [i8; LANES] {
            let mut out = [0; LANES];
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
            out
        }
        fn add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn round(v: __m512) -> __m512 {
            _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v)
        }
        fn pow2(n: __m512) -> __m512 {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
        fn select_lt(x: __m512, limit: f32, a: __m512, b: __m512) -> __m512 {
            _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_set1_ps(limit)), b, a)
        }
        fn keep_lanes(v: __m512, keep: u16, other: f32) -> __m512 {
            _mm512_mask_blend_ps(keep, _mm512_set1_ps(other), v)
        }
        fn sum(v: __m512) -> f32 {
            sum8(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
        }
        fn maximum(v: __m512) -> f32 {
            maximum8(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
        }
    }
}

impl Simd for Avx2 {
    type V = [__m256; 2];
    const REGISTERS: usize = 8;

    #[inline(always)]
    fn prefetch<T>(self, x: &T) {
        prefetch(x);
    }

    intrinsics! {
        fn splat(x: f32) -> Self::V { [_mm256_set1_ps(x); 2] }
        fn load(x: &[f32; LANES]) -> Self::V { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x[8..].as_ptr())] }
        fn store(v: Self::V, out: &mut [f32; LANES]) {
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out[8..].as_mut_ptr(), v[1]);
        }
        fn load_f16(x: &[f16; LANES]) -> Self::V {
            let half = |x: &[f16]| _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast()));
            [half(&x[..8]), half(&x[8..])]
        }
        fn to_f16(v: Self::V) -> [f16; LANES] {
            let mut out = [f16::ZERO; LANES];
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(out[8..].as_mut_ptr().cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
            out
        }
        fn load_i8(x: &[i8; LANES]) -> Self::V {
            let half = |x: &[i8]| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(x.as_ptr().cast())));
            [half(&x[..8]), half(&x[8..])]
        }
        fn load_nibbles(x: &[i8; LANES]) -> [Self::V; 2] {
            let bytes = |x: &[i8]| _mm256_cvtepu8_epi32(_mm_loadl_epi64(x.as_ptr().cast()));
            let bytes = [bytes(&x[..8]), bytes(&x[8..])];
            let low = bytes.map(|bytes| _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15))));
            [low, bytes.map(|bytes| _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(bytes)))]
        }
        fn to_i8(v: Self::V) -> [i8; LANES] {
            // Packing works on each half of a register, so the middle quarters are swapped.
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1]));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            let mut out = [0; LANES];
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
            out
        }
        fn add(a: Self::V, b: Self::V) -> Self::V { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        fn sub(a: Self::V, b: Self::V) -> Self::V { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
        fn mul(a: Self::V, b: Self::V) -> Self::V { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        fn div(a: Self::V, b: Self::V) -> Self::V { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
        fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])]
        }
        fn max(a: Self::V, b: Self::V) -> Self::V { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
        fn min(a: Self::V, b: Self::V) -> Self::V { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
        fn round(v: Self::V) -> Self::V {
            const MODE: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            [_mm256_round_ps::<MODE>(v[0]), _mm256_round_ps::<MODE>(v[1])]
        }
        fn pow2(n: Self::V) -> Self::V { [pow2x8(n[0]), pow2x8(n[1])] }
        fn select_lt(x: Self::V, limit: f32, a: Self::V, b: Self::V) -> Self::V {
            let limit = _mm256_set1_ps(limit);
            [
                _mm256_blendv_ps(b[0], a[0], _mm256_cmp_ps::<_CMP_LT_OQ>(x[0], limit)),
                _mm256_blendv_ps(b[1], a[1], _mm256_cmp_ps::<_CMP_LT_OQ>(x[1], limit)),
            ]
        }
        fn keep_lanes(v: Self::V, keep: u16, other: f32) -> Self::V {
            let other = _mm256_set1_ps(other);
            [
                _mm256_blendv_ps(other, v[0], lanes8(keep as u8)),
                _mm256_blendv_ps(other, v[1], lanes8((keep >> 8) as u8)),
            ]
        }
        fn sum(v: Self::V) -> f32 { sum8(_mm256_add_ps(v[0], v[1])) }
        fn maximum(v: Self::V) -> f32 { maximum8(_mm256_max_ps(v[0], v[1])) }
    }
}

#[inline(always)]
fn prefetch<T>(x: &T) {
    // SAFETY: SSE is part of x86-64, and a prefetch of any address is harmless.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(x).cast()) }
}

/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn pow2x8(n: __m256) -> __m256 {
    // SAFETY: as the caller promises.
    unsafe {
        let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
    }
}

/// Returns a vector with all bits set in the lanes whose bit in `keep` is set.
///
/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn lanes8(keep: u8) -> __m256 {
    // SAFETY: as the caller promises.
    unsafe {
        let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let kept = _mm256_and_si256(_mm256_set1_epi32(i32::from(keep)), bits);
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(kept, bits))
    }
}

/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn sum8(v: __m256) -> f32 {
    // SAFETY: as the caller promises.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}

/// # Safety
/// The CPU must have AVX2.
#[inline(always)]
unsafe fn maximum8(v: __m256) -> f32 {
    // SAFETY: as the caller promises.
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
    }
}
