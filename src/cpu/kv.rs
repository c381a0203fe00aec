//! The paged K and V of one layer. Blocks consist of tiles of 16 tokens. K is transposed within a tile, so the 16 lanes
//! of a vector are 16 keys. The lanes of V are 16 elements of a head:
//!
//! ```text
//! k: [num_blocks, num_kv_heads, block_size / 16, head_dim, 16 tokens]
//! v: [num_blocks, num_kv_heads, block_size,      head_dim]
//! ```
//!
//! In int8, each token has a scale for each head of K and of V,
//! `[num_blocks, num_kv_heads, block_size / 16, 2, 16 tokens]`. A vector of scales is multiplied with a vector of
//! scores or of weights. On SmolLM2, scales per 32 elements as in q8_0 were no better (docs/architecture.md), and cost
//! a product per element.
//!
//! Latent rows are K and V at once. They have V's layout, and there is no separate K. In int8, their two scales are
//! those of the latent and of the key.

mod element;
mod int4;
mod latent;

use std::sync::atomic::AtomicU32;

use half::f16;

pub(super) use element::KvElement;
use element::LEVELS;
pub(super) use int4::{Int4Pages, Int4Side};
pub(super) use latent::Int8Latents;

use super::simd::{LANES, Simd};
use super::storage::Storage;
use crate::backend::KvLayerSpec;
use crate::batch::NULL_BLOCK;
use crate::{Error, Result};

/// Tokens per tile, which is the number of lanes of a vector.
pub(super) const TILE: usize = LANES;

const SIGN: u32 = 1 << 31;

/// The K and V pool of one layer.
#[derive(Debug)]
pub struct KvLayer {
    pub(super) spec: KvLayerSpec,
    pub(super) pool: KvPool,
}

/// The pool's memory by [`KvCacheDtype`](crate::config::KvCacheDtype).
#[derive(Debug)]
pub(super) enum KvPool {
    F16(KvPages<f16>),
    F32(KvPages<f32>),
    Int8(KvPages<i8>),
    Int4(Int4Pages),
}

impl KvLayer {
    /// # Errors
    /// `Internal` if a slot is outside the pool.
    pub(super) fn check_slots(&self, slots: &[u32]) -> Result<()> {
        let num_slots = self.spec.num_blocks * self.spec.block_size;
        match slots.iter().find(|&&slot| slot as usize >= num_slots) {
            Some(slot) => Err(Error::internal(format!("KV slot {slot} is outside the pool of {num_slots} slots"))),
            None => Ok(()),
        }
    }

    /// Copies block `src` to block `dst`; both are in the pool.
    pub(super) fn copy_block(&mut self, src: u32, dst: u32) {
        match &mut self.pool {
            KvPool::F16(pages) => pages.copy_block(src, dst),
            KvPool::F32(pages) => pages.copy_block(src, dst),
            KvPool::Int8(pages) => pages.copy_block(src, dst),
            KvPool::Int4(pages) => pages.copy_block(src, dst),
        }
    }

    /// Returns the bytes of a block, in parts, some of which may be empty. Parts outside the pool are `None`.
    pub(super) fn parts(&self, block: u32) -> [Option<&[u8]>; 4] {
        match &self.pool {
            KvPool::F16(pages) => pages.parts(block),
            KvPool::F32(pages) => pages.parts(block),
            KvPool::Int8(pages) => pages.parts(block),
            KvPool::Int4(pages) => pages.parts(block),
        }
    }

    /// Returns the bytes of the pool's memory.
    #[cfg(any(test, feature = "testing"))]
    pub fn bytes(&self) -> u64 {
        match &self.pool {
            KvPool::F16(pages) => pages.k.bytes() + pages.v.bytes(),
            KvPool::F32(pages) => pages.k.bytes() + pages.v.bytes(),
            KvPool::Int8(pages) => {
                pages.k.bytes() + pages.v.bytes() + pages.scales.as_ref().map_or(0, |scales| scales.bytes())
            }
            KvPool::Int4(pages) => {
                [&pages.k, &pages.v].iter().map(|side| side.codes.bytes() + side.scales.bytes()).sum()
            }
        }
    }

    /// Like `parts`, to be written.
    pub(super) fn parts_mut(&mut self, block: u32) -> [Option<&mut [u8]>; 4] {
        match &mut self.pool {
            KvPool::F16(pages) => pages.parts_mut(block),
            KvPool::F32(pages) => pages.parts_mut(block),
            KvPool::Int8(pages) => pages.parts_mut(block),
            KvPool::Int4(pages) => pages.parts_mut(block),
        }
    }
}

