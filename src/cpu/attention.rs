//! Paged attention with online softmax for any mix of query lengths: causal, windowed or bidirectional.
//!
//! A *row* is one query head of one token. Rows that share a KV head are computed together. A tile of K or V is then
//! read and widened to f32 once for up to [`MAX_ROWS`] rows. Meanwhile the next chunk is prefetched.
//!
//! Attention is batch-invariant bit for bit:
//! - Keys come in chunks of [`CHUNK_KEYS`] at absolute positions, in increasing order.
//! - A row's maximum and correction factor change once per chunk.
//! - Each score is one chain of FMAs over the head's elements.
//! - Each output element is one chain of FMAs over the row's own keys.
//! - Masked keys are left out. They are not multiplied by zero, because they may be NaN.
//!
//! The tiling of rows only decides which rows are computed next to each other.
#![allow(unsafe_code)] // Rows of the output are written from several threads.

mod latent;
mod tile;

use std::ops::Range;

use super::kv::{KvElement, KvSource, TILE, check_blocks};
use super::pool::ThreadPool;
use super::simd::{Isa, Kernel, LANES, Simd, exp, sigmoid, tanh};
use super::split::Split;
use crate::backend::{QkvLayout, Scoring};
use crate::batch::Batch;
use crate::{Error, Result};

/// Keys between two updates of a row's running maximum.
const CHUNK_KEYS: usize = 128;
const CHUNK_TILES: usize = CHUNK_KEYS / TILE;
/// Rows that share a tile of K. Eight rows by two tiles of scores fill the registers of AVX-512.
const MAX_ROWS: usize = 8;
/// Rows of one unit of work: enough to amortize its scheduling, few enough for load balance.
const UNIT_ROWS: usize = 32;

const LANE_NUMBERS: [f32; LANES] = {
    let mut numbers = [0.0; LANES];
    let mut lane = 0;
    while lane < LANES {
        numbers[lane] = lane as f32;
        lane += 1;
    }
    numbers
};

/// Scores, later probabilities, of a group of rows and a chunk: `[row][tile][lane]`.
type Scores = [[[f32; LANES]; CHUNK_TILES]; MAX_ROWS];

/// Consecutive tokens of one sequence for one KV head.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    seq: usize,
    kv_head: usize,
    tokens: Range<usize>,
}

/// The arguments of one call: `qkv` of all tokens of the batch, and one layer's cache.
pub(super) struct Attention<'a, K> {
    pub(super) qkv: &'a [f32],
    pub(super) layout: QkvLayout,
    pub(super) scoring: Scoring,
    /// One score without a value per query head; `None` if the model has no sinks.
    pub(super) sinks: Option<&'a [f32]>,
    /// See `backend::Attention::biases`.
    pub(super) biases: Option<&'a [f32]>,
    pub(super) batch: &'a Batch,
    pub(super) group: usize,
    pub(super) kv: &'a K,
}

impl<K: KvSource> Attention<'_, K> {
    /// Computes all rows into `out`, `[n, num_heads * value_dim]`. `units` is the caller's scratch.
    ///
    /// # Errors
    /// `Internal` if a block table does not cover the keys that its sequence attends to.
    pub(super) fn run_on(&self, pool: &ThreadPool, isa: Isa, units: &mut Vec<Unit>, out: &mut [f32]) -> Result<()> {
        for seq in 0..self.batch.num_seqs() {
            self.check_block_table(seq)?;
        }
        self.plan(units);
        let out = Split::new(out);
        pool.run(units.len(), &|index| isa.run(UnitKernel { attention: self, unit: &units[index], out: &out }));
        Ok(())
    }

    /// Returns the keys that the token at flat index `token` of sequence `seq` attends to.
    fn keys_of(&self, seq: usize, token: usize) -> Range<usize> {
        let keys = self.kv.spec().keys(self.batch.positions[token], self.batch.context_lens[seq]);
        let end = self.batch.image_end(token, self.kv.spec().kind).map_or(keys.end, |end| keys.end.max(end));
        keys.start as usize..end as usize
    }

    fn check_block_table(&self, seq: usize) -> Result<()> {
        let tokens = self.batch.tokens_of(seq);
        let Some(last) = tokens.clone().last() else { return Ok(()) };
        let (first_key, end) = (self.keys_of(seq, tokens.start).start, self.keys_of(seq, last).end);
        let table = self.batch.block_table(self.group, seq);
        let block_size = self.kv.spec().block_size;
        let blocks = first_key / block_size..end.div_ceil(block_size);
        let Some(blocks) = table.get(blocks) else {
            return Err(Error::internal(format!(
                "sequence {seq} attends to {end} tokens; its {} blocks of {block_size} hold fewer",
                table.len()
            )));
        };
        check_blocks(self.kv.spec(), blocks)
    }

    /// Cuts the batch into units, the most expensive first, so that no thread starts a long one at the end.
    fn plan(&self, units: &mut Vec<Unit>) {
        units.clear();
        let step = (UNIT_ROWS * self.layout.num_kv_heads / self.layout.num_heads).max(1);
        for seq in 0..self.batch.num_seqs() {
            let tokens = self.batch.tokens_of(seq);
            for start in tokens.clone().step_by(step) {
                let tokens = start..(start + step).min(tokens.end);
                units.extend((0..self.layout.num_kv_heads).map(|kv_head| Unit {
                    seq,
                    kv_head,
                    tokens: tokens.clone(),
                }));
            }
        }
        units.sort_unstable_by_key(|unit| {
            std::cmp::Reverse(unit.tokens.len() * self.keys_of(unit.seq, unit.tokens.end - 1).len())
        });
    }
}

