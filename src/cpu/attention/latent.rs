//! q · K over latent rows. They have V's layout: the 16 lanes of a vector are 16 elements of a key.

use super::{Scores, TILE, Tile};
use crate::kv::KvElement;
use crate::simd::{LANES, Simd};

/// `scores[row][tile][key] = Σ_d q[row][d] · k[tile][key][d]`: each lane sums its d in increasing order, then the lanes
/// are added.
#[inline(always)]
pub(super) fn scores<S: Simd, E: KvElement>(s: S, q: &[&[f32]], k: &[Tile<'_, E>], scores: &mut Scores) {
    let mut row = 0;
    while row < q.len() {
        row += match q.len() - row {
            4.. if S::REGISTERS >= 32 => of_rows::<S, E, 4>(s, row, q, k, scores),
            2.. => of_rows::<S, E, 2>(s, row, q, k, scores),
            _ => of_rows::<S, E, 1>(s, row, q, k, scores),
        };
    }
}

/// Keys that are computed together, so that a vector of q is read once for them.
const KEYS: usize = 4;

/// Computes `R` rows at a time and returns `R`.
#[inline(always)]
fn of_rows<'a, S: Simd, E: KvElement, const R: usize>(
    s: S,
    row: usize,
    q: &[&[f32]],
    k: &[Tile<'a, E>],
    scores: &mut Scores,
) -> usize {
    let q: [&[f32]; R] = std::array::from_fn(|r| q[row + r]);
    let dim = q[0].len();
    // All slices get the same length, so the compiler checks bounds once.
    let whole = dim / LANES;
    let (q_vectors, q_tail) = (q.map(|q| &q.as_chunks::<LANES>().0[..whole]), q.map(|q| &q[whole * LANES..dim]));
    for (tile, Tile { elements, next }) in k.iter().enumerate() {
        for first in (0..TILE).step_by(KEYS) {
            let of = |elements: &'a [E], i: usize| &elements[(first + i) * dim..][..dim];
            let k: [&[E]; KEYS] = std::array::from_fn(|i| of(elements, i));
            let next: [&[E]; KEYS] = std::array::from_fn(|i| of(next, i));
            let k_vectors = k.map(|k| &k.as_chunks::<LANES>().0[..whole]);
            let mut sums = [[s.splat(0.0); KEYS]; R];
            for d in 0..whole {
                let mut keys = [s.splat(0.0); KEYS];
                for i in 0..KEYS {
                    keys[i] = E::load(s, &k_vectors[i][d]);
                    s.prefetch(&next[i][d * LANES]);
                }
                for r in 0..R {
                    let q = s.load(&q_vectors[r][d]);
                    for i in 0..KEYS {
                        sums[r][i] = s.fma(q, keys[i], sums[r][i]);
                    }
                }
            }
            if whole * LANES < dim {
                for r in 0..R {
                    let q = s.load_partial(q_tail[r]);
                    for i in 0..KEYS {
                        sums[r][i] = s.fma(q, E::load_partial(s, &k[i][whole * LANES..]), sums[r][i]);
                    }
                }
            }
            for r in 0..R {
                for i in 0..KEYS {
                    scores[row + r][tile][first + i] = s.sum(sums[r][i]);
                }
            }
        }
    }
    R
}
