//! `linear`: matrices in the file's quantization times f32 activations.
//!
//! A vector lane is an output row. At load, weights are permuted into tiles of 16 rows. Every micro-kernel call
//! multiplies one tile with a group of up to 16 activation rows. One lane thus accumulates each output in the order of
//! `k` for any number of rows, which makes batch invariance bitwise.
//!
//! Block formats use activations quantized to 8 bits (`Q8Block`). F32, F16 and BF16 weights use f32 activations.
#![allow(unsafe_code)] // micro-kernels take raw pointers

mod each;
mod memory;
mod part;
mod scratch;

pub(super) use each::{Product, multiply_each};
pub use memory::{WeightBytes, WeightMemory};
pub use scratch::LinearScratch;

use std::cell::RefCell;

use super::pool::ThreadPool;
use super::simd::Isa;
use super::simd::linear::{BLOCK, GROUP, Line, TILE, TileArgs, padded_group, prefetches_near};
use super::split::Split;
use crate::backend::{LinearPart, Progress};
use crate::quant::{self, GgmlType};
use crate::{Error, Result};
use part::{Part, Storage};
use scratch::{Inputs, Jobs};

/// Chunks per thread. With several, a thread that loses its core delays the others only a little.
const CHUNKS_PER_THREAD: usize = 8;

/// Bytes between two progress reports, a few milliseconds of work.
const REPORT_BYTES: usize = 4 << 20;

thread_local! {
    /// The codes of a tile while several groups of rows are multiplied with them.
    static CODES_OF_TILE: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// The use of a product: it replaces the contents of the output or is added to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    Assign,
    Add,
}

/// A stack of matrices packed for the CPU's SIMD width.
#[derive(Debug)]
pub struct PackedMatrix {
    isa: Isa,
    rows: usize,
    cols: usize,
    num_tiles: usize,
    parts: Vec<Part>,
    /// The tiles of each part.
    memory: Vec<WeightBytes>,
    /// Biases of the parts that have them, padded to whole tiles per part.
    bias: Vec<f32>,
}

/// The layout of a stack in memory, before the allocation.
struct Plan {
    parts: Vec<Part>,
    cols: usize,
    bytes: usize,
    /// The number of biases of all parts that have them, padded to whole tiles per part.
    num_biases: usize,
}

