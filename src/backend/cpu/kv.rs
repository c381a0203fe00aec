//! One layer's K and V, paged. Blocks are cut into tiles of 16 tokens; K lies transposed within a tile, so that the 16
//! lanes of a vector are 16 keys, while V's lanes are 16 elements of a head:
//!
//! ```text
//! k: [num_blocks, num_kv_heads, block_size / 16, head_dim, 16 tokens]
//! v: [num_blocks, num_kv_heads, block_size,      head_dim]
//! ```
//!
//! Latent rows, which are K and V at once, lie as V does; there is no K beside them.

mod element;

use half::f16;

pub(super) use element::KvElement;

use super::simd::{LANES, Simd};
use super::storage::Storage;
use crate::backend::KvLayerSpec;
use crate::batch::NULL_BLOCK;
use crate::{Error, Result};

/// Tokens per tile: the lanes of a vector.
pub(super) const TILE: usize = LANES;

/// One layer's K and V pool.
#[derive(Debug)]
pub struct KvLayer {
    pub(super) spec: KvLayerSpec,
    pub(super) pool: KvPool,
}

/// The pool's memory, by [`KvCacheDtype`](crate::config::KvCacheDtype).
#[derive(Debug)]
pub(super) enum KvPool {
    F16(KvPages<f16>),
    F32(KvPages<f32>),
}

impl KvLayer {
    /// # Errors
    /// `Internal` when a slot lies outside the pool.
    pub(super) fn check_slots(&self, slots: &[u32]) -> Result<()> {
        let num_slots = self.spec.num_blocks * self.spec.block_size;
        match slots.iter().find(|&&slot| slot as usize >= num_slots) {
            Some(slot) => Err(Error::internal(format!("KV slot {slot} is outside the pool of {num_slots} slots"))),
            None => Ok(()),
        }
    }

    /// Copies the whole of block `src` to block `dst`, both of the pool.
    pub(super) fn copy_block(&mut self, src: u32, dst: u32) {
        match &mut self.pool {
            KvPool::F16(pages) => pages.copy_block(src, dst),
            KvPool::F32(pages) => pages.copy_block(src, dst),
        }
    }
}

/// # Errors
/// `Internal` when one of `blocks` is not a block of the pool (a null block among them).
pub(super) fn check_blocks(spec: &KvLayerSpec, blocks: &[u32]) -> Result<()> {
    match blocks.iter().find(|&&block| block as usize >= spec.num_blocks) {
        Some(&NULL_BLOCK) => Err(Error::internal("a null block stands where tokens are to be read")),
        Some(block) => Err(Error::internal(format!("block {block} is outside the pool of {} blocks", spec.num_blocks))),
        None => Ok(()),
    }
}

/// K and V as elements of one type.
#[derive(Debug)]
pub(super) struct KvPages<E> {
    pub(super) spec: KvLayerSpec,
    /// Empty where rows are latent.
    pub(super) k: Storage<E>,
    pub(super) v: Storage<E>,
}

impl<E: KvElement> KvPages<E> {
    /// Elements of K (or of V) of one block and kv head.
    fn head_elements(&self) -> usize {
        self.spec.block_size * self.spec.head_dim
    }

    /// K of one tile, `[head_dim, 16 tokens]`, and V of its tokens, `[16, head_dim]`; latent rows are both, as V is.
    #[inline(always)]
    pub(super) fn tile(&self, block: u32, tile: usize, kv_head: usize) -> (&[E], &[E]) {
        let tile_elements = TILE * self.spec.head_dim;
        let start = (block as usize * self.spec.num_kv_heads + kv_head) * self.head_elements() + tile * tile_elements;
        let v = &self.v[start..start + tile_elements];
        let k = if self.spec.latent.is_some() { v } else { &self.k[start..start + tile_elements] };
        (k, v)
    }

    fn copy_block(&mut self, src: u32, dst: u32) {
        let elements = self.head_elements() * self.spec.num_kv_heads;
        let (src, dst) = (src as usize * elements, dst as usize * elements);
        if self.spec.latent.is_none() {
            self.k.copy_within(src..src + elements, dst);
        }
        self.v.copy_within(src..src + elements, dst);
    }

    pub(super) fn writer(&mut self) -> KvWriter<'_, E> {
        KvWriter { spec: self.spec, k: E::as_atomic(&mut self.k), v: E::as_atomic(&mut self.v) }
    }
}

/// Stores tokens from several threads. Elements are atomics (plain stores in machine code), so that two tokens given
/// the same slot by mistake would be a wrong value, not undefined behaviour.
#[derive(Debug)]
pub(super) struct KvWriter<'a, E: KvElement> {
    spec: KvLayerSpec,
    k: &'a [E::Atomic],
    v: &'a [E::Atomic],
}

impl<E: KvElement> KvWriter<'_, E> {
    /// Stores one token's `k` and `v` (`[num_kv_heads, head_dim]` each) at `slot`.
    #[inline(always)]
    pub(super) fn store<S: Simd>(&self, s: S, slot: u32, k: &[f32], v: &[f32]) {
        let KvLayerSpec { block_size, num_kv_heads, head_dim, .. } = self.spec;
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        for head in 0..num_kv_heads {
            let base = (block * num_kv_heads + head) * block_size * head_dim;
            let elements = head * head_dim..(head + 1) * head_dim;
            let k_base = base + offset / TILE * TILE * head_dim + offset % TILE;
            store_strided::<S, E>(s, &k[elements.clone()], &self.k[k_base..], TILE);
            store_strided::<S, E>(s, &v[elements], &self.v[base + offset * head_dim..], 1);
        }
    }

    /// Stores one token's latent row at `slot`.
    #[inline(always)]
    pub(super) fn store_latent<S: Simd>(&self, s: S, slot: u32, row: &[f32]) {
        store_strided::<S, E>(s, row, &self.v[slot as usize * self.spec.head_dim..], 1);
    }
}

#[inline(always)]
fn store_strided<S: Simd, E: KvElement>(s: S, x: &[f32], out: &[E::Atomic], stride: usize) {
    for (x, out) in x.chunks(LANES).zip(out.chunks(LANES * stride)) {
        let rounded = match x.as_array() {
            Some(x) => E::round(s, s.load(x)),
            None => E::round(s, s.load_partial(x)),
        };
        for (x, out) in rounded[..x.len()].iter().zip(out.iter().step_by(stride)) {
            x.store(out);
        }
    }
}
