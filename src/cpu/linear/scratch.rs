//! Activations in the order in which the micro-kernels read them, in memory allocated once per engine.
#![allow(unsafe_code)] // threads prepare groups of rows in one buffer; bytes are viewed as blocks

use memmap2::MmapMut;

use super::memory::map;
use crate::Result;
use crate::pool::ThreadPool;
use crate::simd::Isa;
use crate::simd::linear::{BLOCK, GROUP, Q8Block, padded_group, quantize_row};
use crate::split::Split;

/// Rows of one pass over the weights. Each weight that is read serves many rows, and a pass's activations still fit in
/// the second-level cache.
const PASS: usize = 256;

/// The fewest blocks (about 8 ns each) that are worth a separate chunk.
const MIN_BLOCKS: usize = 256;

/// Scratch of one engine for quantized activations, allocated once for the largest step.
#[derive(Debug)]
pub struct LinearScratch {
    max_cols: usize,
    rows: usize,
    blocks: MmapMut,
    floats: MmapMut,
}

impl LinearScratch {
    /// Allocates scratch for matrices of up to `max_cols` inputs. It serves any number of rows, in passes of at most
    /// `max_rows` and at most 256.
    ///
    /// # Errors
    /// `Error::OutOfMemory`.
    pub fn new(max_rows: usize, max_cols: usize) -> Result<Self> {
        let what = "scratch of the linear kernels";
        let [blocks, floats] = Self::sizes(max_rows, max_cols);
        Ok(Self { max_cols, rows: pass_rows(max_rows), blocks: map(blocks, what)?, floats: map(floats, what)? })
    }