impl Plan {
    fn new(isa: Isa, views: &[LinearPart<'_>]) -> Result<Self> {
        let cols = views.first().map_or(0, |p| p.weight.cols);
        let mut plan = Self { parts: Vec::with_capacity(views.len()), cols, bytes: 0, num_biases: 0 };
        let mut rows = 0;
        for view in views {
            let mut part = Part::new(isa, &view.weight, rows)?;
            if part.cols != cols {
                let problem = format!("matrix {} has {} columns, not {cols}", view.weight.name, part.cols);
                return Err(Error::internal(problem));
            }
            if view.bias.is_some() {
                part.bias = Some(plan.num_biases);
                plan.num_biases += part.num_tiles() * TILE;
            }
            rows += part.rows;
            plan.bytes += part.bytes();
            plan.parts.push(part);
        }
        if plan.parts.is_empty() {
            return Err(Error::internal("a stack of no matrices"));
        }
        Ok(plan)
    }
}

impl PackedMatrix {
    /// Packs the parts for the kernels of `isa`. This permutes the file's bytes, so `bytes()` is about their number.
    ///
    /// # Errors
    /// `OutOfMemory`. `Internal` if there is no part, the parts' `cols` differ, a view's bytes do not fit its shape, or
    /// a type cannot be decoded. Errors of `progress`.
    pub fn pack(
        isa: Isa,
        views: &[LinearPart<'_>],
        memory: &mut WeightMemory,
        pool: &ThreadPool,
        progress: &mut Progress<'_>,
    ) -> Result<Self> {
        // One mapping holds all parts, so a step reads them from end to end.
        let mut whole = memory.take(Plan::new(isa, views)?.bytes)?;
        Self::pack_into(isa, views, &mut |_, bytes| Ok(whole.split_off_front(bytes)), pool, progress)
    }

    /// Like `pack`, in memory that `take` returns for a part, by its index and its bytes.
    ///
    /// # Errors
    /// Errors of `take`, and those of `pack`.
    pub fn pack_into(
        isa: Isa,
        views: &[LinearPart<'_>],
        take: &mut dyn FnMut(usize, usize) -> Result<WeightBytes>,
        pool: &ThreadPool,
        progress: &mut Progress<'_>,
    ) -> Result<Self> {
        let Plan { parts, cols, num_biases, .. } = Plan::new(isa, views)?;
        let mut bias = vec![0.0; num_biases];
        for (part, view) in parts.iter().zip(views) {
            part.check_data(&view.weight)?;
            if let (Some(at), Some(tensor)) = (part.bias, &view.bias) {
                quant::dequantize(tensor.ggml_type, tensor.data, &mut bias[at..at + part.rows])?;
            }
        }
        let mut memory = Vec::with_capacity(parts.len());
        for (index, (part, view)) in parts.iter().zip(views).enumerate() {
            let mut bytes = take(index, part.bytes())?;
            let out = Split::new(&mut bytes[..part.bytes()]);
            let data = view.weight.data;
            let tiles_per_report = (REPORT_BYTES / part.tile_bytes).max(1);
            for first in (0..part.num_tiles()).step_by(tiles_per_report) {
                let count = tiles_per_report.min(part.num_tiles() - first);
                pool.run(count, &|index| {
                    let tile = first + index;
                    // SAFETY: each tile is one chunk, and tiles do not overlap.
                    let out = unsafe { out.part(tile * part.tile_bytes..(tile + 1) * part.tile_bytes) };
                    part.pack_tile(data, tile, out);
                });
                let file_tile = data.len() / part.rows * TILE;
                progress((data.len().min((first + count) * file_tile) - first * file_tile) as u64)?;
            }
            memory.push(bytes);
        }
        let (rows, num_tiles) = (parts.iter().map(|p| p.rows).sum(), parts.iter().map(Part::num_tiles).sum());
        Ok(Self { isa, rows, cols, num_tiles, parts, memory, bias })
    }

    /// Returns the bytes that the matrix will hold after `pack`.
    ///
    /// # Errors
    /// `Internal`, as for `pack`.
    pub fn packed_bytes(isa: Isa, views: &[LinearPart<'_>]) -> Result<u64> {
        let Plan { bytes, num_biases, .. } = Plan::new(isa, views)?;
        Ok((bytes + num_biases * size_of::<f32>()) as u64)
    }

    /// Returns the outputs of all parts.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> u64 {
        (self.memory.iter().map(|part| part.len()).sum::<usize>() + size_of_val(&self.bias[..])) as u64
    }

    /// Returns `(tensor type, kernel name)` of each part, for `doctor`.
    pub fn kernels(&self) -> Vec<(GgmlType, &'static str)> {
        self.parts.iter().map(|p| (p.ggml_type, self.isa.name())).collect()
    }

    /// Decodes one row (embedding lookup) into `out`, `[cols()]`, exactly as `quant::dequantize` does.
    ///
    /// # Panics
    /// If `row` is not below `rows()`, or `out` does not have `cols()` elements.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols);
        if let Some((index, part)) = self.parts.iter().enumerate().rev().find(|(_, p)| p.first_row <= row) {
            let row = row - part.first_row;
            part.dequantize_row(self.tile(index, row / TILE), row % TILE, out);
        }
    }

    /// Returns tile `index` of part `part`.
    fn tile(&self, part: usize, index: usize) -> &[u8] {
        let bytes = self.parts[part].tile_bytes;
        &self.memory[part][index * bytes..][..bytes]
    }

    /// Computes `out[r * rows() + o] = Σ_c W[o][c] · x[r * cols() + c] (+ bias[o])` for `r < num_rows`, or `+=` with
    /// `Store::Add`.
    ///
    /// # Panics
    /// If `x` or `out` is too short, or `scratch` was allocated for fewer columns.
    pub fn multiply(
        &self,
        x: &[f32],
        num_rows: usize,
        out: &mut [f32],
        store: Store,
        scratch: &mut LinearScratch,
        pool: &ThreadPool,
    ) {
        let (cols, stride) = (self.cols, self.rows);
        let (x, out) = (&x[..num_rows * cols], &mut out[..num_rows * stride]);
        self.multiply_inputs(Inputs::of_rows(x, num_rows, cols), out, [stride, stride], store, scratch, pool);
    }

    /// Multiplies each part of the stack, which belongs to one head, with the head's own inputs. Heads have `x_head`
    /// columns in a row of `x` and `out_head` in a row of `out`. A part reads and writes the first columns of its head.
    ///
    /// # Panics
    /// If `x` or `out` is too short, or `scratch` was allocated for fewer columns than the inputs of all heads.
    pub fn multiply_heads(
        &self,
        (x, x_head): (&[f32], usize),
        num_rows: usize,
        (out, out_head): (&mut [f32], usize),
        scratch: &mut LinearScratch,
        pool: &ThreadPool,
    ) {
        let heads = self.parts.len();
        let (stride, out_stride) = (heads * x_head, heads * out_head);
        let (x, out) = (&x[..num_rows * stride], &mut out[..num_rows * out_stride]);
        let inputs = Inputs { x, rows: num_rows, cols: self.cols, stride, heads, head_stride: x_head, first_group: 0 };
        self.multiply_inputs(inputs, out, [out_stride, out_head], Store::Assign, scratch, pool);
    }

    /// Multiplies in passes of as many rows as the scratch holds. The strides of `out` are those of rows and of heads.
    fn multiply_inputs(
        &self,
        inputs: Inputs<'_>,
        out: &mut [f32],
        [stride, head_stride]: [usize; 2],
        store: Store,
        scratch: &mut LinearScratch,
        pool: &ThreadPool,
    ) {
        let all_cols = inputs.heads * self.cols;
        assert!(all_cols <= scratch.max_cols(), "scratch for {} columns, not {all_cols}", scratch.max_cols());
        let pass = scratch.rows();
        for (x, out) in inputs.x.chunks(pass * inputs.stride).zip(out.chunks_mut(pass * stride)) {
            let inputs = Inputs { x, rows: x.len() / inputs.stride, ..inputs };
            let outputs = Outputs { out: &Split::new(out), first: 0, stride, head_stride, store };
            multiply_pass(&[Pass { matrix: self, inputs, outputs }], scratch, pool);
        }
    }

    /// Multiplies one tile of the stack with a range of row groups.
    fn multiply_tile(
        &self,
        mut tile: usize,
        groups: std::ops::Range<usize>,
        inputs: Inputs<'_>,
        outputs: Outputs<'_>,
        scratch: &LinearScratch,
        lines: &mut Vec<Line>,
    ) {
        let Some((index, part)) = self.parts.iter().enumerate().find(|(_, p)| {
            let here = tile < p.num_tiles();
            tile -= if here { 0 } else { p.num_tiles() };
            here
        }) else {
            return;
        };
        let Outputs { out, first, stride, head_stride, store } = outputs;
        // All parts of a stack with one head share their inputs.
        let (head, first_row) = if inputs.heads == 1 { (0, part.first_row) } else { (index, index * head_stride) };
        let memory = self.tile(index, tile);
        let lanes = TILE.min(part.rows - tile * TILE);
        let first_out = first_row + tile * TILE;
        let bias = part.bias.map(|at| &self.bias[at + tile * TILE..][..TILE]);
        let (steps, kernels) = match &part.storage {
            Storage::Blocks(_, kernels) => (self.cols / BLOCK, kernels),
            Storage::Floats(_, kernels) => (self.cols, kernels),
        };
        let codes = if groups.len() > 1 {
            // SAFETY: `isa` belongs to this machine, and the tile is packed for these kernels.
            unsafe { kernels.make_codes(memory, steps, lines) }
        } else {
            std::ptr::null()
        };
        for index in groups {
            let rows = GROUP.min(inputs.rows - index * GROUP);
            let group = padded_group(rows);
            let of_all = inputs.first_group + head * inputs.groups_of_head() + index;
            let activations = match part.storage {
                Storage::Blocks(..) => scratch.quantized_group(of_all, self.cols),
                _ => scratch.float_group(of_all, self.cols),
            };
            let args = TileArgs {
                weights: memory.as_ptr(),
                codes,
                steps,
                activations,
                group,
                rows,
                out: out.pointer(first + index * GROUP * stride + first_out),
                out_stride: stride,
                add: store == Store::Add,
                lanes,
                scale: part.scale,
                bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
                near: prefetches_near(),
            };
            // SAFETY: `isa` belongs to this machine. The tile holds `steps` steps of 16 rows, the scratch `steps` steps
            // of `group` rows (prepared by `multiply_inputs`), and the bias 16 values. `rows` rows of `out`,
            // `out_stride` apart, have room for `lanes` outputs from here, and no other chunk writes them.
            unsafe { kernels.for_group(group)(&args) };
        }
    }
}

/// The destination of products.
#[derive(Clone, Copy)]
struct Outputs<'a> {
    out: &'a Split<'a, f32>,
    /// The place of the first row.
    first: usize,
    /// Distance in columns between rows, and between the outputs of heads.
    stride: usize,
    head_stride: usize,
    store: Store,
}

/// A product of a few rows, whose groups fit in the scratch.
#[derive(Clone, Copy)]
struct Pass<'a> {
    matrix: &'a PackedMatrix,
    inputs: Inputs<'a>,
    outputs: Outputs<'a>,
}

