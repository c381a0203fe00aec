//! The micro-kernel of all block formats: 16 outputs (the lanes) times up to 16 activation rows.
//!
//! Per block of 32 along `k`, in this order for every output whatever the rows and the instruction set:
//! `acc = fma(scale * x.scale, (float)(Σ code·x - offset·Σ x), acc)`, then, with minimums, `acc = fma(min, x.sum,
//! acc)`. The sums of products are exact in i32 (at most 32 · 255 · 127).

use super::super::formats::{Format, Q8_0, span_blocks};
use super::super::lanes::{Lanes, unroll};
use super::super::q8::{BLOCK, GROUP, Q8Block};
use super::TileArgs;

/// `Σ code · x - offset · Σ x` over the groups `w`.
///
/// # Safety
/// The conditions of `Lanes::dot` hold.
#[inline(always)]
unsafe fn dot<L: Lanes, F: Format>(w: &[L::Bytes], x: *const i8, neg_sum: i32) -> L::Floats {
    const { assert!(F::MAX_CODE < 128 || matches!(F::OFFSET, Some(7))) };
    // SAFETY: the caller's promise.
    unsafe {
        if F::MAX_CODE > 127 {
            return L::to_f32(L::dot_bytes(w, x, neg_sum));
        }
        let start = match F::OFFSET {
            Some(offset) => L::shl(L::splat_i32(neg_sum), offset),
            None => L::splat_i32(0),
        };
        L::to_f32(L::dot(start, w, x, F::MAX_CODE))
    }
}

/// How far ahead memory is asked for, into the second-level cache: into the first it came a seventh to a third slower
/// on Zen 4, and without being asked for as much slower with some types. Tiles lie side by side, so that running ahead
/// of one is into the next.
pub(super) const AHEAD: usize = 8192;

/// # Safety
/// The conditions of `Lanes` hold.
#[inline(always)]
unsafe fn prefetch<L: Lanes>(p: *const u8, bytes: usize) {
    unroll!(line in 0..bytes.div_ceil(64), {
        // SAFETY: the caller's promise; a prefetch may be of any address.
        unsafe { L::prefetch_second(p.wrapping_add(AHEAD + 64 * line)) };
    });
}

/// Bytes of a block's codes, a line for each group of four.
pub(in super::super) const CODES: usize = 8 * 64;

/// Whether codes are made once for several groups of rows: where they are computed, and where few rows share what is
/// cut out of the planes.
pub(super) const fn makes_codes<L: Lanes, F: Format>() -> bool {
    F::LOW == 0 || (F::HIGH > 0 || F::TABLE.is_some()) && L::MAX_ROWS < GROUP
}

/// Writes the codes of all blocks of a tile, for several groups of rows, as Q8_0 has them in its planes.
///
/// # Safety
/// The conditions of `Lanes` hold; the tile has `steps` blocks of 32, and `out` room for their codes.
#[inline(always)]
pub(super) unsafe fn make_codes<L: Lanes, F: Format>(mut tile: *const u8, steps: usize, mut out: *mut u8) {
    let [blocks, code_stride, side_stride] = strides::<F>();
    let mut left = steps / blocks;
    while left > 0 {
        let count = left.min(span_blocks(F::TYPE.block_elements()));
        left -= count;
        // SAFETY: the caller's promise; see `rows`.
        unsafe {
            let mut side = tile;
            tile = tile.add((count * side_stride).next_multiple_of(64));
            for block in 0..count * blocks {
                let codes = F::codes::<L>(side, tile, block % blocks);
                unroll!(g in 0..8, {
                    L::store_bytes(out.add(64 * g), codes[g]);
                });
                (tile, out) = (tile.add(code_stride), out.add(CODES));
                if (block + 1) % blocks == 0 {
                    side = side.add(side_stride);
                }
            }
        }
    }
}