struct UnitKernel<'a, K> {
    attention: &'a Attention<'a, K>,
    unit: &'a Unit,
    out: &'a Split<'a, f32>,
}

/// Rows that are computed together: their heads, queries, outputs and the keys that each attends to.
struct Rows<'a> {
    len: usize,
    head: [usize; MAX_ROWS],
    position: [usize; MAX_ROWS],
    q: [&'a [f32]; MAX_ROWS],
    gate: [Option<&'a [f32]>; MAX_ROWS],
    out: [&'a mut [f32]; MAX_ROWS],
    keys: [Range<usize>; MAX_ROWS],
}

impl<K: KvSource> Kernel for UnitKernel<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let num_rows = self.unit.tokens.len() * self.group_size();
        let mut scores = [[[0.0; LANES]; CHUNK_TILES]; MAX_ROWS];
        let keys = self.attention.keys_of(self.unit.seq, self.unit.tokens.end - 1);
        let tiles = keys.end.div_ceil(TILE).min(CHUNK_TILES);
        let mut decoded = vec![0.0; tiles * self.attention.kv.decoded_len()];
        for first in (0..num_rows).step_by(MAX_ROWS) {
            let mut rows = self.rows(first, MAX_ROWS.min(num_rows - first));
            self.attend(s, &mut rows, &mut scores, &mut decoded);
        }
    }
}

impl<'a, K: KvSource> UnitKernel<'a, K> {
    /// Returns the query heads per KV head.
    fn group_size(&self) -> usize {
        self.attention.layout.num_heads / self.attention.layout.num_kv_heads
    }

