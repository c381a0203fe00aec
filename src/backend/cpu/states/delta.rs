//! The delta rule: the matrix of each head, along the tokens of its sequence.
//!
//! Columns of a matrix do not depend on each other, so a unit of work is some columns of one head of one sequence. Its
//! part of the matrix stays in the first-level cache, and each token reads and writes it once: what a token changes is
//! multiplied with the next token's k and q on the way.
#![allow(unsafe_code)] // Slots of the pool and rows of the output are written from several threads.

use super::DeltaNet;
use super::softplus::softplus;
use crate::backend::DeltaNetShape;
use crate::backend::cpu::pool::ThreadPool;
use crate::backend::cpu::simd::{Isa, Kernel, LANES, Simd};
use crate::backend::cpu::split::Split;

/// Vectors of columns of a unit.
const UNIT_VECTORS: usize = 4;
const UNIT_COLUMNS: usize = UNIT_VECTORS * LANES;
/// Units of a chunk share its scratch; so many chunks a thread share out the work evenly.
const CHUNKS_PER_THREAD: usize = 4;

/// `C` vectors of each row of a matrix.
type Tile<const C: usize> = [[[f32; LANES]; C]; DeltaNetShape::MAX_HEAD_SIZE];

/// Walks along all sequences: from the states that they begin with to those that are kept, with the outputs of all
/// heads, not normed yet, in `out`.
pub(super) fn walk(
    net: &DeltaNet<'_>,
    pool: &ThreadPool,
    isa: Isa,
    convolved: &[f32],
    matrices: &Split<'_, f32>,
    out: &Split<'_, f32>,
) {
    let tiles = net.shape.value_size.div_ceil(UNIT_COLUMNS);
    let units = net.batch.num_seqs() * net.shape.value_heads * tiles;
    let units_per_chunk = units.div_ceil(CHUNKS_PER_THREAD * pool.num_threads()).max(1);
    pool.run(units.div_ceil(units_per_chunk), &|chunk| {
        let first = chunk * units_per_chunk;
        let units = first..units.min(first + units_per_chunk);
        isa.run(Units { net, convolved, matrices, out, units, tiles });
    });
}

struct Units<'a> {
    net: &'a DeltaNet<'a>,
    convolved: &'a [f32],
    matrices: &'a Split<'a, f32>,
    out: &'a Split<'a, f32>,
    units: std::ops::Range<usize>,
    /// Units of a head.
    tiles: usize,
}

impl Kernel for Units<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if S::REGISTERS < 16 { self.run_all::<S, 2>(s) } else { self.run_all::<S, UNIT_VECTORS>(s) }
    }
}

