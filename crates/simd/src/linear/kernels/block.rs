//! The micro-kernel of all block formats: 16 outputs (the lanes) times up to 16 activation rows.
//!
//! The order is the same for any number of rows and any instruction set. Per block of 32 along `k`, every output is
//! `acc = fma(scale * x.scale, (float)(Σ code·x - offset·Σ x), acc)`. Formats with minimums then add
//! `acc = fma(min, x.sum, acc)`. The sums of products are exact in i32 (at most 32 · 255 · 127).

use std::marker::PhantomData;

use super::super::formats::{Format, Q8_0, Scales, span_blocks};
use super::super::lanes::{Groups, Lanes, unroll};
use super::super::q8::{BLOCK, GROUP, Q8Block};
use super::TileArgs;

/// The groups of a block, already extracted.
struct Held<'a, L: Lanes>(&'a [L::Bytes; 8]);

impl<L: Lanes> Groups<L> for Held<'_, L> {
    const PARTS: usize = 8;
    const LINES: usize = 1;

    #[inline(always)]
    unsafe fn group(&self, part: usize, _line: usize) -> L::Bytes {
        self.0[part]
    }
}

/// The groups of a block in its planes. Format `F` has no high plane.
struct Planes<F>(*const u8, PhantomData<F>);

impl<L: Lanes, F: Format> Groups<L> for Planes<F> {
    const PARTS: usize = 8 / <Self as Groups<L>>::LINES;
    // Formats that compute their codes have no planes and never use this.
    const LINES: usize = if F::LOW > 0 { F::LOW as usize } else { 1 };

    #[inline(always)]
    unsafe fn group(&self, part: usize, line: usize) -> L::Bytes {
        // SAFETY: the promises of the caller and of the creator of the pointer.
        unsafe { F::low_codes::<L>(self.0, part, line) }
    }
}

/// Half `H` of the groups of a block.
struct Half<'a, W, const H: usize>(&'a W);

impl<L: Lanes, W: Groups<L>, const H: usize> Groups<L> for Half<'_, W, H> {
    const PARTS: usize = W::PARTS.div_ceil(2);
    const LINES: usize = 4 / Self::PARTS;

    #[inline(always)]
    unsafe fn group(&self, part: usize, line: usize) -> L::Bytes {
        // SAFETY: the caller's promise.
        unsafe {
            if W::PARTS == 1 { self.0.group(0, 4 * H + line) } else { self.0.group(Self::PARTS * H + part, line) }
        }
    }
}

/// Adds the products of `N` rows with the codes `w` of a block of 32, or of half `h` of one, to the rows' accumulators.
/// `x` points to the rows' blocks.
///
/// # Safety
/// The conditions of `Lanes::dot` hold.
#[inline(always)]
unsafe fn add_products<L: Lanes, F: Format, W: Groups<L>, const N: usize>(
    mut acc: [L::Floats; N],
    w: &W,
    s: &Scales<L>,
    h: usize,
    x: *const Q8Block,
) -> [L::Floats; N] {
    const { assert!(F::MAX_CODE < 128 || matches!(F::OFFSET, Some(7))) };
    // SAFETY: the caller's promise.
    unsafe {
        let (mut quants, mut neg_sums) = ([std::ptr::null(); N], [0; N]);
        let mut start = [L::splat_i32(0); N];
        unroll!(r in 0..N, {
            let x = x.add(r);
            quants[r] = (&raw const (*x).quants).cast::<i8>().add(16 * h);
            neg_sums[r] = if F::SCALES == 1 { (*x).neg_quant_sum } else { (*x).neg_quant_half_sums[h] };
            if let Some(offset) = F::OFFSET {
                start[r] = L::shl(L::splat_i32(neg_sums[r]), offset);
            }
        });
        let sums =
            if F::MAX_CODE > 127 { L::dot_bytes(w, quants, neg_sums) } else { L::dot(start, w, quants, F::MAX_CODE) };
        unroll!(r in 0..N, {
            let x = x.add(r);
            acc[r] = L::fma(L::mul(s.scale[h], L::splat_f32((*x).scale)), L::to_f32(sums[r]), acc[r]);
            if F::MIN {
                let sum = if F::SCALES == 1 { (*x).sum } else { (*x).half_sums[h] };
                acc[r] = L::fma(s.min[h], L::splat_f32(sum), acc[r]);
            }
        });
    }
    acc
}