    /// Returns rows `first..first + len` of the unit, which are ordered by token, then by head.
    fn rows(&self, first: usize, len: usize) -> Rows<'a> {
        let Attention { qkv, layout, .. } = *self.attention;
        let place = |i: usize| {
            let row = first + i;
            let token = self.unit.tokens.start + row / self.group_size();
            (token, self.unit.kv_head * self.group_size() + row % self.group_size())
        };
        let mut rows = Rows {
            len,
            head: [0; MAX_ROWS],
            position: [0; MAX_ROWS],
            q: [&[]; MAX_ROWS],
            gate: [None; MAX_ROWS],
            out: std::array::from_fn(|_| Default::default()),
            keys: [const { 0..0 }; MAX_ROWS],
        };
        for i in 0..len {
            let (token, head) = place(i);
            let (column, value_dim) = (head * layout.head_dim, layout.value_dim);
            let row = &qkv[token * layout.cols()..][..layout.cols()];
            rows.head[i] = head;
            rows.position[i] = self.attention.batch.positions[token] as usize;
            rows.gate[i] = layout.gated.then(|| &row[column..][..layout.head_dim]);
            rows.q[i] = &row[layout.gate_cols() + column..][..layout.head_dim];
            let start = (token * layout.num_heads + head) * value_dim;
            // SAFETY: units have disjoint tokens or KV heads, rows of a unit differ in token or head, and row tiles
            // follow one another.
            rows.out[i] = unsafe { self.out.part(start..start + value_dim) };
            rows.keys[i] = self.attention.keys_of(self.unit.seq, token);
        }
        rows
    }

    #[inline(always)]
    fn attend<S: Simd>(&self, s: S, rows: &mut Rows<'_>, scores: &mut Scores, decoded: &mut [f32]) {
        let len = rows.len;
        let mut maximum = [f32::NEG_INFINITY; LANES];
        // Sums are kept per lane and added up at the end.
        let mut sums = [s.splat(0.0); MAX_ROWS];
        for out in &mut rows.out[..len] {
            out.fill(0.0);
        }
        // A sink acts like a key before the first one, with a value of zero.
        if let Some(sinks) = self.attention.sinks {
            for i in 0..len {
                maximum[i] = sinks[rows.head[i]];
                sums[i] = s.load_partial(&[1.0]);
            }
        }

        let first_key = rows.keys[..len].iter().map(|keys| keys.start).min().unwrap_or(0);
        let end = rows.keys[..len].iter().map(|keys| keys.end).max().unwrap_or(0);
        for chunk_start in (first_key / CHUNK_KEYS * CHUNK_KEYS..end).step_by(CHUNK_KEYS) {
            let tiles = first_key.max(chunk_start) / TILE..end.min(chunk_start + CHUNK_KEYS).div_ceil(TILE);
            let chunk = self.chunk(s, tiles, end.div_ceil(TILE), &rows.keys, decoded);
            let (q, k) = (&rows.q[..len], &chunk.k[..chunk.num_tiles]);
            match self.attention.kv.spec().latent {
                None => tile::scores(s, q, k, scores),
                Some(_) => latent::scores(s, q, k, scores),
            }
            let corrections = self.softmax(s, rows, &mut scores[..len], &chunk, &mut maximum, &mut sums);
            for (out, correction) in rows.out[..len].iter_mut().zip(corrections) {
                out.iter_mut().for_each(|x| *x *= correction);
            }
            tile::weighted_sums(
                s,
                scores,
                &chunk.keys[..len],
                (&chunk.v, self.attention.kv.v_stride()),
                &mut rows.out[..len],
            );
        }

        for ((out, sum), gate) in rows.out[..len].iter_mut().zip(sums).zip(rows.gate) {
            let sum = s.sum(sum);
            // A row without keys gives zeros, not 0 / 0.
            let scale = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            for x in out.iter_mut() {
                *x *= scale;
            }
            if let Some(gate) = gate {
                multiply_by_sigmoids(s, out, gate);
            }
        }
    }

    /// Returns K and V of `tiles` of the sequence, at most a chunk. `num_tiles` is the total number of tiles, and
    /// `keys` are those of each row.
    #[inline(always)]
    fn chunk<'b, S: Simd>(
        &self,
        s: S,
        tiles: Range<usize>,
        num_tiles: usize,
        keys: &[Range<usize>; MAX_ROWS],
        mut decoded: &'b mut [f32],
    ) -> Chunk<'b, K::Element>
    where
        'a: 'b,
    {
        let Attention { batch, group, kv, .. } = *self.attention;
        let table = batch.block_table(group, self.unit.seq);
        let tiles_per_block = kv.spec().block_size / TILE;
        let place_of = |tile: usize| {
            let head = table[tile / tiles_per_block] as usize * kv.spec().num_kv_heads + self.unit.kv_head;
            head * tiles_per_block + tile % tiles_per_block
        };
        let first_key = tiles.start * TILE;
        let mut chunk = Chunk { first_key, num_tiles: tiles.len(), ..Chunk::default() };
        for (keys, of_row) in chunk.keys.iter_mut().zip(keys) {
            let clamp = |key: usize| key.saturating_sub(first_key).min(tiles.len() * TILE);
            *keys = clamp(of_row.start)..clamp(of_row.end);
        }
        for (i, tile) in tiles.clone().enumerate() {
            let of_tile;
            (of_tile, decoded) = decoded.split_at_mut(kv.decoded_len());
            let places = [tile, (tile + tiles.len()).min(num_tiles - 1)].map(place_of);
            let [now, next] = kv.tiles(s, places, of_tile);
            chunk.k[i] = Tile { elements: now.k, next: next.k };
            chunk.v[i] = Tile { elements: now.v, next: next.v };
            chunk.scales[i] = [now.scales, next.scales];
        }
        chunk
    }

    /// Turns the raw scores of each row into weights relative to its running maximum, and updates maxima and sums.
    /// Returns the correction factors for what was accumulated before. Rows are the lanes of `maximum`, so one `exp`
    /// computes all factors.
    #[inline(always)]
    fn softmax<S: Simd>(
        &self,
        s: S,
        rows: &Rows<'_>,
        scores: &mut [[[f32; LANES]; CHUNK_TILES]],
        chunk: &Chunk<'_, K::Element>,
        maximum: &mut [f32; LANES],
        sums: &mut [S::V; MAX_ROWS],
    ) -> [f32; LANES] {
        let Scoring { scale, softcap, .. } = self.attention.scoring;
        let num_heads = self.attention.layout.num_heads;
        let slopes = self.attention.scoring.slopes(num_heads);
        let biases = self.attention.biases.map(|biases| (biases, biases.len() / num_heads));
        let (old, num_tiles, keys) = (*maximum, chunk.num_tiles, &chunk.keys);
        if K::Element::HAS_SCALES {
            for [_, next] in &chunk.scales[..num_tiles] {
                next.iter().for_each(|scales| s.prefetch(scales));
            }
        }
        // While all keys are masked, the maximum is -inf, and -inf - -inf would be NaN.
        let mut base = [0.0; LANES];
        for (i, scores) in scores.iter_mut().enumerate() {
            let mut top = s.splat(old[i]);
            for (tile, scores) in scores[..num_tiles].iter_mut().enumerate() {
                let mut x = s.load(scores);
                if K::Element::HAS_SCALES {
                    x = s.mul(x, s.load(&chunk.scales[tile][0][0]));
                }
                x = s.mul(x, s.splat(scale));
                if let Some(cap) = softcap {
                    x = s.mul(s.splat(cap), tanh(s, s.div(x, s.splat(cap))));
                }
                if let Some(slopes) = slopes {
                    // Distances are whole numbers, and exact up to 2^24.
                    let first = (chunk.first_key + tile * TILE) as f32 - rows.position[i] as f32;
                    let distances = s.add(s.splat(first), s.load(&LANE_NUMBERS));
                    x = s.fma(s.splat(slopes.of(rows.head[i])), distances, x);
                }
                if let Some((biases, distances)) = biases {
                    let of_head = &biases[rows.head[i] * distances..][..distances];
                    let first = (chunk.first_key + tile * TILE + distances / 2) as isize - rows.position[i] as isize;
                    let of_key = |lane| of_head[(first + lane as isize).clamp(0, distances as isize - 1) as usize];
                    x = s.add(x, s.load(&std::array::from_fn(of_key)));
                }
                if keys[i].start > tile * TILE || keys[i].end < (tile + 1) * TILE {
                    x = s.keep_lanes(x, lanes_of(tile, &keys[i]), f32::NEG_INFINITY);
                }
                s.store(x, scores);
                top = s.max(x, top);
            }
            maximum[i] = s.maximum(top);
            base[i] = if maximum[i] == f32::NEG_INFINITY { 0.0 } else { maximum[i] };
        }
        let corrections = exp(s, s.sub(s.load(&old), s.load(&base)));
        let corrections = to_array(s, corrections);
        for (i, scores) in scores.iter_mut().enumerate() {
            let mut sum = s.mul(sums[i], s.splat(corrections[i]));
            for (scores, [scales, _]) in scores[..num_tiles].iter_mut().zip(&chunk.scales) {
                let weight = exp(s, s.sub(s.load(scores), s.splat(base[i])));
                sum = s.add(sum, weight);
                // Multiply the weight by V's scale, once for all elements of a head.
                s.store(if K::Element::HAS_SCALES { s.mul(weight, s.load(&scales[1])) } else { weight }, scores);
            }
            sums[i] = sum;
        }
        corrections
    }
}

