//! The quantizer of activations; see `q8` for the layout.

use super::super::lanes::Lanes;
use super::super::q8::{BLOCK, Q8Block};

/// Below this, 127 / amax overflows. Such a block counts as zero next to any other value of a row.
const TINY: f32 = 1e-30;
/// Adding 1.5 * 2^23 rounds an f32 of magnitude below 2^22 to the nearest even integer, which is then in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Quantizes one block of 32. A block with a non-finite value gets the scale NaN, so its products are NaN and not
/// noise.
///
/// # Safety
/// The conditions of `Lanes` hold.
#[inline(always)]
unsafe fn block<L: Lanes>(x: &[f32; BLOCK], out: &mut Q8Block) {
    // SAFETY: 32 values are read, 32 bytes written.
    unsafe {
        let (low, high) = (L::load_f32(x.as_ptr().cast()), L::load_f32(x[16..].as_ptr().cast()));
        // The bits of magnitudes, read as integers, have the order of the floats. Infinity and every NaN are above all
        // finite values.
        let magnitude = |v| L::and(L::as_i32(v), L::splat_i32(i32::MAX));
        let amax = f32::from_bits(L::reduce_max(L::max(magnitude(low), magnitude(high))) as u32);
        if amax <= TINY || !amax.is_finite() {
            *out = Q8Block::ZERO;
            if !amax.is_finite() {
                (out.scale, out.sum, out.half_sums) = (f32::NAN, f32::NAN, [f32::NAN; 2]);
            }
            return;
        }
        let (scale, inverse) = (amax / 127.0, L::splat_f32(127.0 / amax));
        let round = L::splat_f32(ROUND);
        let quants = |v| L::sub(L::as_i32(L::add(L::mul(v, inverse), round)), L::as_i32(round));
        let (low, high) = (quants(low), quants(high));
        L::store_i8(out.quants.as_mut_ptr(), low);
        L::store_i8(out.quants[16..].as_mut_ptr(), high);
        let (low, high) = (L::reduce_add(low), L::reduce_add(high));
        out.scale = scale;
        out.sum = scale * (low + high) as f32;
        out.half_sums = [scale * low as f32, scale * high as f32];
        out.neg_quant_sum = -(low + high);
        out.neg_quant_half_sums = [-low, -high];
    }
}

/// Quantizes one row into every `stride`-th block of `out`.
///
/// # Safety
/// The conditions of `Lanes` hold.
#[inline(always)]
pub(super) unsafe fn row<L: Lanes>(x: &[f32], out: &mut [Q8Block], stride: usize) {
    for (x, out) in x.as_chunks::<BLOCK>().0.iter().zip(out.iter_mut().step_by(stride)) {
        // SAFETY: the caller's promise.
        unsafe { block::<L>(x, out) };
    }
}