    /// Returns the bytes that `new` allocates for quantized activations and for f32.
    pub fn sizes(max_rows: usize, max_cols: usize) -> [usize; 2] {
        let rows = pass_rows(max_rows);
        let blocks = max_cols.div_ceil(BLOCK).saturating_mul(rows).saturating_mul(size_of::<Q8Block>());
        [blocks, max_cols.saturating_mul(rows).saturating_mul(size_of::<f32>())]
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> u64 {
        (self.blocks.len() + self.floats.len()) as u64
    }

    pub(super) fn max_cols(&self) -> usize {
        self.max_cols
    }

    /// Returns the rows of a pass.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns a pointer to the start of group `index` of quantized activations.
    pub(super) fn quantized_group(&self, index: usize, cols: usize) -> *const u8 {
        self.blocks[index * GROUP * (cols / BLOCK) * size_of::<Q8Block>()..].as_ptr()
    }

    /// Returns a pointer to the start of group `index` of f32 activations.
    pub(super) fn float_group(&self, index: usize, cols: usize) -> *const u8 {
        self.floats[index * GROUP * cols * size_of::<f32>()..].as_ptr()
    }

    /// Returns the row groups for which there is room, of rows of `cols` columns.
    pub(super) fn groups(&self, cols: usize) -> usize {
        self.rows / GROUP * (self.max_cols / cols.max(1)).max(1)
    }

    /// Quantizes rows into groups for `quantized_group`. All have the same number of columns, a multiple of 32. A chunk
    /// is a range of columns of a group. A group's blocks are ordered by column, so even a single group can be divided
    /// among threads.
    pub(super) fn quantize(&mut self, isa: Isa, inputs: &[Inputs<'_>], pool: &ThreadPool) {
        let num_blocks = inputs.first().map_or(0, |inputs| inputs.cols / BLOCK);
        let group_blocks = GROUP * num_blocks;
        let out = Split::new(&mut self.blocks[..]);
        let run = |inputs: &Inputs<'_>| (MIN_BLOCKS / inputs.rows.min(GROUP)).clamp(1, num_blocks);
        let jobs = Jobs::of(inputs.iter().map(|inputs| inputs.num_groups() * num_blocks.div_ceil(run(inputs))));
        pool.run(jobs.chunks(), &|chunk| {
            let (which, chunk) = jobs.find(chunk);
            let inputs = inputs[which];
            let run = run(&inputs);
            let runs = num_blocks.div_ceil(run);
            let (index, first) = (chunk / runs, chunk % runs * run);
            let len = run.min(num_blocks - first);
            let group = padded_group(inputs.group_rows(index).len());
            let at = ((inputs.first_group + index) * group_blocks + first * group) * size_of::<Q8Block>();
            // SAFETY: groups do not overlap, and neither do ranges of columns in a group. Memory maps are page-aligned,
            // and every byte pattern is a `Q8Block`.
            let out = unsafe { out.part(at..at + len * group * size_of::<Q8Block>()).align_to_mut::<Q8Block>().1 };
            for (r, x) in inputs.group_rows(index).enumerate() {
                quantize_row(isa, &x[first * BLOCK..(first + len) * BLOCK], &mut out[r..], group);
            }
        });
    }

    /// Copies rows into groups as f32, `[column][row]`, for `float_group`. All have the same number of columns.
    pub(super) fn interleave(&mut self, inputs: &[Inputs<'_>], pool: &ThreadPool) {
        let group_bytes = GROUP * inputs.first().map_or(0, |inputs| inputs.cols) * size_of::<f32>();
        let out = Split::new(&mut self.floats[..]);
        let jobs = Jobs::of(inputs.iter().map(|inputs| inputs.num_groups()));
        pool.run(jobs.chunks(), &|chunk| {
            let (which, index) = jobs.find(chunk);
            let inputs = inputs[which];
            let mut rows: [&[f32]; GROUP] = [&[]; GROUP];
            let len = inputs.group_rows(index).len();
            rows.iter_mut().zip(inputs.group_rows(index)).for_each(|(row, x)| *row = x);
            let start = (inputs.first_group + index) * group_bytes;
            // SAFETY: as above.
            let out = unsafe { out.part(start..start + group_bytes).align_to_mut::<f32>().1 };
            for (column, out) in out.chunks_exact_mut(padded_group(len)).take(inputs.cols).enumerate() {
                for (out, x) in out.iter_mut().zip(&rows[..len]) {
                    *out = x[column];
                }
            }
        });
    }
}

/// Jobs of several chunks each, as one job of the pool.
pub(super) struct Jobs {
    /// The first chunk of each job, then the number of all chunks.
    starts: Vec<usize>,
}

impl Jobs {
    pub(super) fn of(chunks: impl Iterator<Item = usize>) -> Self {
        let mut starts = vec![0];
        for count in chunks {
            starts.push(starts[starts.len() - 1] + count);
        }
        Self { starts }
    }

    /// Returns the number of all chunks.
    pub(super) fn chunks(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    /// Returns the job that a chunk belongs to, and its index among the job's chunks.
    pub(super) fn find(&self, chunk: usize) -> (usize, usize) {
        let job = self.starts.partition_point(|&start| start <= chunk) - 1;
        (job, chunk - self.starts[job])
    }
}

/// Rows of activations of one or several heads. Head `h` has `cols` columns of each row, starting at `h * head_stride`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) x: &'a [f32],
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Distance in columns between rows.
    pub(super) stride: usize,
    pub(super) heads: usize,
    pub(super) head_stride: usize,
    /// The place of the first row group in the scratch.
    pub(super) first_group: usize,
}

impl<'a> Inputs<'a> {
    /// Returns rows that follow one another.
    pub(super) fn of_rows(x: &'a [f32], rows: usize, cols: usize) -> Self {
        Self { x, rows, cols, stride: cols, heads: 1, head_stride: cols, first_group: 0 }
    }

    /// Returns the row groups of one head.
    pub(super) fn groups_of_head(self) -> usize {
        self.rows.div_ceil(GROUP)
    }

    /// Returns the row groups of all heads, which are ordered by head.
    fn num_groups(self) -> usize {
        self.heads * self.groups_of_head()
    }

    /// Returns the rows of group `index`.
    fn group_rows(self, index: usize) -> impl ExactSizeIterator<Item = &'a [f32]> {
        let (head, first) = (index / self.groups_of_head(), index % self.groups_of_head() * GROUP);
        let rows = first..self.rows.min(first + GROUP);
        rows.map(move |row| self.row(head, row))
    }

    /// Returns a row of head `head`.
    fn row(self, head: usize, row: usize) -> &'a [f32] {
        &self.x[row * self.stride + head * self.head_stride..][..self.cols]
    }
}

fn pass_rows(max_rows: usize) -> usize {
    max_rows.clamp(1, PASS).next_multiple_of(GROUP)
}