/// # Errors
/// `Internal` if one of `blocks` is outside the pool or is the null block.
pub(super) fn check_blocks(spec: &KvLayerSpec, blocks: &[u32]) -> Result<()> {
    match blocks.iter().find(|&&block| block as usize >= spec.num_blocks) {
        Some(&NULL_BLOCK) => Err(Error::internal("a null block stands where tokens are to be read")),
        Some(block) => Err(Error::internal(format!("block {block} is outside the pool of {} blocks", spec.num_blocks))),
        None => Ok(()),
    }
}

/// K and V as attention reads them.
pub(super) trait KvSource: Sync {
    type Element: KvElement;

    fn spec(&self) -> &KvLayerSpec;
    /// Returns the elements from one token's V of a tile to the next.
    fn v_stride(&self) -> usize;
    /// Returns the numbers that `tiles` needs if elements are not read where they are stored, or 0.
    fn decoded_len(&self) -> usize;
    /// Returns a tile, and the one that is read after it at this place, which may be prefetched. Tiles count those of
    /// all heads and blocks.
    fn tiles<'a, S: Simd>(&'a self, s: S, at: [usize; 2], decoded: &'a mut [f32]) -> [KvTile<'a, Self::Element>; 2];
}

/// Stores tokens from several threads.
pub(super) trait KvStore: Sync {
    /// Rotates heads of q or k after RoPE, as the stored type demands. Products of q and k stay the same.
    #[inline(always)]
    fn rotate(&self, _heads: &mut [f32]) {}

    /// Stores one token's `k` (`[num_kv_heads, head_dim]`) and `v` at `slot`. Heads of `v` may have fewer elements.
    fn store<S: Simd>(&self, s: S, slot: u32, k: &[f32], v: &[f32]);
}

/// K and V with elements of one type.
#[derive(Debug)]
pub(super) struct KvPages<E> {
    pub(super) spec: KvLayerSpec,
    /// Empty for latent rows.
    pub(super) k: Storage<E>,
    pub(super) v: Storage<E>,
    /// `None` for element types without scales.
    pub(super) scales: Option<Storage<f32>>,
}

/// K of one tile, `[head_dim, 16 tokens]`, and V of its tokens, `[16, head_dim]`. For latent rows both are the same, in
/// V's layout. `scales` has the scales of K, then of V, if elements have scales.
pub(super) struct KvTile<'a, E> {
    pub(super) k: &'a [E],
    pub(super) v: &'a [E],
    pub(super) scales: &'a [[f32; TILE]; 2],
}

impl<E: KvElement> KvSource for KvPages<E> {
    type Element = E;

    fn spec(&self) -> &KvLayerSpec {
        &self.spec
    }

    fn v_stride(&self) -> usize {
        self.spec.head_dim
    }

    fn decoded_len(&self) -> usize {
        0
    }

    #[inline(always)]
    fn tiles<'a, S: Simd>(&'a self, _: S, at: [usize; 2], _: &'a mut [f32]) -> [KvTile<'a, E>; 2] {
        at.map(|index| self.tile(index))
    }
}

impl<E: KvElement> KvPages<E> {
    #[inline(always)]
    fn tile(&self, index: usize) -> KvTile<'_, E> {
        let elements = index * TILE * self.spec.head_dim..(index + 1) * TILE * self.spec.head_dim;
        let v = &self.v[elements.clone()];
        let k = if self.spec.latent.is_some() { v } else { &self.k[elements] };
        let scales = match &self.scales {
            Some(scales) => &scales.as_chunks::<TILE>().0.as_chunks::<2>().0[index],
            None => &[[1.0; TILE]; 2],
        };
        KvTile { k, v, scales }
    }

    fn copy_block(&mut self, src: u32, dst: u32) {
        let heads = self.spec.block_size * self.spec.num_kv_heads;
        let elements = heads * self.spec.head_dim;
        let places = |size: usize| (src as usize * size..(src as usize + 1) * size, dst as usize * size);
        let (from, to) = places(elements);
        if self.spec.latent.is_none() {
            self.k.copy_within(from.clone(), to);
        }
        self.v.copy_within(from, to);
        if let Some(scales) = &mut self.scales {
            let (from, to) = places(2 * heads);
            scales.copy_within(from, to);
        }
    }

    /// Returns the elements of a block in K, in V, and its scales.
    fn lengths(&self) -> [usize; 3] {
        let heads = self.spec.block_size * self.spec.num_kv_heads;
        let elements = heads * self.spec.head_dim;
        [if self.spec.latent.is_some() { 0 } else { elements }, elements, 2 * heads]
    }

    fn parts(&self, block: u32) -> [Option<&[u8]>; 4] {
        let ([k, v, scales], block) = (self.lengths(), block as usize);
        let scales = match &self.scales {
            Some(all) => all.part(block, scales),
            None => Some(Default::default()),
        };
        [self.k.part(block, k), self.v.part(block, v), scales, Some(Default::default())]
    }

    fn parts_mut(&mut self, block: u32) -> [Option<&mut [u8]>; 4] {
        let ([k, v, scales], block) = (self.lengths(), block as usize);
        let scales = match &mut self.scales {
            Some(all) => all.part_mut(block, scales),
            None => Some(Default::default()),
        };
        [self.k.part_mut(block, k), self.v.part_mut(block, v), scales, Some(Default::default())]
    }

    pub(super) fn writer(&mut self) -> KvWriter<'_, E> {
        let scales = self.scales.as_deref_mut().unwrap_or_default();
        KvWriter {
            spec: self.spec,
            k: E::as_atomic(&mut self.k),
            v: E::as_atomic(&mut self.v),
            scales: f32::as_atomic(scales),
        }
    }
}

