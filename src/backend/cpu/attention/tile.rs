//! The two register-tiled products of attention: q · K and weights · V, over one chunk of keys.
//!
//! Tile shapes follow the number of registers; they never change the order in which one score or one output element is
//! accumulated.

use std::ops::Range;

use half::f16;

use super::{CHUNK_TILES, MAX_ROWS, Scores, TILE};
use crate::backend::cpu::simd::{LANES, Simd};

/// `scores[row][tile][lane] = Σ_d q[row][d] · k[tile][d][lane]`, d in increasing order.
#[inline(always)]
pub(super) fn scores<S: Simd>(s: S, q: &[&[f32]], k: &[&[f16]], scores: &mut Scores) {
    let mut row = 0;
    while row < q.len() {
        row += if S::REGISTERS >= 32 {
            match q.len() - row {
                8.. => scores_of_rows::<S, 8, 2>(s, row, q, k, scores),
                4.. => scores_of_rows::<S, 4, 4>(s, row, q, k, scores),
                3 => scores_of_rows::<S, 3, 4>(s, row, q, k, scores),
                2 => scores_of_rows::<S, 2, 4>(s, row, q, k, scores),
                _ => scores_of_rows::<S, 1, 4>(s, row, q, k, scores),
            }
        } else {
            match q.len() - row {
                4.. => scores_of_rows::<S, 4, 1>(s, row, q, k, scores),
                2.. => scores_of_rows::<S, 2, 2>(s, row, q, k, scores),
                _ => scores_of_rows::<S, 1, 4>(s, row, q, k, scores),
            }
        }
    }
}

