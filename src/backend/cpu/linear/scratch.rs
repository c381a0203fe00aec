//! Activations in the order in which the micro-kernels read them, in memory taken once per engine.
#![allow(unsafe_code)] // threads prepare groups of rows in one buffer; bytes are viewed as blocks

use memmap2::MmapMut;

use super::kernels::quantize_row;
use super::memory::map;
use super::q8::{BLOCK, GROUP, Q8Block, padded_group};
use crate::Result;
use crate::backend::cpu::pool::ThreadPool;
use crate::backend::cpu::simd::Isa;
use crate::backend::cpu::split::Split;

/// Rows of one pass over the weights: enough to use each weight many times per read from memory, few enough that a
/// pass's activations stay in the second-level cache.
const PASS: usize = 256;

/// Blocks (some 8 ns each) that are worth a chunk of their own.
const MIN_BLOCKS: usize = 256;

/// Scratch of one engine for quantised activations, allocated once for the largest step.
#[derive(Debug)]
pub struct LinearScratch {
    max_cols: usize,
    rows: usize,
    blocks: MmapMut,
    floats: MmapMut,
}

impl LinearScratch {
    /// Scratch for matrices of up to `max_cols` inputs. Any number of rows can be multiplied, in passes of at most
    /// `max_rows` (and 256).
    ///
    /// # Errors
    /// `Error::OutOfMemory`.
    pub fn new(max_rows: usize, max_cols: usize) -> Result<Self> {
        let what = "scratch of the linear kernels";
        let [blocks, floats] = Self::sizes(max_rows, max_cols);
        Ok(Self { max_cols, rows: pass_rows(max_rows), blocks: map(blocks, what)?, floats: map(floats, what)? })
    }

    /// Bytes that `new` takes, for quantised activations and for f32.
    pub fn sizes(max_rows: usize, max_cols: usize) -> [usize; 2] {
        let rows = pass_rows(max_rows);
        let blocks = max_cols.div_ceil(BLOCK).saturating_mul(rows).saturating_mul(size_of::<Q8Block>());
        [blocks, max_cols.saturating_mul(rows).saturating_mul(size_of::<f32>())]
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        (self.blocks.len() + self.floats.len()) as u64
    }

    pub(super) fn max_cols(&self) -> usize {
        self.max_cols
    }

    /// Rows of a pass.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Pointer to the start of group `index` of quantised activations.
    pub(super) fn quantized_group(&self, index: usize, cols: usize) -> *const u8 {
        self.blocks[index * GROUP * (cols / BLOCK) * size_of::<Q8Block>()..].as_ptr()
    }

    /// Pointer to the start of group `index` of f32 activations.
    pub(super) fn float_group(&self, index: usize, cols: usize) -> *const u8 {
        self.floats[index * GROUP * cols * size_of::<f32>()..].as_ptr()
    }

    /// Quantises rows into groups, for `quantized_group`. Their columns are a multiple of 32. Chunks are runs of
    /// columns of a group: a group's blocks lie by column, so that even one group can be shared out.
    pub(super) fn quantize(&mut self, isa: Isa, inputs: Inputs<'_>, pool: &ThreadPool) {
        let num_blocks = inputs.cols / BLOCK;
        let run = (MIN_BLOCKS / inputs.rows.min(GROUP)).clamp(1, num_blocks);
        let runs = num_blocks.div_ceil(run);
        let group_blocks = GROUP * num_blocks;
        let out = Split::new(&mut self.blocks[..]);
        pool.run(inputs.num_groups() * runs, &|chunk| {
            let (index, first) = (chunk / runs, chunk % runs * run);
            let len = run.min(num_blocks - first);
            let group = padded_group(inputs.group_rows(index).len());
            let at = (index * group_blocks + first * group) * size_of::<Q8Block>();
            // SAFETY: groups do not overlap, nor do runs of columns in one. Memory maps are page-aligned, and every
            // byte pattern is a `Q8Block`.
            let out = unsafe { out.part(at..at + len * group * size_of::<Q8Block>()).align_to_mut::<Q8Block>().1 };
            for (r, x) in inputs.group_rows(index).enumerate() {
                quantize_row(isa, &x[first * BLOCK..(first + len) * BLOCK], &mut out[r..], group);
            }
        });
    }

    /// Brings rows into groups as they are, `[column][row]`, for `float_group`.
    pub(super) fn interleave(&mut self, inputs: Inputs<'_>, pool: &ThreadPool) {
        let group_bytes = GROUP * inputs.cols * size_of::<f32>();
        let out = Split::new(&mut self.floats[..]);
        pool.run(inputs.num_groups(), &|index| {
            let mut rows: [&[f32]; GROUP] = [&[]; GROUP];
            let len = inputs.group_rows(index).len();
            rows.iter_mut().zip(inputs.group_rows(index)).for_each(|(row, x)| *row = x);
            // SAFETY: as above.
            let out = unsafe { out.part(index * group_bytes..(index + 1) * group_bytes).align_to_mut::<f32>().1 };
            for (column, out) in out.chunks_exact_mut(padded_group(len)).take(inputs.cols).enumerate() {
                for (out, x) in out.iter_mut().zip(&rows[..len]) {
                    *out = x[column];
                }
            }
        });
    }
}

/// Rows of activations of one or several heads: head `h` has `cols` columns of each row, from `h * head_stride` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) x: &'a [f32],
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Columns from one row to the next.
    pub(super) stride: usize,
    pub(super) heads: usize,
    pub(super) head_stride: usize,
}

impl<'a> Inputs<'a> {
    /// Groups of rows of one head.
    pub(super) fn groups_of_head(self) -> usize {
        self.rows.div_ceil(GROUP)
    }

    /// Groups of all heads, those of a head behind each other.
    fn num_groups(self) -> usize {
        self.heads * self.groups_of_head()
    }

    /// The rows of group `index`.
    fn group_rows(self, index: usize) -> impl ExactSizeIterator<Item = &'a [f32]> {
        let (head, first) = (index / self.groups_of_head(), index % self.groups_of_head() * GROUP);
        let rows = first..self.rows.min(first + GROUP);
        rows.map(move |row| self.row(head, row))
    }

    /// A row of head `head`.
    fn row(self, head: usize, row: usize) -> &'a [f32] {
        &self.x[row * self.stride + head * self.head_stride..][..self.cols]
    }
}

fn pass_rows(max_rows: usize) -> usize {
    max_rows.clamp(1, PASS).next_multiple_of(GROUP)
}