impl Units<'_> {
    #[inline(always)]
    fn run_all<S: Simd, const C: usize>(&self, s: S) {
        let mut tile: Tile<C> = [[[0.0; LANES]; C]; DeltaNetShape::MAX_HEAD_SIZE];
        let DeltaNetShape { value_heads, value_size, .. } = self.net.shape;
        for unit in self.units.clone() {
            let (head, part) = (unit / self.tiles, unit % self.tiles);
            let end = value_size.min((part + 1) * UNIT_COLUMNS);
            for first in (part * UNIT_COLUMNS..end).step_by(C * LANES) {
                let columns = Columns { first, count: (C * LANES).min(end - first) };
                let (seq, head) = (head / value_heads, head % value_heads);
                Walk { units: self, seq, head, columns }.run::<S, C>(s, &mut tile);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Columns {
    first: usize,
    count: usize,
}

/// Some columns of a head, along a sequence.
struct Walk<'a> {
    units: &'a Units<'a>,
    seq: usize,
    head: usize,
    columns: Columns,
}

/// One token, as a head sees it.
#[derive(Clone, Copy)]
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    beta: f32,
    decay: f32,
}

impl<'a> Walk<'a> {
    #[inline(always)]
    fn run<S: Simd, const C: usize>(&self, s: S, tile: &mut Tile<C>) {
        let net = self.units.net;
        let tile = &mut tile[..net.shape.key_size];
        self.load(tile);
        let tokens = net.batch.tokens_of(self.seq);
        let Some(mut token) = tokens.clone().next().map(|row| self.token(row)) else { return };
        let mut sums = sums(s, tile, token);
        let mut writes = net.batch.states.writes_of(self.seq).iter();
        let mut write = writes.next();
        for row in tokens.clone() {
            let change = self.output(s, row, token, sums);
            if row + 1 < tokens.end {
                let next = self.token(row + 1);
                sums = update_and_sum(s, tile, token, change, next);
                token = next;
            } else {
                update(s, tile, token, change);
            }
            while let Some(here) = write.filter(|write| tokens.start + write.num_tokens as usize == row + 1) {
                self.store(tile, here.slot as usize);
                write = writes.next();
            }
        }
    }

    /// The token in row `row` of the batch.
    #[inline(always)]
    fn token(&self, row: usize) -> Token<'a> {
        let (Units { net, convolved, .. }, head) = (self.units, self.head);
        let shape = net.shape;
        let (x, qkv) = (&net.x[row * shape.cols()..], &convolved[row * shape.channels()..]);
        let key = shape.key_head(head) * shape.key_size;
        let value = 2 * shape.key_cols() + head * shape.value_size + self.columns.first;
        let [beta, decay] = shape.gates(head).map(|column| x[column]);
        Token {
            q: &qkv[key..][..shape.key_size],
            k: &qkv[shape.key_cols() + key..][..shape.key_size],
            v: &qkv[value..][..self.columns.count],
            beta: 1.0 / (1.0 + (-beta).exp()),
            decay: (net.decay[head] * softplus(decay + net.decay_bias[head])).exp(),
        }
    }

    /// Stores a token's output, `decay * S^T q + (k · q) change`; returns its change, `beta * (v - decay * S^T k)`.
    #[inline(always)]
    fn output<S: Simd, const C: usize>(
        &self,
        s: S,
        row: usize,
        token: Token<'_>,
        [of_k, of_q]: [[S::V; C]; 2],
    ) -> [S::V; C] {
        let shape = self.units.net.shape;
        let at = row * shape.value_cols() + self.head * shape.value_size + self.columns.first;
        // SAFETY: units have columns of their own, of a head and a sequence.
        let out = unsafe { self.units.out.part(at..at + self.columns.count) };
        let (beta, decay) = (s.splat(token.beta), s.splat(token.decay));
        let k_dot_q = s.splat(dot(s, token.k, token.q));
        let mut changes = [s.splat(0.0); C];
        for (c, (v, out)) in token.v.chunks(LANES).zip(out.chunks_mut(LANES)).enumerate() {
            let change = s.mul(beta, s.sub(s.load_partial(v), s.mul(decay, of_k[c])));
            s.store_partial(s.fma(k_dot_q, change, s.mul(decay, of_q[c])), out);
            changes[c] = change;
        }
        changes
    }

    /// Index of the unit's columns of row `row` of the head's matrix, in slot `slot`.
    fn place(&self, slot: usize, row: usize) -> usize {
        let DeltaNetShape { value_heads, key_size, value_size, .. } = self.units.net.shape;
        ((slot * value_heads + self.head) * key_size + row) * value_size + self.columns.first
    }

    #[inline(always)]
    fn load<const C: usize>(&self, tile: &mut [[[f32; LANES]; C]]) {
        let Some(slot) = self.units.net.first_slot(self.seq) else {
            return tile.fill([[0.0; LANES]; C]);
        };
        let count = self.columns.count;
        for (row, tile) in tile.iter_mut().enumerate() {
            let at = self.place(slot, row);
            let end = self.units.matrices.pointer(at + count);
            // SAFETY: the columns are in the pool, where they end at `end`. Who else begins with this state reads them
            // too; nobody but this unit writes them, and not now.
            let columns = unsafe { std::slice::from_raw_parts(end.sub(count), count) };
            tile.as_flattened_mut()[..count].copy_from_slice(columns);
        }
    }

    #[inline(always)]
    fn store<const C: usize>(&self, tile: &[[[f32; LANES]; C]], slot: usize) {
        let count = self.columns.count;
        for (row, tile) in tile.iter().enumerate() {
            let at = self.place(slot, row);
            // SAFETY: no two sequences write one slot, none reads what another writes, and units have columns of their
            // own.
            let columns = unsafe { self.units.matrices.part(at..at + count) };
            columns.copy_from_slice(&tile.as_flattened()[..count]);
        }
    }
}

#[inline(always)]
fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        sum = s.fma(s.load_partial(a), s.load_partial(b), sum);
    }
    s.sum(sum)
}

/// `S^T k` and `S^T q`.
#[inline(always)]
fn sums<S: Simd, const C: usize>(s: S, tile: &[[[f32; LANES]; C]], token: Token<'_>) -> [[S::V; C]; 2] {
    let (mut of_k, mut of_q) = ([s.splat(0.0); C], [s.splat(0.0); C]);
    for ((row, k), q) in tile.iter().zip(token.k).zip(token.q) {
        let (k, q) = (s.splat(*k), s.splat(*q));
        for c in 0..C {
            let x = s.load(&row[c]);
            of_k[c] = s.fma(k, x, of_k[c]);
            of_q[c] = s.fma(q, x, of_q[c]);
        }
    }
    [of_k, of_q]
}

/// `S = decay * S + k change^T`.
#[inline(always)]
fn update<S: Simd, const C: usize>(s: S, tile: &mut [[[f32; LANES]; C]], token: Token<'_>, change: [S::V; C]) {
    let decay = s.splat(token.decay);
    for (row, k) in tile.iter_mut().zip(token.k) {
        let k = s.splat(*k);
        for c in 0..C {
            let x = s.fma(k, change[c], s.mul(decay, s.load(&row[c])));
            s.store(x, &mut row[c]);
        }
    }
}

/// `update` for a token, and `sums` for the next one.
#[inline(always)]
fn update_and_sum<S: Simd, const C: usize>(
    s: S,
    tile: &mut [[[f32; LANES]; C]],
    token: Token<'_>,
    change: [S::V; C],
    next: Token<'_>,
) -> [[S::V; C]; 2] {
    let decay = s.splat(token.decay);
    let (mut of_k, mut of_q) = ([s.splat(0.0); C], [s.splat(0.0); C]);
    for (((row, k), next_k), next_q) in tile.iter_mut().zip(token.k).zip(next.k).zip(next.q) {
        let (k, next_k, next_q) = (s.splat(*k), s.splat(*next_k), s.splat(*next_q));
        for c in 0..C {
            let x = s.fma(k, change[c], s.mul(decay, s.load(&row[c])));
            s.store(x, &mut row[c]);
            of_k[c] = s.fma(next_k, x, of_k[c]);
            of_q[c] = s.fma(next_q, x, of_q[c]);
        }
    }
    [of_k, of_q]
}