/// Blocks of 32 in a GGUF block; bytes of a block's planes, and of a GGUF block's side bytes, of 16 rows.
const fn strides<F: Format>() -> [usize; 3] {
    [F::TYPE.block_elements() / BLOCK, 64 * (F::LOW + F::HIGH) as usize, 16 * side_bytes(F::SIDE)]
}

/// `R` rows of the group, from row `first`, times one tile.
///
/// # Safety
/// The conditions of `Lanes` hold; `args` is as documented there, with `Q8Block`s as activations.
#[inline(always)]
unsafe fn rows<L: Lanes, F: Format, const R: usize>(args: &TileArgs, first: usize) {
    // SAFETY: the pointers advance over exactly the tile's blocks and the group's activations.
    unsafe {
        args.prefetch_out::<L, R>(first);
        let mut acc = [L::splat_f32(0.0); R];
        let (mut weights, mut made) = (args.weights, args.codes);
        let mut x = args.activations.cast::<Q8Block>().add(first);
        let [blocks, code_stride, side_stride] = strides::<F>();
        let mut left = args.steps / blocks;
        while left > 0 {
            let count = left.min(span_blocks(F::TYPE.block_elements()));
            left -= count;
            let mut side = weights;
            weights = weights.add((count * side_stride).next_multiple_of(64));
            for _ in 0..count {
                if F::LOW > 0 {
                    prefetch::<L>(side, side_stride);
                }
                for b in 0..blocks {
                    if F::LOW > 0 {
                        prefetch::<L>(weights, code_stride);
                    } else {
                        prefetch::<L>(side.wrapping_add(b * side_stride / blocks), side_stride / blocks);
                    }
                    let w = if !makes_codes::<L, F>() || made.is_null() {
                        F::codes::<L>(side, weights, b)
                    } else {
                        let w = Q8_0::codes::<L>(side, made, b);
                        made = made.add(CODES);
                        w
                    };
                    let s = F::scales::<L>(side, b);
                    unroll!(r in 0..R, {
                        let x = x.add(r);
                        let quants = (&raw const (*x).quants).cast::<i8>();
                        if F::SCALES == 1 {
                            let sum = dot::<L, F>(&w, quants, (*x).neg_quant_sum);
                            acc[r] = L::fma(L::mul(s.scale[0], L::splat_f32((*x).scale)), sum, acc[r]);
                            if F::MIN {
                                acc[r] = L::fma(s.min[0], L::splat_f32((*x).sum), acc[r]);
                            }
                        } else {
                            unroll!(h in 0..2, {
                                let half = [w[4 * h], w[4 * h + 1], w[4 * h + 2], w[4 * h + 3]];
                                let sum = dot::<L, F>(&half, quants.add(16 * h), (*x).neg_quant_half_sums[h]);
                                acc[r] = L::fma(L::mul(s.scale[h], L::splat_f32((*x).scale)), sum, acc[r]);
                                if F::MIN {
                                    acc[r] = L::fma(s.min[h], L::splat_f32((*x).half_sums[h]), acc[r]);
                                }
                            });
                        }
                    });
                    weights = weights.add(code_stride);
                    x = x.add(args.group);
                }
                side = side.add(side_stride);
            }
        }
        args.store::<L, R>(&acc, first);
    }
}

/// Bytes of a GGUF block that are not codes.
pub(in super::super) const fn side_bytes(side: &[(usize, usize, usize)]) -> usize {
    let (mut i, mut bytes) = (0, 0);
    while i < side.len() {
        bytes += side[i].1 * side[i].2;
        i += 1;
    }
    bytes
}

/// Multiplies all rows of a group of `G`.
///
/// # Safety
/// The conditions of `rows` hold.
#[inline(always)]
pub(super) unsafe fn group<L: Lanes, F: Format, const G: usize>(args: &TileArgs) {
    // SAFETY: the caller's promise.
    unsafe {
        if G <= L::MAX_ROWS {
            rows::<L, F, G>(args, 0);
        } else {
            for first in (0..args.rows).step_by(4) {
                rows::<L, F, 4>(args, first);
            }
        }
    }
}
