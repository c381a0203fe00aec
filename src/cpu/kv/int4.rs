//! K and V of one layer in int4. A block of 32 elements of a head has a scale and a minimum in f16. An element is
//! `minimum + scale * code`, with codes up to 15. A byte has the codes of elements j and j + 16 of a block. As with
//! other types, the lanes of K are tokens, and those of V are elements:
//!
//! ```text
//! codes of k: [tiles, blocks, 16 bytes, 16 tokens]
//! codes of v: [tiles, 16 tokens, blocks, 16 bytes]
//! scales:     [tiles, blocks, scale and minimum, 16 tokens]
//! ```
//!
//! Heads of q and k are multiplied by a Hadamard matrix first. Their product is the same, and outliers of K are spread
//! over the head. V has few outliers, and a rotation did not lower its error.
//!
//! Attention decodes the tiles of a chunk to f32 once for all rows that are computed together.

use std::sync::atomic::{AtomicI8, AtomicU16};

use half::f16;

use super::{KvElement, KvSource, KvStore, KvTile, TILE};
use crate::backend::KvLayerSpec;
use crate::simd::{LANES, Simd};
use crate::storage::Storage;

const BLOCK: usize = KvLayerSpec::INT4_BLOCK;
/// Bytes with the codes of a block of one token.
const BLOCK_BYTES: usize = BLOCK / 2;
const LEVELS: f32 = 15.0;

#[derive(Debug)]
pub(in super::super) struct Int4Pages {
    pub(in super::super) spec: KvLayerSpec,
    pub(in super::super) k: Int4Side,
    pub(in super::super) v: Int4Side,
}

/// K or V of all tiles.
#[derive(Debug)]
pub(in super::super) struct Int4Side {
    pub(in super::super) codes: Storage<i8>,
    pub(in super::super) scales: Storage<f16>,
}

/// K or V of a tile.
#[derive(Clone, Copy)]
struct Int4Tile<'a> {
    codes: &'a [[i8; LANES]],
    /// The scales and the minima of each block.
    scales: &'a [[[f16; TILE]; 2]],
}

impl Int4Side {
    /// Returns a tile of `blocks` blocks.
    #[inline(always)]
    fn tile(&self, index: usize, blocks: usize) -> Int4Tile<'_> {
        let codes = &self.codes.as_chunks::<LANES>().0[index * blocks * BLOCK_BYTES..][..blocks * BLOCK_BYTES];
        let scales = &self.scales.as_chunks::<TILE>().0.as_chunks::<2>().0[index * blocks..][..blocks];
        Int4Tile { codes, scales }
    }

    fn copy_block(&mut self, src: u32, dst: u32, num_blocks: usize) {
        let places = |len: usize| {
            let size = len / num_blocks;
            (src as usize * size..(src as usize + 1) * size, dst as usize * size)
        };
        let (from, to) = places(self.codes.len());
        self.codes.copy_within(from, to);
        let (from, to) = places(self.scales.len());
        self.scales.copy_within(from, to);
    }

    fn parts(&self, block: u32, num_blocks: usize) -> [Option<&[u8]>; 2] {
        let (codes, scales) = (self.codes.len() / num_blocks, self.scales.len() / num_blocks);
        [self.codes.part(block as usize, codes), self.scales.part(block as usize, scales)]
    }

    fn parts_mut(&mut self, block: u32, num_blocks: usize) -> [Option<&mut [u8]>; 2] {
        let (codes, scales) = (self.codes.len() / num_blocks, self.scales.len() / num_blocks);
        [self.codes.part_mut(block as usize, codes), self.scales.part_mut(block as usize, scales)]
    }

    fn writer(&mut self) -> SideWriter<'_> {
        SideWriter { codes: i8::as_atomic(&mut self.codes), scales: f16::as_atomic(&mut self.scales) }
    }
}

impl Int4Pages {
    pub(super) fn copy_block(&mut self, src: u32, dst: u32) {
        self.k.copy_block(src, dst, self.spec.num_blocks);
        self.v.copy_block(src, dst, self.spec.num_blocks);
    }