/// Computes products with equally many inputs and disjoint outputs. A chunk is a range of tiles, and also a range of
/// row groups if there are too few tiles for the threads.
fn multiply_pass(passes: &[Pass<'_>], scratch: &mut LinearScratch, pool: &ThreadPool) {
    let Some(isa) = passes.first().map(|pass| pass.matrix.isa) else { return };
    let inputs: Vec<_> = passes.iter().map(|pass| pass.inputs).collect();
    let needs = |is_needed: fn(&Storage) -> bool| {
        passes.iter().any(|pass| pass.matrix.parts.iter().any(|part| is_needed(&part.storage)))
    };
    if needs(|storage| matches!(storage, Storage::Blocks(..))) {
        scratch.quantize(isa, &inputs, pool);
    }
    if needs(|storage| matches!(storage, Storage::Floats(..))) {
        scratch.interleave(&inputs, pool);
    }
    let wanted = pool.num_threads() * CHUNKS_PER_THREAD;
    let tiles: usize = passes.iter().map(|pass| pass.matrix.num_tiles).sum();
    let tiles_per_chunk = (tiles / wanted).max(1);
    let tile_chunks = tiles.div_ceil(tiles_per_chunk);
    let groups_per_chunk = |pass: &Pass<'_>| {
        let num_groups = pass.inputs.groups_of_head();
        (num_groups * tile_chunks).div_ceil(wanted).clamp(1, num_groups)
    };
    let group_chunks = |pass: &Pass<'_>| pass.inputs.groups_of_head().div_ceil(groups_per_chunk(pass));
    let jobs = Jobs::of(passes.iter().map(|p| p.matrix.num_tiles.div_ceil(tiles_per_chunk) * group_chunks(p)));
    let scratch = &*scratch;
    pool.run(jobs.chunks(), &|chunk| {
        let (which, chunk) = jobs.find(chunk);
        let pass = &passes[which];
        let Pass { matrix, inputs, outputs } = *pass;
        let first_tile = chunk / group_chunks(pass) * tiles_per_chunk;
        let first_group = chunk % group_chunks(pass) * groups_per_chunk(pass);
        let groups = first_group..inputs.groups_of_head().min(first_group + groups_per_chunk(pass));
        CODES_OF_TILE.with_borrow_mut(|lines| {
            for tile in first_tile..matrix.num_tiles.min(first_tile + tiles_per_chunk) {
                matrix.multiply_tile(tile, groups.clone(), inputs, outputs, scratch, lines);
            }
        });
    });
}
