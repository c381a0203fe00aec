//! Activations quantised to 8 bits: blocks of 32 with one f32 scale, laid out for the micro-kernel.
//!
//! Rows go in groups of up to 16 that the kernel multiplies together; within a group the blocks of all rows with the
//! same `k` lie side by side (`[block][row]`), so that the kernel walks memory in a straight line. One function, plain
//! arithmetic: every instruction set gives the same bits.

use super::kernels::Isa;

/// Elements per quantisation block, also the kernel's step along `k`.
pub(super) const BLOCK: usize = 32;
/// Rows of a full group.
pub(super) const GROUP: usize = 16;

/// 32 activations `x[i] ≈ scale * quants[i]`, in one cache line with the sums that weights with an offset or a
/// minimum need.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct Q8Block {
    pub quants: [i8; BLOCK],
    pub scale: f32,
    /// `scale * Σ quants`, over all 32 and over each half.
    pub sum: f32,
    pub half_sums: [f32; 2],
    /// `-Σ quants`, over all 32 and over each half: negated, because kernels start from `offset * -Σ`.
    pub neg_quant_sum: i32,
    pub neg_quant_half_sums: [i32; 2],
    pub _pad: i32,
}

/// Below this, 127 / amax overflows: such a block is zero to 8 bits of anything else in a row.
const TINY: f32 = 1e-30;
/// Adding 1.5 * 2^23 rounds an f32 of magnitude below 2^22 to the nearest even integer, left in the low bits.
const ROUND: f32 = 12_582_912.0;

/// How many rows a group of `n` occupies: sizes for which a micro-kernel exists.
pub(super) fn padded_group(n: usize) -> usize {
    match n {
        0..=2 => n.max(1),
        3..=4 => 4,
        5..=8 => 8,
        9..=12 => 12,
        _ => 16,
    }
}

/// One block. A block with a value that is not finite gets the scale NaN, so that its products are NaN and not noise.
#[inline(always)]
fn quantize_block(x: &[f32; BLOCK], out: &mut Q8Block) {
    // As integers, magnitudes order as floats do, with infinity and every NaN above all finite values.
    let mut bits = 0u32;
    for v in x {
        bits = bits.max(v.to_bits() & 0x7fff_ffff);
    }
    let amax = f32::from_bits(bits);
    let finite = bits < 0x7f80_0000;
    let (scale, inverse) = match (finite, amax > TINY) {
        (true, true) => (amax / 127.0, 127.0 / amax),
        (true, false) => (0.0, 0.0),
        (false, _) => (f32::NAN, 0.0),
    };
    let mut quants = [0i32; BLOCK];
    if finite {
        for (q, v) in quants.iter_mut().zip(x) {
            *q = ((v * inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
        }
    }
    let (mut low, mut high) = (0i32, 0i32);
    for i in 0..BLOCK / 2 {
        low += quants[i];
        high += quants[i + BLOCK / 2];
    }
    for (o, q) in out.quants.iter_mut().zip(quants) {
        *o = q as i8;
    }
    out.scale = scale;
    out.sum = scale * (low + high) as f32;
    out.half_sums = [scale * low as f32, scale * high as f32];
    out.neg_quant_sum = -(low + high);
    out.neg_quant_half_sums = [-low, -high];
}

/// Quantises one row of `x` into every `stride`-th block of `out`. `x.len()` is a multiple of 32.
#[inline(always)]
fn quantize_row_body(x: &[f32], out: &mut [Q8Block], stride: usize) {
    let (blocks, _) = x.as_chunks::<BLOCK>();
    for (x, out) in blocks.iter().zip(out.iter_mut().step_by(stride)) {
        quantize_block(x, out);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
fn quantize_row_avx512(x: &[f32], out: &mut [Q8Block], stride: usize) {
    quantize_row_body(x, out, stride);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn quantize_row_avx2(x: &[f32], out: &mut [Q8Block], stride: usize) {
    quantize_row_body(x, out, stride);
}

/// Quantises one row into every `stride`-th block of `out`; the tail of `x` past a multiple of 32 is ignored.
pub(super) fn quantize_row(isa: Isa, x: &[f32], out: &mut [Q8Block], stride: usize) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` other than `Scalar` exists only where the processor has its features (`Isa::available`).
        Isa::Avx512Vnni => unsafe { quantize_row_avx512(x, out, stride) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { quantize_row_avx2(x, out, stride) },
        Isa::Scalar => quantize_row_body(x, out, stride),
    }
}
