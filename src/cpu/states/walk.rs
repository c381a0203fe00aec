//! Carries the matrices of heads along the tokens of their sequences.
//!
//! The columns of a matrix are independent, so a unit of work is a few columns of one head of one sequence. Its part of
//! the matrix stays in the first-level cache. A `Rule` defines how a token changes it.
#![allow(unsafe_code)] // Slots of the pool and rows of the output are written from several threads.

use std::ops::Range;

use super::first_slot;
use crate::backend::StateLayerSpec;
use crate::batch::Batch;
use crate::pool::ThreadPool;
use crate::simd::{Isa, Kernel, LANES, Simd};
use crate::split::Split;

/// Vectors of columns in a unit.
const UNIT_VECTORS: usize = 4;
const UNIT_COLUMNS: usize = UNIT_VECTORS * LANES;
/// The units of a chunk share its scratch. This many chunks per thread balance the load.
const CHUNKS_PER_THREAD: usize = 4;
/// The most rows of a matrix.
const MAX_ROWS: usize = 256;

/// `C` vectors of a matrix row.
pub(super) type TileRow<const C: usize> = [[f32; LANES]; C];

/// A recurrence: how a token changes a head's matrix, and what its output is.
pub(super) trait Rule: Sync {
    /// Carries a part of a matrix along a sequence's tokens, rows `tokens` of the batch. After each token it writes the
    /// output to `part.out(row)` and calls `keep` with the updated matrix and the row.
    fn walk<S: Simd, const C: usize>(
        &self,
        s: S,
        part: &Part<'_>,
        tile: &mut [TileRow<C>],
        tokens: Range<usize>,
        keep: &mut impl FnMut(&[TileRow<C>], usize),
    );
}

/// Columns of a head that are carried together.
pub(super) struct Part<'a> {
    pub(super) head: usize,
    /// The first column and the number of columns.
    pub(super) first: usize,
    pub(super) count: usize,
    /// Rows of `out_cols` columns: heads of `head_cols` side by side.
    out: &'a Split<'a, f32>,
    out_cols: usize,
    head_cols: usize,
}

impl Part<'_> {
    /// Returns the part's columns in row `row` of the output.
    #[allow(clippy::mut_from_ref)] // Exclusive, as the safety comment says.
    pub(super) fn out(&self, row: usize) -> &mut [f32] {
        let at = row * self.out_cols + self.head * self.head_cols + self.first;
        // SAFETY: units have disjoint columns of a head and a sequence, and a rule has one such slice at a time.
        unsafe { self.out.part(at..at + self.count) }
    }
}

/// Walks along all sequences, from their initial states to the states that the batch saves. Writes the outputs of all
/// heads, `[n, heads * value_size]`, to `out`.
pub(super) fn walk(
    rule: &impl Rule,
    batch: &Batch,
    pool: &ThreadPool,
    isa: Isa,
    spec: &StateLayerSpec,
    matrices: &Split<'_, f32>,
    out: &Split<'_, f32>,
) {
    let tiles = spec.value_size.div_ceil(UNIT_COLUMNS);
    let units = batch.num_seqs() * spec.heads * tiles;
    let units_per_chunk = units.div_ceil(CHUNKS_PER_THREAD * pool.num_threads()).max(1);
    pool.run(units.div_ceil(units_per_chunk), &|chunk| {
        let first = chunk * units_per_chunk;
        let units = first..units.min(first + units_per_chunk);
        isa.run(Units { rule, batch, spec, matrices, out, units, tiles });
    });
}

struct Units<'a, R> {
    rule: &'a R,
    batch: &'a Batch,
    spec: &'a StateLayerSpec,
    matrices: &'a Split<'a, f32>,
    out: &'a Split<'a, f32>,
    units: Range<usize>,
    /// Units of a head.
    tiles: usize,
}

