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

    /// Quantises the rows of `x` into groups, for `quantized_group`. `cols` is a multiple of 32. Chunks are runs of
    /// columns of a group: a group's blocks lie by column, so that even one group can be shared out.
    pub(super) fn quantize(&mut self, isa: Isa, x: &[f32], cols: usize, pool: &ThreadPool) {
        let (num_rows, num_blocks) = (x.len() / cols, cols / BLOCK);
        let run = (MIN_BLOCKS / num_rows.min(GROUP)).clamp(1, num_blocks);
        let runs = num_blocks.div_ceil(run);
        let group_blocks = GROUP * num_blocks;
        let out = Split::new(&mut self.blocks[..]);
        pool.run(num_rows.div_ceil(GROUP) * runs, &|chunk| {
            let (index, first) = (chunk / runs, chunk % runs * run);
            let len = run.min(num_blocks - first);
            let x = group_rows(x, cols, index);
            let group = padded_group(x.len() / cols);
            let at = (index * group_blocks + first * group) * size_of::<Q8Block>();
            // SAFETY: groups do not overlap, nor do runs of columns in one. Memory maps are page-aligned, and every
            // byte pattern is a `Q8Block`.
            let out = unsafe { out.part(at..at + len * group * size_of::<Q8Block>()).align_to_mut::<Q8Block>().1 };
            for (r, x) in x.chunks_exact(cols).enumerate() {
                quantize_row(isa, &x[first * BLOCK..(first + len) * BLOCK], &mut out[r..], group);
            }
        });
    }

    /// Brings the rows of `x` into groups as they are, `[column][row]`, for `float_group`.
    pub(super) fn interleave(&mut self, x: &[f32], cols: usize, pool: &ThreadPool) {
        let group_bytes = GROUP * cols * size_of::<f32>();
        let out = Split::new(&mut self.floats[..]);
        pool.run(x.len().div_ceil(GROUP * cols), &|index| {
            let x = group_rows(x, cols, index);
            let group = padded_group(x.len() / cols);
            // SAFETY: as above.
            let out = unsafe { out.part(index * group_bytes..(index + 1) * group_bytes).align_to_mut::<f32>().1 };
            for (column, out) in out.chunks_exact_mut(group).take(cols).enumerate() {
                for (out, x) in out.iter_mut().zip(x.chunks_exact(cols)) {
                    *out = x[column];
                }
            }
        });
    }
}

fn pass_rows(max_rows: usize) -> usize {
    max_rows.clamp(1, PASS).next_multiple_of(GROUP)
}

/// The rows of group `index`.
fn group_rows(x: &[f32], cols: usize, index: usize) -> &[f32] {
    let first = index * GROUP * cols;
    &x[first..x.len().min(first + GROUP * cols)]
}