    pub(super) fn parts(&self, block: u32) -> [Option<&[u8]>; 4] {
        let num_blocks = self.spec.num_blocks;
        let ([k, k_scales], [v, v_scales]) = (self.k.parts(block, num_blocks), self.v.parts(block, num_blocks));
        [k, v, k_scales, v_scales]
    }

    pub(super) fn parts_mut(&mut self, block: u32) -> [Option<&mut [u8]>; 4] {
        let num_blocks = self.spec.num_blocks;
        let ([k, k_scales], [v, v_scales]) = (self.k.parts_mut(block, num_blocks), self.v.parts_mut(block, num_blocks));
        [k, v, k_scales, v_scales]
    }

    pub(in super::super) fn writer(&mut self) -> Int4Writer<'_> {
        Int4Writer { spec: self.spec, k: self.k.writer(), v: self.v.writer() }
    }

    /// Returns the elements of a head of a tile, with those that fill its last block.
    fn head_len(&self) -> usize {
        self.spec.int4_blocks() * BLOCK
    }
}

impl KvSource for Int4Pages {
    type Element = f32;

    fn spec(&self) -> &KvLayerSpec {
        &self.spec
    }

    fn v_stride(&self) -> usize {
        self.head_len()
    }

    fn decoded_len(&self) -> usize {
        2 * self.head_len() * TILE
    }

    #[inline(always)]
    fn tiles<'a, S: Simd>(&'a self, s: S, [now, next]: [usize; 2], decoded: &'a mut [f32]) -> [KvTile<'a, f32>; 2] {
        let blocks = self.spec.int4_blocks();
        for side in [&self.k, &self.v] {
            let Int4Tile { codes, scales } = side.tile(next, blocks);
            codes.iter().step_by(64 / LANES).for_each(|line| s.prefetch(line));
            scales.iter().for_each(|line| s.prefetch(line));
        }
        let (k, v) = decoded.split_at_mut(self.head_len() * TILE);
        decode_k(s, self.k.tile(now, blocks), k);
        decode_v(s, self.v.tile(now, blocks), v);
        // The next tile is prefetched above, not by the kernels.
        let (k, v) = (&*k, &*v);
        std::array::from_fn(|_| KvTile { k, v, scales: &[[1.0; TILE]; 2] })
    }
}

/// Decodes K of a tile to `[blocks * 32, 16 tokens]`.
#[inline(always)]
fn decode_k<S: Simd>(s: S, Int4Tile { codes, scales }: Int4Tile<'_>, out: &mut [f32]) {
    let blocks = codes.as_chunks::<BLOCK_BYTES>().0.iter().zip(scales);
    for ((codes, [scale, minimum]), out) in blocks.zip(out.as_chunks_mut::<TILE>().0.as_chunks_mut::<BLOCK>().0) {
        let (scale, minimum) = (s.load_f16(scale), s.load_f16(minimum));
        let (first, second) = out.split_at_mut(BLOCK_BYTES);
        for ((codes, first), second) in codes.iter().zip(first).zip(second) {
            let [low, high] = s.load_nibbles(codes);
            s.store(s.fma(low, scale, minimum), first);
            s.store(s.fma(high, scale, minimum), second);
        }
    }
}

/// Decodes V of a tile to `[16 tokens, blocks * 32]`.
#[inline(always)]
fn decode_v<S: Simd>(s: S, Int4Tile { codes, scales }: Int4Tile<'_>, out: &mut [f32]) {
    let blocks = scales.len();
    for (block, scales) in scales.iter().enumerate() {
        let mut factors = [[0.0; TILE]; 2];
        for (factors, scales) in factors.iter_mut().zip(scales) {
            s.store(s.load_f16(scales), factors);
        }
        for (token, (&scale, &minimum)) in factors[0].iter().zip(&factors[1]).enumerate() {
            let at = token * blocks + block;
            let (scale, minimum) = (s.splat(scale), s.splat(minimum));
            let [low, high] = s.load_nibbles(&codes[at]);
            let out = &mut out.as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0[at];
            s.store(s.fma(low, scale, minimum), &mut out[0]);
            s.store(s.fma(high, scale, minimum), &mut out[1]);
        }
    }
}

/// Stores tokens from several threads.
#[derive(Debug)]
pub(in super::super) struct Int4Writer<'a> {
    spec: KvLayerSpec,
    k: SideWriter<'a>,
    v: SideWriter<'a>,
}

