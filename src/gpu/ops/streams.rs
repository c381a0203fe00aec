//! Ops on several hidden streams per token, and sparse gates.

use crate::GpuBackend;
use crate::Result;
use crate::backend::{LevelRows, STREAMS, Sparsify, Streams};
use crate::buffer::{Buffer, count};
use crate::gpu_backend::gpu_step::GpuStep;
use crate::launch::args::{Format, LevelRowsArgs, STREAM_COLS, SparsifyArgs, StreamsArgs};
use crate::launch::catalog::{Kernel, LEVEL_ROWS, ONCE, SPARSIFY};

pub(super) fn sparsify(step: &mut GpuStep<'_>, args: Sparsify<'_, GpuBackend>) -> Result<()> {
    let Sparsify { x, rows, cols, deviations } = args;
    let x = x.read_f32("the gates that are made sparse", rows, 2 * cols)?.ptr();
    if rows == 0 {
        return Ok(());
    }
    let args = SparsifyArgs { x, cols: count(cols)?, deviations };
    // SAFETY: see `ops`.
    unsafe { step.compute.launcher().launch(SPARSIFY, ONCE, [count(rows)?, 1, 1], &args) }
}

pub(super) fn level_rows(step: &mut GpuStep<'_>, args: LevelRows<'_, GpuBackend>) -> Result<()> {
    let LevelRows { x, like, rows, cols, least, out } = args;
    let args = LevelRowsArgs {
        x: x.read_f32("the rows that are levelled", rows, cols)?.ptr(),
        like: like.read_f32("the rows of the wanted level", rows, cols)?.ptr(),
        out: out.write("the levelled rows", rows, cols, Format::F32)?.ptr(),
        cols: count(cols)?,
        least,
    };
    if rows == 0 {
        return Ok(());
    }
    // SAFETY: see `ops`.
    unsafe { step.compute.launcher().launch(LEVEL_ROWS, ONCE, [count(rows)?, 1, 1], &args) }
}

/// Launches `kernel`, which predicts or corrects streams by this number of coefficients per stream.
pub(super) fn change(
    step: &mut GpuStep<'_>,
    kernel: Kernel<StreamsArgs>,
    coefficients: usize,
    args: Streams<'_, GpuBackend>,
) -> Result<()> {
    let Streams { routed, weight, scale, rows, cols, active, predicted, others } = args;
    let stream = |stream: &Buffer| -> Result<_> { Ok(stream.read_f32("a stream", rows, cols)?.ptr()) };
    let args = StreamsArgs {
        routed: routed.read_f32("the router of streams", rows, STREAMS)?.ptr(),
        weight: weight.read(coefficients * STREAMS * STREAMS)?.ptr(),
        active: stream(active)?,
        predicted: stream(predicted)?,
        first: stream(&others[0])?,
        second: stream(&others[1])?,
        third: stream(&others[2])?,
        cols: count(cols)?,
        scale,
    };
    if rows == 0 {
        return Ok(());
    }
    let grid = [count(rows)?, args.cols.div_ceil(STREAM_COLS), 1];
    // SAFETY: see `ops`.
    unsafe { step.compute.launcher().launch(kernel, ONCE, grid, &args) }
}
