//! Gated delta nets in three passes: the convolution over q, k and v with the norms of q and k, the delta rule, and the
//! gated norms.
//!
//! Each token reads and writes its head's matrix once. The same pass multiplies the updated matrix with the next
//! token's k and q.

use std::ops::Range;

use super::convolution::{Convolution, Finish, Inputs, apply_silu};
use super::softplus::softplus;
use super::walk::{Part, Rule, TileRow, walk};
use crate::backend::DeltaNetShape;
use crate::batch::Batch;
use crate::norm::{normalize, sum_of_squares};
use crate::pool::ThreadPool;
use crate::simd::{Isa, Kernel, LANES, Simd, silu};
use crate::split::{Split, for_rows};
use crate::state_layer::StateLayer;

/// The arguments of one gated delta net except the states and the outputs.
pub(crate) struct DeltaNet<'a> {
    /// `[n, shape.cols()]`.
    pub(crate) x: &'a [f32],
    pub(crate) shape: DeltaNetShape,
    pub(crate) taps: &'a [f32],
    pub(crate) decay: &'a [f32],
    pub(crate) decay_bias: &'a [f32],
    pub(crate) norm: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) batch: &'a Batch,
}

impl DeltaNet<'_> {
    /// Computes all rows into `out`, `[n, shape.value_cols()]`; `convolved`, `[n, shape.channels()]`, is scratch.
    pub(crate) fn run_on(
        &self,
        pool: &ThreadPool,
        isa: Isa,
        state: &mut StateLayer,
        convolved: &mut [f32],
        out: &mut [f32],
    ) {
        let StateLayer { spec, windows, matrices } = state;
        let &Self { x, shape, taps, batch, .. } = self;
        let inputs = Inputs { x, cols: shape.cols(), first: 0, factor: None };
        let convolution = Convolution { inputs, channels: shape.channels(), taps, bias: None, batch };
        convolution.run_on(pool, isa, windows, self, convolved);
        convolution.keep_windows(pool, spec, &Split::new(windows));
        let rule = DeltaRule { net: self, convolved };
        walk(&rule, batch, pool, isa, spec, &Split::new(matrices), &Split::new(out));
        for_rows(pool, out, shape.value_cols(), |first, rows| isa.run(GateRows { net: self, first, rows }));
    }
}

/// Finishes `[q | k | v]` of a row: q and k get unit length, then q is multiplied by `1 / sqrt(key_size)`.
impl Finish for DeltaNet<'_> {
    #[inline(always)]
    fn finish<S: Simd>(&self, s: S, _row: usize, sums: &mut [f32]) {
        let shape = self.shape;
        apply_silu(s, sums);
        let (q, k) = sums[..2 * shape.key_cols()].split_at_mut(shape.key_cols());
        let factors = [1.0 / (shape.key_size as f32).sqrt(), 1.0];
        for (heads, factor) in [q, k].into_iter().zip(factors) {
            for head in heads.chunks_exact_mut(shape.key_size) {
                let scale = factor / (sum_of_squares(s, head, 0.0) + self.eps).sqrt();
                head.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }
}

struct DeltaRule<'a> {
    net: &'a DeltaNet<'a>,
    convolved: &'a [f32],
}

/// One token from the view of one head.
#[derive(Clone, Copy)]
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    beta: f32,
    decay: f32,
}

impl Rule for DeltaRule<'_> {
    #[inline(always)]
    fn walk<S: Simd, const C: usize>(
        &self,
        s: S,
        part: &Part<'_>,
        tile: &mut [TileRow<C>],
        tokens: Range<usize>,
        keep: &mut impl FnMut(&[TileRow<C>], usize),
    ) {
        let Some(mut token) = tokens.clone().next().map(|row| self.token(part, row)) else { return };
        let mut sums = sums(s, tile, token);
        for row in tokens.clone() {
            let change = output(s, token, sums, part.out(row));
            if row + 1 < tokens.end {
                let next = self.token(part, row + 1);
                sums = update_and_sum(s, tile, token, change, next);
                token = next;
            } else {
                update(s, tile, token, change);
            }
            keep(tile, row);
        }
    }
}

impl<'a> DeltaRule<'a> {
    /// Returns the token in row `row` of the batch.
    #[inline(always)]
    fn token(&self, part: &Part<'_>, row: usize) -> Token<'a> {
        let (Self { net, convolved }, head) = (self, part.head);
        let shape = net.shape;
        let (x, qkv) = (&net.x[row * shape.cols()..], &convolved[row * shape.channels()..]);
        let key = shape.key_head(head) * shape.key_size;
        let value = 2 * shape.key_cols() + head * shape.value_size + part.first;
        let [beta, decay] = shape.gates(head).map(|column| x[column]);
        Token {
            q: &qkv[key..][..shape.key_size],
            k: &qkv[shape.key_cols() + key..][..shape.key_size],
            v: &qkv[value..][..part.count],
            beta: 1.0 / (1.0 + (-beta).exp()),
            decay: (net.decay[head] * softplus(decay + net.decay_bias[head])).exp(),
        }
    }
}

/// Writes a token's output, `decay * S^T q + (k · q) change`. Returns its change, `beta * (v - decay * S^T k)`.
#[inline(always)]
fn output<S: Simd, const C: usize>(s: S, token: Token<'_>, [of_k, of_q]: [[S::V; C]; 2], out: &mut [f32]) -> [S::V; C] {
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

#[inline(always)]
fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let mut sum = s.splat(0.0);
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        sum = s.fma(s.load_partial(a), s.load_partial(b), sum);
    }
    s.sum(sum)
}

/// Returns `S^T k` and `S^T q`.
#[inline(always)]
fn sums<S: Simd, const C: usize>(s: S, tile: &[TileRow<C>], token: Token<'_>) -> [[S::V; C]; 2] {
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

/// Computes `S = decay * S + k change^T`.
#[inline(always)]
fn update<S: Simd, const C: usize>(s: S, tile: &mut [TileRow<C>], token: Token<'_>, change: [S::V; C]) {
    let decay = s.splat(token.decay);
    for (row, k) in tile.iter_mut().zip(token.k) {
        let k = s.splat(*k);
        for c in 0..C {
            let x = s.fma(k, change[c], s.mul(decay, s.load(&row[c])));
            s.store(x, &mut row[c]);
        }
    }
}

/// Does `update` for a token and `sums` for the next one.
#[inline(always)]
fn update_and_sum<S: Simd, const C: usize>(
    s: S,
    tile: &mut [TileRow<C>],
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

/// Computes `out = norm(out) * silu(z)`, head by head.
struct GateRows<'a> {
    net: &'a DeltaNet<'a>,
    /// Index of the first row in the batch.
    first: usize,
    rows: &'a mut [f32],
}

impl Kernel for GateRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { net, first, rows } = self;
        let shape = net.shape;
        let x = net.x[first * shape.cols()..].chunks_exact(shape.cols());
        for (row, x) in rows.chunks_exact_mut(shape.value_cols()).zip(x) {
            let z = x[shape.channels()..].chunks_exact(shape.value_size);
            for (head, z) in row.chunks_exact_mut(shape.value_size).zip(z) {
                normalize(s, head, net.norm, net.eps);
                for (out, z) in head.chunks_mut(LANES).zip(z.chunks(LANES)) {
                    let gated = s.mul(s.load_partial(out), silu(s, s.load_partial(z)));
                    s.store_partial(gated, out);
                }
            }
        }
    }
}