/// Adds the products of `N` rows with a whole block.
///
/// # Safety
/// See `add_products`.
#[inline(always)]
unsafe fn add_block<L: Lanes, F: Format, W: Groups<L>, const N: usize>(
    acc: [L::Floats; N],
    w: &W,
    s: &Scales<L>,
    x: *const Q8Block,
) -> [L::Floats; N] {
    // SAFETY: the caller's promise.
    unsafe {
        if F::SCALES == 1 {
            return add_products::<L, F, W, N>(acc, w, s, 0, x);
        }
        let acc = add_products::<L, F, _, N>(acc, &Half::<W, 0>(w), s, 0, x);
        add_products::<L, F, _, N>(acc, &Half::<W, 1>(w), s, 1, x)
    }
}

/// The prefetch distance in bytes. Without prefetching, some types were a seventh to a third slower (Zen 4). Tiles are
/// adjacent, so the prefetch runs into the next tile.
const AHEAD: usize = 8192;

/// Prefetches the cache line at `p + AHEAD`, into the first-level cache if `near`.
///
/// # Safety
/// The conditions of `Lanes` hold.
#[inline(always)]
pub(super) unsafe fn ask_ahead<L: Lanes>(p: *const u8, near: bool) {
    let line = p.wrapping_add(AHEAD);
    // SAFETY: the caller's promise; any address may be prefetched.
    unsafe { if near { L::prefetch(line) } else { L::prefetch_second(line) } }
}

/// # Safety
/// The conditions of `Lanes` hold.
#[inline(always)]
unsafe fn prefetch<L: Lanes>(p: *const u8, bytes: usize, near: bool) {
    unroll!(line in 0..bytes.div_ceil(64), {
        // SAFETY: the caller's promise.
        unsafe { ask_ahead::<L>(p.wrapping_add(64 * line), near) };
    });
}

/// Bytes of a block's codes: one line for each group of four.
pub(in super::super) const CODES: usize = 8 * 64;

/// True if codes are computed once for several groups of rows. This pays for computed codes, and if few rows share the
/// codes extracted from planes.
pub(super) const fn makes_codes<L: Lanes, F: Format>() -> bool {
    F::LOW == 0 || (F::HIGH > 0 || F::TABLE.is_some()) && L::MAX_ROWS < GROUP
}

/// Writes the codes of all blocks of a tile for several groups of rows, in the layout of Q8_0's planes.
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

/// Returns the number of 32-blocks in a GGUF block, the bytes of a block's planes, and the bytes of a GGUF block's side
/// bytes. Bytes are for 16 rows.
const fn strides<F: Format>() -> [usize; 3] {
    [F::TYPE.block_elements() / BLOCK, 64 * (F::LOW + F::HIGH) as usize, 16 * side_bytes(F::SIDE)]
}

/// Multiplies `R` rows of the group, from row `first`, with one tile.
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
        let near = R == 1 && args.near;
        let mut left = args.steps / blocks;
        while left > 0 {
            let count = left.min(span_blocks(F::TYPE.block_elements()));
            left -= count;
            let mut side = weights;
            weights = weights.add((count * side_stride).next_multiple_of(64));
            for _ in 0..count {
                if F::LOW > 0 {
                    prefetch::<L>(side, side_stride, near);
                }
                for b in 0..blocks {
                    if F::LOW > 0 {
                        prefetch::<L>(weights, code_stride, near);
                    } else {
                        prefetch::<L>(side.wrapping_add(b * side_stride / blocks), side_stride / blocks, near);
                    }
                    let s = F::scales::<L>(side, b);
                    let is_made = makes_codes::<L, F>() && !made.is_null();
                    if !L::HOLDS_BLOCK && is_made {
                        acc = add_block::<L, F, _, R>(acc, &Planes(made, PhantomData::<Q8_0>), &s, x);
                    } else if !L::HOLDS_BLOCK && F::LOW > 0 && F::HIGH == 0 {
                        acc = add_block::<L, F, _, R>(acc, &Planes(weights, PhantomData::<F>), &s, x);
                    } else {
                        let w = if is_made { Q8_0::codes::<L>(side, made, b) } else { F::codes::<L>(side, weights, b) };
                        unroll!(r in 0..R, {
                            [acc[r]] = add_block::<L, F, _, 1>([acc[r]], &Held(&w), &s, x.add(r));
                        });
                    }
                    if is_made {
                        made = made.add(CODES);
                    }
                    weights = weights.add(code_stride);
                    x = x.add(args.group);
                }
                side = side.add(side_stride);
            }
        }
        args.store::<L, R>(&acc, first);
    }
}

/// Returns the bytes of a GGUF block that are not codes.
pub(in super::super) const fn side_bytes(side: &[(usize, usize, usize)]) -> usize {
    let (mut i, mut bytes) = (0, 0);
    while i < side.len() {
        bytes += side[i].1 * side[i].2;
        i += 1;
    }
    bytes
}

/// Multiplies all rows of a group of `G`. A kernel for more than `MAX_ROWS` takes a group of any size, four rows at a
/// time.
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
