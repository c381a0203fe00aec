//! Rotary embedding, with the norms of the heads of q and k before or after it, followed by the KV store.

use crate::backend::{QkNorms, QkvLayout, RopeKind, RopeShape, RopeSpec, Rotation};
use crate::cpu_backend::CpuBackend;
use crate::kv::KvStore;
use crate::norm::{divide_by_rms, normalize};
use crate::pool::ThreadPool;
use crate::simd::{Isa, Kernel, Simd};
use crate::split::for_rows;

/// Computes `out[i] = [cos; num_pairs] ++ [sin; num_pairs]` of `position * inv_freq`, times the magnitude.
///
/// The angle is an f32 product as in transformers, for equal results in long contexts. Its cos and sin are exact.
pub(crate) fn angles(pool: &ThreadPool, spec: &RopeSpec, positions: &[u32], out: &mut [f32]) {
    let pairs = spec.inv_freq.len();
    for_rows(pool, out, 2 * pairs, |first, out| {
        for (row, &position) in out.chunks_exact_mut(2 * pairs).zip(&positions[first..]) {
            let (cos, sin) = row.split_at_mut(pairs);
            for ((cos, sin), inv_freq) in cos.iter_mut().zip(sin).zip(&spec.inv_freq) {
                let (s, c) = f64::from(position as f32 * inv_freq).sin_cos();
                *cos = c as f32 * spec.magnitude;
                *sin = s as f32 * spec.magnitude;
            }
        }
    });
}

/// The arguments of `rope_and_store_kv` except the rows.
pub(crate) struct RopeAndStore<'a> {
    pub(crate) layout: QkvLayout,
    pub(crate) rotation: Rotation<'a, CpuBackend>,
    /// `[n]`.
    pub(crate) positions: &'a [u32],
    /// `[n]`, already checked against the pool.
    pub(crate) slots: &'a [u32],
}

impl RopeAndStore<'_> {
    /// Rotates `qkv`, `[n, layout.cols()]`, in place, and stores its K and V in `kv`.
    pub(crate) fn run_on<K: KvStore>(&self, pool: &ThreadPool, isa: Isa, qkv: &mut [f32], kv: &K) {
        for_rows(pool, qkv, self.layout.cols(), |first_row, rows| isa.run(Rows { args: self, first_row, rows, kv }));
    }
}

struct Rows<'a, K> {
    args: &'a RopeAndStore<'a>,
    first_row: usize,
    rows: &'a mut [f32],
    kv: &'a K,
}

impl<K: KvStore> Kernel for Rows<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let RopeAndStore { layout, rotation, .. } = self.args;
        let num_pairs = rotation.rope.num_pairs();
        let q_norm = rotation.norms.map(|norms| HeadNorm::of(norms, norms.q));
        let k_norm = rotation.norms.and_then(|norms| Some(HeadNorm::of(norms, norms.k?)));
        let v_norm = rotation.norms.filter(|norms| norms.v);
        for (i, row) in self.rows.chunks_exact_mut(layout.cols()).enumerate() {
            let index = self.first_row + i;
            let angles = &rotation.angles[index * 2 * num_pairs..][..2 * num_pairs];
            let (q, kv) = row[layout.gate_cols()..].split_at_mut(layout.q_cols());
            self.args.rotate_heads(s, q, q_norm, angles);
            if let Some(temperature) = rotation.temperature {
                let factor = temperature.at(self.args.positions[index]);
                q.iter_mut().for_each(|q| *q *= factor);
            }
            self.kv.rotate(q);
            if !layout.has_kv {
                continue;
            }
            let (k, v) = kv.split_at_mut(layout.k_cols());
            self.args.rotate_heads(s, k, k_norm, angles);
            self.kv.rotate(k);
            if let Some(QkNorms { eps, .. }) = v_norm {
                v.chunks_exact_mut(layout.value_dim).for_each(|head| divide_by_rms(s, head, eps));
            }
            self.kv.store(s, self.args.slots[index], k, v);
        }
    }
}

/// RMS norm of a head.
#[derive(Clone, Copy)]
struct HeadNorm<'a> {
    weight: &'a [f32],
    eps: f32,
    after_rope: bool,
}

impl<'a> HeadNorm<'a> {
    fn of(QkNorms { eps, after_rope, .. }: QkNorms<'a, CpuBackend>, weight: &'a [f32]) -> Self {
        Self { weight, eps, after_rope }
    }
}

impl RopeAndStore<'_> {
    #[inline(always)]
    fn rotate_heads<S: Simd>(&self, s: S, heads: &mut [f32], norm: Option<HeadNorm<'_>>, angles: &[f32]) {
        let rope = self.rotation.rope;
        let (cos, sin) = angles.split_at(rope.num_pairs());
        for head in heads.chunks_exact_mut(self.layout.head_dim) {
            if let Some(HeadNorm { weight, eps, after_rope: false }) = norm {
                normalize(s, head, weight, eps);
            }
            let rotated = &mut head[..2 * rope.num_pairs()];
            match rope.kind {
                RopeKind::Norm => {
                    for ((pair, cos), sin) in rotated.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                        let [a, b] = *pair;
                        *pair = [a.mul_add(*cos, -(b * sin)), a.mul_add(*sin, b * cos)];
                    }
                }
                RopeKind::Neox => {
                    let (first, second) = rotated.split_at_mut(rope.num_pairs());
                    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                        (*a, *b) = (a.mul_add(*cos, -(*b * sin)), a.mul_add(*sin, *b * cos));
                    }
                }
            }
            if let Some(HeadNorm { weight, eps, after_rope: true }) = norm {
                normalize(s, head, weight, eps);
            }
        }
    }
}
