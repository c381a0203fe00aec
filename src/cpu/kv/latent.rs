//! Latent rows in int8. The latent of a row and its key each have a scale, since the key is much larger. A score sums
//! over both, so attention decodes the rows of a chunk to f32 first.

use super::{KvElement, KvPages, KvSource, KvTile, TILE};
use crate::backend::KvLayerSpec;
use crate::simd::{LANES, Simd};

pub(in super::super) struct Int8Latents<'a>(pub(in super::super) &'a KvPages<i8>);

impl KvSource for Int8Latents<'_> {
    type Element = f32;

    fn spec(&self) -> &KvLayerSpec {
        self.0.spec()
    }

    fn v_stride(&self) -> usize {
        self.0.v_stride()
    }

    fn decoded_len(&self) -> usize {
        TILE * self.spec().head_dim
    }

    #[inline(always)]
    fn tiles<'a, S: Simd>(&'a self, s: S, [now, next]: [usize; 2], decoded: &'a mut [f32]) -> [KvTile<'a, f32>; 2] {
        let KvLayerSpec { head_dim, latent, .. } = *self.spec();
        self.0.tile(next).v.iter().step_by(64).for_each(|line| s.prefetch(line));
        let KvTile { v: levels, scales: [of_latents, of_keys], .. } = self.0.tile(now);
        let rows = levels.chunks_exact(head_dim).zip(decoded.chunks_exact_mut(head_dim));
        for ((levels, row), (of_latent, of_key)) in rows.zip(of_latents.iter().zip(of_keys)) {
            let values = latent.unwrap_or(head_dim);
            decode(s, &levels[..values], *of_latent, &mut row[..values]);
            decode(s, &levels[values..], *of_key, &mut row[values..]);
        }
        // The next tile is prefetched above, not by the kernels.
        let rows = &*decoded;
        std::array::from_fn(|_| KvTile { k: rows, v: rows, scales: &[[1.0; TILE]; 2] })
    }
}

#[inline(always)]
fn decode<S: Simd>(s: S, levels: &[i8], scale: f32, out: &mut [f32]) {
    let scale = s.splat(scale);
    for (levels, out) in levels.chunks(LANES).zip(out.chunks_mut(LANES)) {
        match (levels.as_array(), out.as_mut_array()) {
            (Some(levels), Some(out)) => s.store(s.mul(s.load_i8(levels), scale), out),
            _ => s.store_partial(s.mul(i8::load_partial(s, levels), scale), out),
        }
    }
}