#[derive(Debug)]
struct SideWriter<'a> {
    codes: &'a [AtomicI8],
    scales: &'a [AtomicU16],
}

impl KvStore for Int4Writer<'_> {
    #[inline(always)]
    fn rotate(&self, heads: &mut [f32]) {
        heads.chunks_exact_mut(self.spec.head_dim).for_each(hadamard);
    }

    #[inline(always)]
    fn store<S: Simd>(&self, s: S, slot: u32, k: &[f32], v: &[f32]) {
        let KvLayerSpec { block_size, num_kv_heads, head_dim, .. } = self.spec;
        let blocks = self.spec.int4_blocks();
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        let heads = k.chunks_exact(head_dim).zip(v.chunks_exact(v.len() / num_kv_heads));
        for (head, (k, v)) in heads.enumerate() {
            let token = (block * num_kv_heads + head) * block_size + offset;
            let (tile, lane) = (token / TILE, token % TILE);
            let scales = |i: usize| (tile * blocks + i) * 2 * TILE + lane;
            for (i, k) in k.chunks(BLOCK).enumerate() {
                let codes = (tile * blocks + i) * BLOCK_BYTES * TILE + lane;
                self.k.store(s, k, (codes, TILE), scales(i));
            }
            for (i, v) in v.chunks(BLOCK).enumerate() {
                self.v.store(s, v, ((token * blocks + i) * BLOCK_BYTES, 1), scales(i));
            }
        }
    }
}

impl SideWriter<'_> {
    /// Stores up to a block of elements: their codes at `codes` and every `stride` bytes, their scale and minimum at
    /// `scales` and a tile further.
    #[inline(always)]
    fn store<S: Simd>(&self, s: S, x: &[f32], (codes, stride): (usize, usize), scales: usize) {
        // Missing elements repeat the first one, so they change neither the minimum nor the scale.
        let mut block = [x[0]; BLOCK];
        block[..x.len()].copy_from_slice(x);
        let [low, high] = &block.as_chunks::<LANES>().0.as_chunks::<2>().0[0];
        let (low, high) = (s.load(low), s.load(high));
        let smallest = -s.maximum(s.sub(s.splat(0.0), s.min(low, high)));
        let range = s.maximum(s.max(low, high)) - smallest;
        // Zero, or NaN if an element is not finite. A block with a NaN thus gets a NaN scale, which keeps it visible.
        let broken = s.sum(s.add(s.sub(low, low), s.sub(high, high)));
        let scale = s.to_f16(s.splat(range / LEVELS + broken))[0];
        let minimum = s.to_f16(s.splat(smallest))[0];
        scale.store(&self.scales[scales]);
        minimum.store(&self.scales[scales + TILE]);
        let (scale, minimum) = (scale.to_f32(), minimum.to_f32());
        let factor = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let (low, high) = (codes_of(s, low, minimum, factor), codes_of(s, high, minimum, factor));
        for ((low, high), out) in low.iter().zip(high).zip(self.codes[codes..].iter().step_by(stride)) {
            (low | high << 4).store(out);
        }
    }
}

/// Returns the nearest codes; 0 for NaN.
#[inline(always)]
fn codes_of<S: Simd>(s: S, x: S::V, minimum: f32, factor: f32) -> [i8; LANES] {
    let level = s.mul(s.sub(x, s.splat(minimum)), s.splat(factor));
    s.to_i8(s.min(s.max(level, s.splat(0.0)), s.splat(LEVELS)))
}

/// Multiplies a head by an orthogonal matrix: Hadamard matrices of the largest power of two that divides the head, on
/// the diagonal.
#[inline(always)]
fn hadamard(head: &mut [f32]) {
    let size = 1usize << head.len().trailing_zeros();
    let norm = 1.0 / (size as f32).sqrt();
    for part in head.chunks_exact_mut(size) {
        let mut half = 1;
        while half < size {
            for pair in part.chunks_exact_mut(2 * half) {
                let (first, second) = pair.split_at_mut(half);
                for (a, b) in first.iter_mut().zip(second) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        part.iter_mut().for_each(|x| *x *= norm);
    }
}
