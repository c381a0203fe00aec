//! The two register-tiled products of attention over one chunk of keys: q · K and weights · V.
//!
//! Tile shapes follow the number of registers. They never change the order in which a score or an output element is
//! accumulated.

use std::ops::Range;

use super::{CHUNK_TILES, Scores, TILE, Tile};
use crate::kv::KvElement;
use crate::simd::{LANES, Simd};

/// `scores[row][tile][lane] = Σ_d q[row][d] · k[tile][d][lane]`, with d in increasing order.
#[inline(always)]
pub(super) fn scores<S: Simd, E: KvElement>(s: S, q: &[&[f32]], k: &[Tile<'_, E>], scores: &mut Scores) {
    let mut row = 0;
    while row < q.len() {
        row += if S::REGISTERS >= 32 {
            match q.len() - row {
                8.. => scores_of_rows::<S, E, 8, 2>(s, row, q, k, scores),
                4.. => scores_of_rows::<S, E, 4, 4>(s, row, q, k, scores),
                3 => scores_of_rows::<S, E, 3, 4>(s, row, q, k, scores),
                2 => scores_of_rows::<S, E, 2, 4>(s, row, q, k, scores),
                _ => scores_of_rows::<S, E, 1, 4>(s, row, q, k, scores),
            }
        } else {
            match q.len() - row {
                4.. => scores_of_rows::<S, E, 4, 1>(s, row, q, k, scores),
                2.. => scores_of_rows::<S, E, 2, 2>(s, row, q, k, scores),
                _ => scores_of_rows::<S, E, 1, 4>(s, row, q, k, scores),
            }
        }
    }
}

/// Computes `R` rows by `T` tiles at a time and returns `R`.
#[inline(always)]
fn scores_of_rows<S: Simd, E: KvElement, const R: usize, const T: usize>(
    s: S,
    row: usize,
    q: &[&[f32]],
    k: &[Tile<'_, E>],
    scores: &mut Scores,
) -> usize {
    let q: [&[f32]; R] = std::array::from_fn(|r| q[row + r]);
    let (groups, rest) = k.as_chunks::<T>();
    for (group, k) in groups.iter().enumerate() {
        scores_tile(s, row, group * T, q, k, scores);
    }
    for (tile, k) in rest.iter().enumerate() {
        scores_tile(s, row, groups.len() * T + tile, q, &[*k], scores);
    }
    R
}

#[inline(always)]
fn scores_tile<S: Simd, E: KvElement, const R: usize, const T: usize>(
    s: S,
    row: usize,
    tile: usize,
    q: [&[f32]; R],
    k: &[Tile<'_, E>; T],
    scores: &mut Scores,
) {
    let head_dim = q[0].len();
    // All slices get the same length, so the compiler checks bounds once.
    let q = q.map(|q| &q[..head_dim]);
    let vectors = |k| <[E]>::as_chunks::<LANES>(k).0;
    let next: [&[[E; LANES]]; T] = std::array::from_fn(|t| &vectors(k[t].next)[..head_dim]);
    let k: [&[[E; LANES]]; T] = std::array::from_fn(|t| &vectors(k[t].elements)[..head_dim]);
    let mut sums = [[s.splat(0.0); T]; R];
    for d in 0..head_dim {
        let mut keys = [s.splat(0.0); T];
        for t in 0..T {
            keys[t] = E::load(s, &k[t][d]);
            s.prefetch(&next[t][d]);
        }
        for r in 0..R {
            let q = s.splat(q[r][d]);
            for t in 0..T {
                sums[r][t] = s.fma(q, keys[t], sums[r][t]);
            }
        }
    }
    for r in 0..R {
        for t in 0..T {
            s.store(sums[r][t], &mut scores[row + r][tile + t]);
        }
    }
}

/// `out[row] += Σ_key weights[row][key] · v[key]` over the row's `keys` in increasing order. A key has `stride`
/// elements.
#[inline(always)]
pub(super) fn weighted_sums<S: Simd, E: KvElement>(
    s: S,
    weights: &Scores,
    keys: &[Range<usize>],
    (v, stride): (&[Tile<'_, E>; CHUNK_TILES], usize),
    out: &mut [&mut [f32]],
) {
    let sums = WeightedSums { weights, v, stride };
    let mut row = 0;
    while row < out.len() {
        row += if S::REGISTERS >= 32 {
            match out.len() - row {
                4.. => sums.rows::<S, 4, 4>(s, row, keys, out),
                3 => sums.rows::<S, 3, 4>(s, row, keys, out),
                2 => sums.rows::<S, 2, 4>(s, row, keys, out),
                _ => sums.rows::<S, 1, 4>(s, row, keys, out),
            }
        } else {
            match out.len() - row {
                2.. => sums.rows::<S, 2, 2>(s, row, keys, out),
                _ => sums.rows::<S, 1, 4>(s, row, keys, out),
            }
        }
    }
}

struct WeightedSums<'a, E> {
    weights: &'a Scores,
    v: &'a [Tile<'a, E>; CHUNK_TILES],
    stride: usize,
}

impl<E: KvElement> WeightedSums<'_, E> {
    /// Computes `R` rows by `C` vectors of the head at a time and returns `R`. Keys that all rows attend to are read
    /// once.
    #[inline(always)]
    fn rows<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        row: usize,
        keys: &[Range<usize>],
        out: &mut [&mut [f32]],
    ) -> usize {
        let keys = &keys[row..row + R];
        let start = keys.iter().map(|keys| keys.start).max().unwrap_or(0);
        let end = keys.iter().map(|keys| keys.end).min().unwrap_or(0).max(start);
        for (r, keys) in keys.iter().enumerate() {
            self.add_keys::<S, 1, C>(s, row + r, keys.start..keys.end.min(start), out);
        }
        self.add_keys::<S, R, C>(s, row, start..end, out);
        for (r, keys) in keys.iter().enumerate() {
            self.add_keys::<S, 1, C>(s, row + r, keys.start.max(end)..keys.end, out);
        }
        R
    }

    #[inline(always)]
    fn add_keys<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        row: usize,
        keys: Range<usize>,
        out: &mut [&mut [f32]],
    ) {
        if keys.is_empty() {
            return;
        }
        let head_dim = out[row].len();
        let mut column = 0;
        while column + C * LANES <= head_dim {
            self.add_columns::<S, R, C>(s, row, &keys, column, out);
            column += C * LANES;
        }
        while column + LANES <= head_dim {
            self.add_columns::<S, R, 1>(s, row, &keys, column, out);
            column += LANES;
        }
        if column < head_dim {
            self.add_tail::<S, R>(s, row, keys, column, out);
        }
    }

    /// Adds to `C` vectors of the head from `column`. Loops over `R` and `C` unroll, so `sums` stays in registers.
    #[inline(always)]
    fn add_columns<S: Simd, const R: usize, const C: usize>(
        &self,
        s: S,
        row: usize,
        keys: &Range<usize>,
        column: usize,
        out: &mut [&mut [f32]],
    ) {
        let mut sums = [[s.splat(0.0); C]; R];
        for r in 0..R {
            let out = &out[row + r][column..].as_chunks::<LANES>().0[..C];
            for c in 0..C {
                sums[r][c] = s.load(&out[c]);
            }
        }
        for tile in keys.start / TILE..keys.end.div_ceil(TILE) {
            let in_tile = keys.start.saturating_sub(tile * TILE)..(keys.end - tile * TILE).min(TILE);
            let weights: [&[f32; LANES]; R] = std::array::from_fn(|r| &self.weights[row + r][tile]);
            let Tile { elements, next } = self.v[tile];
            let rows = elements.chunks_exact(self.stride).zip(next.chunks_exact(self.stride));
            for (i, (v, next)) in in_tile.clone().zip(rows.skip(in_tile.start)) {
                for c in (0..C).step_by(64 / size_of::<[E; LANES]>()) {
                    s.prefetch(&next[column + c * LANES]);
                }
                let v = &v[column..column + C * LANES].as_chunks::<LANES>().0[..C];
                let mut values = [s.splat(0.0); C];
                for c in 0..C {
                    values[c] = E::load(s, &v[c]);
                }
                for r in 0..R {
                    let weight = s.splat(weights[r][i]);
                    for c in 0..C {
                        sums[r][c] = s.fma(weight, values[c], sums[r][c]);
                    }
                }
            }
        }
        for r in 0..R {
            let out = &mut out[row + r][column..].as_chunks_mut::<LANES>().0[..C];
            for c in 0..C {
                s.store(sums[r][c], &mut out[c]);
            }
        }
    }

    /// Adds to the last elements of a head whose length is not a multiple of 16.
    #[inline(always)]
    fn add_tail<S: Simd, const R: usize>(
        &self,
        s: S,
        row: usize,
        keys: Range<usize>,
        column: usize,
        out: &mut [&mut [f32]],
    ) {
        for (weights, out) in self.weights[row..].iter().zip(&mut out[row..row + R]) {
            let head_dim = out.len();
            let mut sum = s.load_partial(&out[column..]);
            for key in keys.clone() {
                let v = &self.v[key / TILE].elements[key % TILE * self.stride..][column..head_dim];
                sum = s.fma(s.splat(weights[key / TILE][key % TILE]), E::load_partial(s, v), sum);
            }
            s.store_partial(sum, &mut out[column..]);
        }
    }
}