impl<R: Rule> Kernel for Units<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if S::REGISTERS < 16 { self.run_all::<S, 2>(s) } else { self.run_all::<S, UNIT_VECTORS>(s) }
    }
}

impl<R: Rule> Units<'_, R> {
    #[inline(always)]
    fn run_all<S: Simd, const C: usize>(&self, s: S) {
        let mut tile: [TileRow<C>; MAX_ROWS] = [[[0.0; LANES]; C]; MAX_ROWS];
        let &StateLayerSpec { heads, key_size, value_size, .. } = self.spec;
        let tile = &mut tile[..key_size];
        for unit in self.units.clone() {
            let (head, part) = (unit / self.tiles, unit % self.tiles);
            let end = value_size.min((part + 1) * UNIT_COLUMNS);
            for first in (part * UNIT_COLUMNS..end).step_by(C * LANES) {
                let (seq, head) = (head / heads, head % heads);
                let (count, out) = ((C * LANES).min(end - first), self.out);
                let part = Part { head, first, count, out, out_cols: heads * value_size, head_cols: value_size };
                self.walk_one(s, seq, &part, tile);
            }
        }
    }

    /// Carries some columns of a head along a sequence.
    #[inline(always)]
    fn walk_one<S: Simd, const C: usize>(&self, s: S, seq: usize, part: &Part<'_>, tile: &mut [TileRow<C>]) {
        self.load(seq, part, tile);
        let tokens = self.batch.tokens_of(seq);
        let start = tokens.start;
        let mut writes = self.batch.states.writes_of(seq).iter();
        let mut write = writes.next();
        self.rule.walk(s, part, tile, tokens, &mut |tile: &[TileRow<C>], row: usize| {
            while let Some(here) = write.filter(|write| start + write.num_tokens as usize == row + 1) {
                self.store(tile, part, here.slot as usize);
                write = writes.next();
            }
        });
    }

    /// Returns the index of a part's columns in row `row` of its head's matrix, in slot `slot`.
    fn place(&self, part: &Part<'_>, slot: usize, row: usize) -> usize {
        let &StateLayerSpec { heads, key_size, value_size, .. } = self.spec;
        ((slot * heads + part.head) * key_size + row) * value_size + part.first
    }

    #[inline(always)]
    fn load<const C: usize>(&self, seq: usize, part: &Part<'_>, tile: &mut [TileRow<C>]) {
        let Some(slot) = first_slot(self.batch, seq) else {
            return tile.fill([[0.0; LANES]; C]);
        };
        let count = part.count;
        for (row, tile) in tile.iter_mut().enumerate() {
            let at = self.place(part, slot, row);
            let end = self.matrices.pointer(at + count);
            // SAFETY: the columns are in the pool, where they end at `end`. Other sequences that start from this state
            // read them too. Nobody but this unit writes them, and not now.
            let columns = unsafe { std::slice::from_raw_parts(end.sub(count), count) };
            // Whole vectors are copied one by one: a copy of variable length is a call that takes as long as all of
            // these.
            let (vectors, tail) = columns.as_chunks::<LANES>();
            tile.iter_mut().zip(vectors).for_each(|(tile, vector)| *tile = *vector);
            tile.as_flattened_mut()[count - tail.len()..count].copy_from_slice(tail);
        }
    }

    #[inline(always)]
    fn store<const C: usize>(&self, tile: &[TileRow<C>], part: &Part<'_>, slot: usize) {
        for (row, tile) in tile.iter().enumerate() {
            let at = self.place(part, slot, row);
            // SAFETY: no two sequences write one slot, none reads what another writes, and units have disjoint columns.
            let columns = unsafe { self.matrices.part(at..at + part.count) };
            let (vectors, tail) = columns.as_chunks_mut::<LANES>();
            vectors.iter_mut().zip(tile).for_each(|(vector, tile)| *vector = *tile);
            tail.copy_from_slice(&tile.as_flattened()[part.count - tail.len()..part.count]);
        }
    }
}
