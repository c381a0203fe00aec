//! Sixteen lanes as plain arrays. They are the oracle of the other instruction sets, and the kernels of other
//! architectures, for which LLVM vectorizes them.

use half::{bf16, f16};

use super::super::lanes::{Groups, Lanes};

#[derive(Clone, Copy)]
pub(in super::super) struct Scalar;

#[inline(always)]
fn map<A: Copy, B: Copy, T: Default + Copy, const N: usize>(a: [A; N], b: [B; N], f: impl Fn(A, B) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    for i in 0..N {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Lanes for Scalar {
    type Bytes = [u8; 64];
    type Ints = [i32; 16];
    type Floats = [f32; 16];
    const MAX_ROWS: usize = 4;
    const HOLDS_BLOCK: bool = true;

    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}
    #[inline(always)]
    unsafe fn prefetch_second(_p: *const u8) {}
    #[inline(always)]
    unsafe fn load(p: *const u8) -> [u8; 64] {
        // SAFETY: the caller vouches for 64 bytes; unaligned read of plain bytes.
        unsafe { p.cast::<[u8; 64]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, b: [u8; 64]) {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { p.cast::<[u8; 64]>().write_unaligned(b) }
    }
    #[inline(always)]
    unsafe fn bits(b: [u8; 64], shift: u32, mask: u8) -> [u8; 64] {
        b.map(|v| (v >> shift) & mask)
    }
    #[inline(always)]
    unsafe fn merge_bits(a: [u8; 64], b: [u8; 64], shift: u32, mask: u8, left: u32) -> [u8; 64] {
        map(a, b, |a, b| a | (((b >> shift) & mask) << left))
    }
    #[inline(always)]
    unsafe fn lookup(b: [u8; 64], table: &[u8; 16]) -> [u8; 64] {
        b.map(|v| table[usize::from(v & 15)])
    }
    #[inline(always)]
    unsafe fn trits(b: [u8; 64], power: u8) -> [u8; 64] {
        b.map(|v| ((u16::from(v.wrapping_mul(power)) * 3) >> 8) as u8)
    }
    #[inline(always)]
    unsafe fn entries_of_eight<const N: usize>(table: &[[i8; 8]; N], index: [i32; 16]) -> [[u8; 64]; 2] {
        [0, 4].map(|first| {
            let mut out = [0; 64];
            for (out, index) in out.chunks_exact_mut(4).zip(index) {
                let entry = &table[index as usize][first..first + 4];
                out.iter_mut().zip(entry).for_each(|(out, v)| *out = *v as u8);
            }
            out
        })
    }
    #[inline(always)]
    unsafe fn entries_of_four<const N: usize>(table: &[[i8; 4]; N], index: [i32; 16]) -> [u8; 64] {
        let mut out = [0; 64];
        for (out, index) in out.chunks_exact_mut(4).zip(index) {
            out.iter_mut().zip(table[index as usize]).for_each(|(out, v)| *out = v as u8);
        }
        out
    }
    #[inline(always)]
    unsafe fn signed<const FIRST: u32>(b: [u8; 64], signs: [i32; 16]) -> [u8; 64] {
        let mut out = b;
        for (i, v) in out.iter_mut().enumerate() {
            let negative = (signs[i / 4] >> (FIRST + i as u32 % 4)) & 1 == 1;
            *v = if negative { 64 - *v } else { 64 + *v };
        }
        out
    }
    #[inline(always)]
    unsafe fn as_ints(b: [u8; 64]) -> [i32; 16] {
        let mut out = [0; 16];
        out.iter_mut().zip(b.as_chunks::<4>().0).for_each(|(out, v)| *out = i32::from_le_bytes(*v));
        out
    }
    #[inline(always)]
    unsafe fn as_bytes(a: [i32; 16]) -> [u8; 64] {
        let mut out = [0; 64];
        out.as_chunks_mut::<4>().0.iter_mut().zip(a).for_each(|(out, v)| *out = v.to_le_bytes());
        out
    }
    #[inline(always)]
    unsafe fn dot_bytes<W: Groups<Self>, const N: usize>(
        w: &W,
        x: [*const i8; N],
        neg_sums: [i32; N],
    ) -> [[i32; 16]; N] {
        // SAFETY: the caller's promise. An i32 can hold the sum of 32 products of any bytes.
        unsafe { Self::dot(neg_sums.map(|neg_sum| [neg_sum << 7; 16]), w, x, u8::MAX) }
    }
    #[inline(always)]
    unsafe fn dot<W: Groups<Self>, const N: usize>(
        mut acc: [[i32; 16]; N],
        w: &W,
        x: [*const i8; N],
        _max_code: u8,
    ) -> [[i32; 16]; N] {
        for (acc, x) in acc.iter_mut().zip(x) {
            for g in 0..W::COUNT {
                // SAFETY: the caller vouches for the groups and for 4 activations of each.
                let (w, x) =
                    unsafe { (w.group(g / W::LINES, g % W::LINES), x.add(4 * g).cast::<[i8; 4]>().read_unaligned()) };
                for (lane, acc) in acc.iter_mut().enumerate() {
                    for (i, x) in x.iter().enumerate() {
                        *acc += i32::from(w[4 * lane + i]) * i32::from(*x);
                    }
                }
            }
        }
        acc
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> [i32; 16] {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe { p.cast::<[u8; 16]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> [i32; 16] {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe { p.cast::<[i8; 16]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u8) -> [i32; 16] {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { p.cast::<[u16; 16]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn splat_i32(v: i32) -> [i32; 16] {
        [v; 16]
    }
    #[inline(always)]
    unsafe fn and(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        map(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        map(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn xor(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        map(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    unsafe fn sub(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        map(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    unsafe fn max(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        map(a, b, |a, b| a.max(b))
    }
    #[inline(always)]
    unsafe fn shl(a: [i32; 16], n: u32) -> [i32; 16] {
        a.map(|a| a << n)
    }
    #[inline(always)]
    unsafe fn shr(a: [i32; 16], n: u32) -> [i32; 16] {
        a.map(|a| ((a as u32) >> n) as i32)
    }
    #[inline(always)]
    unsafe fn to_f32(a: [i32; 16]) -> [f32; 16] {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    unsafe fn as_f32(a: [i32; 16]) -> [f32; 16] {
        a.map(|a| f32::from_bits(a as u32))
    }
    #[inline(always)]
    unsafe fn as_i32(a: [f32; 16]) -> [i32; 16] {
        a.map(|a| a.to_bits() as i32)
    }
    #[inline(always)]
    unsafe fn reduce_add(a: [i32; 16]) -> i32 {
        a.iter().sum()
    }
    #[inline(always)]
    unsafe fn reduce_max(a: [i32; 16]) -> i32 {
        a.iter().fold(i32::MIN, |m, &a| m.max(a))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: [i32; 16]) {
        // SAFETY: the caller vouches for 16 bytes.
        unsafe { p.cast::<[i8; 16]>().write_unaligned(a.map(|a| a as i8)) }
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const u8) -> [f32; 16] {
        // SAFETY: the caller vouches for 64 bytes.
        unsafe { p.cast::<[f32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> [f32; 16] {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { p.cast::<[u16; 16]>().read_unaligned() }.map(|b| f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> [f32; 16] {
        // SAFETY: the caller vouches for 32 bytes.
        unsafe { p.cast::<[u16; 16]>().read_unaligned() }.map(|b| bf16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn splat_f32(v: f32) -> [f32; 16] {
        [v; 16]
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        map(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        map(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        let mut out = c;
        for i in 0..16 {
            out[i] = a[i].mul_add(b[i], c[i]);
        }
        out
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, a: [f32; 16]) {
        // SAFETY: the caller vouches for 16 f32.
        unsafe { p.cast::<[f32; 16]>().write_unaligned(a) }
    }
}