/// `k[tile]` is `[head_dim, 16 keys]`, and `v[tile]` is `[16 keys, head_dim]`. For latent rows `k` has the layout of
/// `v`. `scales[tile]` has the scales of K and V of the tile, and of the tile at its place in the next chunk.
struct Chunk<'a, E> {
    first_key: usize,
    num_tiles: usize,
    /// The keys that each row attends to, counted from the first key.
    keys: [Range<usize>; MAX_ROWS],
    k: [Tile<'a, E>; CHUNK_TILES],
    v: [Tile<'a, E>; CHUNK_TILES],
    scales: [[&'a [[f32; TILE]; 2]; 2]; CHUNK_TILES],
}

impl<E: Copy> Default for Chunk<'_, E> {
    fn default() -> Self {
        let none = &[[1.0; TILE]; 2];
        let [k, v] = [[Tile::default(); CHUNK_TILES]; 2];
        Self { first_key: 0, num_tiles: 0, keys: [const { 0..0 }; MAX_ROWS], k, v, scales: [[none; 2]; CHUNK_TILES] }
    }
}

/// The elements of a tile, and those of the tile at its place in the next chunk, which the kernels prefetch. The blocks
/// of a sequence are scattered, so the CPU cannot predict the next one.
#[derive(Clone, Copy)]
struct Tile<'a, E> {
    elements: &'a [E],
    next: &'a [E],
}

impl<E> Default for Tile<'_, E> {
    fn default() -> Self {
        Self { elements: &[], next: &[] }
    }
}

#[inline(always)]
fn multiply_by_sigmoids<S: Simd>(s: S, out: &mut [f32], gate: &[f32]) {
    for (out, gate) in out.chunks_mut(LANES).zip(gate.chunks(LANES)) {
        let gated = s.mul(s.load_partial(out), sigmoid(s, s.load_partial(gate)));
        s.store_partial(gated, out);
    }
}

/// Returns the bits of the lanes of `tile` with a key in `keys`.
#[inline(always)]
fn lanes_of(tile: usize, keys: &Range<usize>) -> u16 {
    let below = |key: usize| (1u32 << key.saturating_sub(tile * TILE).min(TILE)) - 1;
    (below(keys.end) & !below(keys.start)) as u16
}

#[inline(always)]
fn to_array<S: Simd>(s: S, v: S::V) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    s.store(v, &mut lanes);
    lanes
}