/// Stores tokens from several threads. Elements are atomics, which compile to plain stores. Two tokens with the same
/// slot by mistake would give a wrong value, not undefined behaviour.
#[derive(Debug)]
pub(super) struct KvWriter<'a, E: KvElement> {
    spec: KvLayerSpec,
    k: &'a [E::Atomic],
    v: &'a [E::Atomic],
    /// Empty for element types without scales.
    scales: &'a [AtomicU32],
}

impl<E: KvElement> KvStore for KvWriter<'_, E> {
    #[inline(always)]
    fn store<S: Simd>(&self, s: S, slot: u32, k: &[f32], v: &[f32]) {
        let KvLayerSpec { block_size, num_kv_heads, head_dim, .. } = self.spec;
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        let value_dim = v.len() / num_kv_heads;
        for head in 0..num_kv_heads {
            let first = (block * num_kv_heads + head) * block_size;
            let (k, v) = (&k[head * head_dim..][..head_dim], &v[head * value_dim..][..value_dim]);
            let k_start = (first + offset / TILE * TILE) * head_dim + offset % TILE;
            let [k_levels, v_levels] = if E::HAS_SCALES { self.store_scales(first + offset, [k, v]) } else { [1.0; 2] };
            store_strided::<S, E>(s, (k, k_levels), &self.k[k_start..], TILE);
            store_strided::<S, E>(s, (v, v_levels), &self.v[(first + offset) * head_dim..], 1);
        }
    }
}

impl<E: KvElement> KvWriter<'_, E> {
    /// Stores the scales of a head of K and of V, or of a latent and its key. Returns the factors on their elements
    /// before rounding. `token` counts the tokens of all preceding heads.
    #[inline(always)]
    fn store_scales(&self, token: usize, heads: [&[f32]; 2]) -> [f32; 2] {
        let start = token / TILE * 2 * TILE + token % TILE;
        std::array::from_fn(|i| {
            // The bits of magnitudes have the order of the magnitudes, with NaN on top. A head with a NaN thus gets a
            // NaN scale, which keeps it visible.
            let largest = heads[i].iter().fold(0, |top, x| top.max(x.to_bits() & !SIGN));
            let largest = f32::from_bits(largest);
            (largest / LEVELS).store(&self.scales[start + i * TILE]);
            if largest == 0.0 { 0.0 } else { LEVELS / largest }
        })
    }

    /// Stores one token's latent row at `slot`.
    #[inline(always)]
    pub(super) fn store_latent<S: Simd>(&self, s: S, slot: u32, row: &[f32]) {
        let slot = slot as usize;
        let (latent, key) = row.split_at(self.spec.latent.unwrap_or(row.len()));
        let [of_latent, of_key] = if E::HAS_SCALES { self.store_scales(slot, [latent, key]) } else { [1.0; 2] };
        let (out, out_key) = self.v[slot * row.len()..][..row.len()].split_at(latent.len());
        store_strided::<S, E>(s, (latent, of_latent), out, 1);
        store_strided::<S, E>(s, (key, of_key), out_key, 1);
    }
}

/// Stores `x`, times `levels` if elements have scales.
#[inline(always)]
fn store_strided<S: Simd, E: KvElement>(s: S, (x, levels): (&[f32], f32), out: &[E::Atomic], stride: usize) {
    for (x, out) in x.chunks(LANES).zip(out.chunks(LANES * stride)) {
        let values = match x.as_array() {
            Some(x) => s.load(x),
            None => s.load_partial(x),
        };
        let rounded = E::round(s, if E::HAS_SCALES { s.mul(values, s.splat(levels)) } else { values });
        for (x, out) in rounded[..x.len()].iter().zip(out.iter().step_by(stride)) {
            x.store(out);
        }
    }
}