/// `R` rows by `T` tiles at a time; returns `R`.
#[inline(always)]
fn scores_of_rows<S: Simd, const R: usize, const T: usize>(
    s: S,
    row: usize,
    q: &[&[f32]],
    k: &[&[f16]],
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
fn scores_tile<S: Simd, const R: usize, const T: usize>(
    s: S,
    row: usize,
    tile: usize,
    q: [&[f32]; R],
    k: &[&[f16]; T],
    scores: &mut Scores,
) {
    let head_dim = q[0].len();
    // Slices cut to one length, so that the compiler checks bounds once.
    let q = q.map(|q| &q[..head_dim]);
    let k: [&[[f16; LANES]]; T] = std::array::from_fn(|t| &k[t].as_chunks::<LANES>().0[..head_dim]);
    let mut sums = [[s.splat(0.0); T]; R];
    for d in 0..head_dim {
        let mut keys = [s.splat(0.0); T];
        for t in 0..T {
            keys[t] = s.load_f16(&k[t][d]);
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

/// `out[row] = out[row] * corrections[row] + Σ_key weights[row][key] · v[key]` over the row's `keys`, in increasing order.
#[inline(always)]
pub(super) fn weighted_sums<S: Simd>(
    s: S,
    weights: &Scores,
    keys: &[Range<usize>],
    corrections: &[f32; MAX_ROWS],
    v: &[&[f16]; CHUNK_TILES],
    out: &mut [&mut [f32]],
) {
    let mut row = 0;
    while row < out.len() {
        row += if S::REGISTERS >= 32 {
            match out.len() - row {
                4.. => sums_of_rows::<S, 4, 4>(s, row, weights, keys, corrections, v, out),
                3 => sums_of_rows::<S, 3, 4>(s, row, weights, keys, corrections, v, out),
                2 => sums_of_rows::<S, 2, 4>(s, row, weights, keys, corrections, v, out),
                _ => sums_of_rows::<S, 1, 4>(s, row, weights, keys, corrections, v, out),
            }
        } else {
            match out.len() - row {
                2.. => sums_of_rows::<S, 2, 2>(s, row, weights, keys, corrections, v, out),
                _ => sums_of_rows::<S, 1, 4>(s, row, weights, keys, corrections, v, out),
            }
        }
    }
}

/// `R` rows by `C` vectors of the head at a time; returns `R`.
#[inline(always)]
fn sums_of_rows<S: Simd, const R: usize, const C: usize>(
    s: S,
    row: usize,
    weights: &Scores,
    keys: &[Range<usize>],
    corrections: &[f32; MAX_ROWS],
    v: &[&[f16]; CHUNK_TILES],
    out: &mut [&mut [f32]],
) -> usize {
    let part = Part::<R> {
        weights: std::array::from_fn(|r| weights[row + r].as_flattened()),
        keys: std::array::from_fn(|r| keys[row + r].clone()),
        corrections: std::array::from_fn(|r| corrections[row + r]),
        v,
    };
    let out = &mut out[row..row + R];
    let head_dim = out[0].len();
    let mut column = 0;
    while column + C * LANES <= head_dim {
        part.columns::<S, C>(s, column, out);
        column += C * LANES;
    }
    while column + LANES <= head_dim {
        part.columns::<S, 1>(s, column, out);
        column += LANES;
    }
    if column < head_dim {
        part.tail(s, column, out);
    }
    R
}

struct Part<'a, const R: usize> {
    weights: [&'a [f32]; R],
    keys: [Range<usize>; R],
    corrections: [f32; R],
    v: &'a [&'a [f16]; CHUNK_TILES],
}

impl<const R: usize> Part<'_, R> {
    /// `C` vectors of the head from `column`. Keys that all rows attend to are read once for all.
    #[inline(always)]
    fn columns<S: Simd, const C: usize>(&self, s: S, column: usize, out: &mut [&mut [f32]]) {
        let common = self.common_keys();
        let head_dim = out[0].len();
        let mut sums = [[s.splat(0.0); C]; R];
        for r in 0..R {
            let out = &out[r][column..].as_chunks::<LANES>().0[..C];
            for c in 0..C {
                sums[r][c] = s.mul(s.load(&out[c]), s.splat(self.corrections[r]));
            }
            for key in self.keys[r].start..self.keys[r].end.min(common.start) {
                self.add_key(s, key, head_dim, column, self.weights[r], &mut sums[r]);
            }
        }
        let mut key = common.start;
        while key < common.end {
            let end = ((key / TILE + 1) * TILE).min(common.end);
            let v = &self.v[key / TILE][key % TILE * head_dim..];
            let weights: [&[f32]; R] = std::array::from_fn(|r| &self.weights[r][key..end]);
            for (i, v) in v.chunks(head_dim).take(end - key).enumerate() {
                let v = &v[column..column + C * LANES].as_chunks::<LANES>().0[..C];
                let mut values = [s.splat(0.0); C];
                for c in 0..C {
                    values[c] = s.load_f16(&v[c]);
                }
                for r in 0..R {
                    let weight = s.splat(weights[r][i]);
                    for c in 0..C {
                        sums[r][c] = s.fma(weight, values[c], sums[r][c]);
                    }
                }
            }
            key = end;
        }
        for r in 0..R {
            for key in self.keys[r].start.max(common.end)..self.keys[r].end {
                self.add_key(s, key, head_dim, column, self.weights[r], &mut sums[r]);
            }
            let out = &mut out[r][column..].as_chunks_mut::<LANES>().0[..C];
            for c in 0..C {
                s.store(sums[r][c], &mut out[c]);
            }
        }
    }

    #[inline(always)]
    fn add_key<S: Simd, const C: usize>(
        &self,
        s: S,
        key: usize,
        head_dim: usize,
        column: usize,
        weights: &[f32],
        sums: &mut [S::V; C],
    ) {
        let v = &self.v[key / TILE][key % TILE * head_dim + column..].as_chunks::<LANES>().0[..C];
        for c in 0..C {
            sums[c] = s.fma(s.splat(weights[key]), s.load_f16(&v[c]), sums[c]);
        }
    }

    /// The last elements of a head whose length is no multiple of 16.
    #[inline(always)]
    fn tail<S: Simd>(&self, s: S, column: usize, out: &mut [&mut [f32]]) {
        for r in 0..R {
            let head_dim = out[r].len();
            let out = &mut out[r][column..];
            let mut sum = s.mul(s.load_partial(out), s.splat(self.corrections[r]));
            for key in self.keys[r].clone() {
                let v = &self.v[key / TILE][key % TILE * head_dim..][column..head_dim];
                sum = s.fma(s.splat(self.weights[r][key]), s.load_f16_partial(v), sum);
            }
            s.store_partial(sum, out);
        }
    }

    /// Keys that every row attends to; empty at some place between the rows' keys where there are none.
    fn common_keys(&self) -> Range<usize> {
        let start = self.keys.iter().map(|keys| keys.start).max().unwrap_or(0);
        let end = self.keys.iter().map(|keys| keys.end).min().unwrap_or(0);
        start..end.max(start)
    }
}
