//! The rows of latent attention. Queries get their rotated part after the absorbed part. Latents are normed, and their
//! keys rotated, on the way into the cache.

use crate::backend::{LatentShape, RopeKind, Temperature};
use crate::kv::{KvElement, KvWriter};
use crate::norm::sum_of_squares;
use crate::pool::ThreadPool;
use crate::simd::{Isa, Kernel, Simd};
use crate::split::for_rows;

/// The arguments of `rope_and_store_latent` except the queries and the cache.
pub(crate) struct RopeAndStore<'a> {
    /// `[n, shape.q_cols()]`.
    pub(crate) q: &'a [f32],
    /// `[n, shape.row_dim()]`.
    pub(crate) latent: &'a [f32],
    pub(crate) shape: LatentShape,
    /// Weights and epsilon of the norm of the latents.
    pub(crate) norm: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) kind: RopeKind,
    /// `[n, cos ++ sin]`.
    pub(crate) angles: &'a [f32],
    pub(crate) temperature: Option<Temperature>,
    /// `[n]`.
    pub(crate) positions: &'a [u32],
    /// `[n]`, already checked against the pool.
    pub(crate) slots: &'a [u32],
}

impl RopeAndStore<'_> {
    /// Completes `queries`, `[n, shape.queries().q_cols()]`, and stores the latents in `kv`.
    pub(crate) fn run_on<E: KvElement>(&self, pool: &ThreadPool, isa: Isa, queries: &mut [f32], kv: &KvWriter<'_, E>) {
        let cols = self.shape.queries().q_cols();
        for_rows(pool, queries, cols, |first_row, queries| isa.run(Rows { args: self, first_row, queries, kv }));
    }
}

struct Rows<'a, E: KvElement> {
    args: &'a RopeAndStore<'a>,
    first_row: usize,
    queries: &'a mut [f32],
    kv: &'a KvWriter<'a, E>,
}

impl<E: KvElement> Kernel for Rows<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RopeAndStore { shape, norm, eps, kind, .. } = *self.args;
        let (rope_dim, row_dim) = (shape.rope_dim, shape.row_dim());
        let mut row = vec![0.0; row_dim];
        for (i, queries) in self.queries.chunks_exact_mut(shape.queries().q_cols()).enumerate() {
            let index = self.first_row + i;
            let angles = &self.args.angles[index * rope_dim..][..rope_dim];
            let q = &self.args.q[index * shape.q_cols()..][..shape.q_cols()];
            let factor = self.args.temperature.map(|temperature| temperature.at(self.args.positions[index]));
            for (query, q) in queries.chunks_exact_mut(row_dim).zip(q.chunks_exact(shape.head_dim())) {
                rotate(kind, &q[shape.plain_dim..], angles, &mut query[shape.rank..]);
                if let Some(factor) = factor {
                    query.iter_mut().for_each(|x| *x *= factor);
                }
            }
            let latent = &self.args.latent[index * row_dim..][..row_dim];
            let (latent, key) = latent.split_at(shape.rank);
            let scale = 1.0 / (sum_of_squares(s, latent, 0.0) / shape.rank as f32 + eps).sqrt();
            for ((out, x), weight) in row.iter_mut().zip(latent).zip(norm) {
                *out = x * scale * weight;
            }
            rotate(kind, key, angles, &mut row[shape.rank..]);
            self.kv.store_latent(s, self.args.slots[index], &row);
        }
    }
}

/// Rotates pairs and writes each pair contiguously for both kinds of RoPE. The dot product of q and k ignores the
/// order.
#[inline(always)]
fn rotate(kind: RopeKind, x: &[f32], angles: &[f32], out: &mut [f32]) {
    let (cos, sin) = angles.split_at(angles.len() / 2);
    for (pair, out) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let (i, j) = match kind {
            RopeKind::Norm => (2 * pair, 2 * pair + 1),
            RopeKind::Neox => (pair, cos.len() + pair),
        };
        let (a, b, cos, sin) = (x[i], x[j], cos[pair], sin[pair]);
        *out = [a.mul_add(cos, -(b * sin)), a.mul_add(sin, b * cos)];
    }
}
