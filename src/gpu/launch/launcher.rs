//! Queues the engine's kernels on its one stream, and holds the numbers that every launch plan depends on.

use std::cell::Cell;

use super::args::{Format, NORM_PARTS_BLOCKS, NormCode, NormRowsArgs};
use super::catalog::{Kernel, NORM_ROWS_OF_PARTS, ONCE, Variant};
use super::engine_functions::Functions;
use crate::Result;
use crate::tuning::Tuning;
use crate::{DevicePtr, Function, KernelArgs, Stream};

/// Partial sums of a split product in the workspace. The product's output is not complete before they are added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    /// The output, `rows` rows of `cols` f32.
    pub out: DevicePtr,
    pub rows: u32,
    pub cols: u32,
    /// The partial sums: as many such rows for each part.
    pub parts: DevicePtr,
    pub num_parts: u32,
}

impl Left {
    /// Returns the arguments of the kernel that only adds them to the output.
    pub(super) fn added(self) -> NormRowsArgs {
        let Self { out, rows, cols, parts, num_parts } = self;
        NormRowsArgs {
            x: out,
            norm: DevicePtr::NULL,
            bias: DevicePtr::NULL,
            out,
            rows,
            cols,
            x_stride: cols,
            out_stride: cols,
            format_in: Format::F32,
            format_out: Format::F32,
            kind: NormCode::Rms,
            flags: 0,
            eps: 0.0,
            factor: 1.0,
            num_parts,
            parts,
            scales: DevicePtr::NULL,
        }
    }
}

/// All kernels of a step go through `launch`, which reduces a split product's partial sums before anything reads its
/// output. Either the reading kernel adds them (`take_left`), or a separate kernel does so before the next launch.
pub struct Launcher {
    stream: Stream,
    functions: Functions,
    multiprocessors: u32,
    tuning: Tuning,
    left: Cell<Option<Left>>,
}

impl Launcher {
    pub fn new(stream: Stream, functions: Functions, tuning: Tuning) -> Self {
        let multiprocessors = stream.device().properties().multiprocessors;
        Self { stream, functions, multiprocessors, tuning, left: Cell::new(None) }
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// True if this kernel was loaded with the model.
    pub fn has<A>(&self, kernel: Kernel<A>, variant: impl Into<Variant>) -> bool {
        self.functions.has(kernel, variant)
    }

    /// Returns a kernel that was loaded with the model.
    ///
    /// # Errors
    /// See `Functions::get`.
    pub fn function<A>(&self, kernel: Kernel<A>, variant: impl Into<Variant>) -> Result<&Function> {
        self.functions.get(kernel, variant)
    }

    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Returns the tuning table, on which every launch plan depends.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Returns the blocks of `norm_rows_of_parts` for this many rows.
    pub(crate) fn norm_parts_blocks(&self, rows: u32) -> u32 {
        if self.tuning.matmul.wgmma { rows.saturating_mul(NORM_PARTS_BLOCKS) } else { rows }
    }

    /// Notes the partial sums that the last product has left.
    pub(crate) fn leave(&self, left: Left) {
        self.left.set(Some(left));
    }

    /// Takes the partial sums that the last product has left for this output. The caller's launch adds them.
    pub(crate) fn take_left(&self, out: DevicePtr, rows: u32, cols: u32) -> Option<Left> {
        let left = self.left.get().filter(|left| (left.out, left.rows, left.cols) == (out, rows, cols));
        left.inspect(|_| self.left.set(None))
    }

    /// Completes the output of the last product. Call it before other code queues work on the stream.
    ///
    /// # Errors
    /// See `launch`.
    pub(crate) fn settle(&self) -> Result<()> {
        let Some(left) = self.left.take() else { return Ok(()) };
        let grid = [self.norm_parts_blocks(left.rows), 1, 1];
        // SAFETY: the output and the workspace are those of the product, which was queued in this step.
        unsafe { self.stream.launch(self.function(NORM_ROWS_OF_PARTS, ONCE)?, grid, &left.added()) }
    }

    /// Forgets partial sums: the step has failed, and nothing reads its outputs.
    pub(crate) fn forget_left(&self) {
        self.left.set(None);
    }

    /// Queues a kernel with the arguments that the table gives it. Partial sums of the last product are added before
    /// it.
    ///
    /// # Errors
    /// See `Functions::get` and `Stream::launch`.
    ///
    /// # Safety
    /// The conditions of `Stream::launch` hold. The types ensure that the arguments are the kernel's.
    pub unsafe fn launch<A: KernelArgs>(
        &self,
        kernel: Kernel<A>,
        variant: impl Into<Variant>,
        grid: [u32; 3],
        args: &A,
    ) -> Result<()> {
        self.settle()?;
        // SAFETY: the caller's promise, and the table's.
        unsafe { self.stream.launch(self.function(kernel, variant)?, grid, args) }
    }
}
