//! Ops on rows of activations: embedding, norm and change of format, gated activation, gather.

use super::GpuStep;
use crate::backend::gpu::args::{EmbedArgs, Format, GATED_COLS, GatedArgs, GatherArgs, PrepareArgs};
use crate::backend::gpu::buffer::{Buffer, TILE_COLS, count};
use crate::backend::gpu::checks::Check;
use crate::backend::gpu::compute::Compute;
use crate::backend::gpu::kernel::{EMBED, GATED_ACTIVATION, GATHER_ROWS, ONCE, PREPARE};
use crate::backend::gpu::launcher::Launcher;
use crate::backend::gpu::{DevicePtr, GpuBackend};
use crate::backend::{self, Activation, Embed, GatedActivation, GatherRows};
use crate::{Error, Result};

/// RMSNorm of rows that a product takes, or `None` for the rows as they are.
pub(in super::super) type Norm<'a> = Option<backend::Norm<'a, GpuBackend>>;

/// Weights and epsilon of the norm of rows of `cols`, as kernels take them.
pub(super) fn norm_args(norm: Norm<'_>, cols: usize) -> Result<(DevicePtr, f32)> {
    norm.map_or(Ok((DevicePtr::NULL, 0.0)), |norm| Ok((norm.weight.read(cols)?, norm.eps)))
}

pub(super) fn embed(step: &mut GpuStep<'_>, args: Embed<'_, GpuBackend>) -> Result<()> {
    let Embed { table, scale, out } = args;
    step.inputs.check(step.batch, Check::TokenIds { rows: table.rows })?;
    let [segment] = &table.segments[..] else {
        return Err(Error::internal("an embedding table of several types"));
    };
    let rows = step.tokens;
    let args = EmbedArgs {
        table: segment.tiles,
        token_ids: step.inputs.token_ids(),
        out: out.write("embed's output", rows, table.cols, Format::F32)?,
        rows: count(rows)?,
        cols: count(table.cols)?,
        scale,
    };
    if rows == 0 {
        return Ok(());
    }
    let launcher = &step.compute.launcher;
    let grid = [count(rows)?, count(table.cols.div_ceil(TILE_COLS))?, 1];
    // SAFETY: see `ops`; ids were checked against the table.
    unsafe { launcher.launch(EMBED, segment.ty, grid, &args) }
}

pub(super) fn gather_rows(step: &mut GpuStep<'_>, args: GatherRows<'_, GpuBackend>) -> Result<()> {
    let GatherRows { x, cols, out } = args;
    let rows = step.logits;
    let needed = step.batch.logits_indices.iter().max().map_or(0, |&index| index as usize + 1);
    let args = GatherArgs {
        x: x.read("gather_rows' input", needed.max(step.tokens.min(rows)), cols)?,
        indices: step.inputs.logits_indices(),
        out: out.write("gather_rows' output", rows, cols, Format::F32)?,
        rows: count(rows)?,
        cols: count(cols)?,
        format_in: x.format,
    };
    if rows == 0 {
        return Ok(());
    }
    let launcher = &step.compute.launcher;
    // SAFETY: see `ops`; the indices were checked against the batch's tokens.
    unsafe { launcher.launch(GATHER_ROWS, ONCE, [count(rows)?, 1, 1], &args) }
}

impl Launcher {
    /// `out = x`, or its norm, in `format`.
    pub(in super::super) fn prepare(
        &self,
        x: &Buffer,
        norm: Norm<'_>,
        rows: usize,
        cols: usize,
        out: &mut Buffer,
        format: Format,
    ) -> Result<()> {
        let (norm, eps) = norm_args(norm, cols)?;
        let args = PrepareArgs {
            x: x.read("the input of a norm or conversion", rows, cols)?,
            norm,
            out: out.write("the output of a norm or conversion", rows, cols, format)?,
            places: DevicePtr::NULL,
            rows: count(rows)?,
            cols: count(cols)?,
            format_in: x.format,
            format_out: format,
            eps,
            share: 1,
        };
        if rows == 0 {
            return Ok(());
        }
        // SAFETY: see `ops`.
        unsafe { self.launch(PREPARE, ONCE, [count(rows)?, 1, 1], &args) }
    }

    /// `gated_activation` at addresses that have room for it.
    pub(super) fn gated_activation(
        &self,
        gate_up: DevicePtr,
        format_in: Format,
        rows: usize,
        cols: usize,
        out: DevicePtr,
        format_out: Format,
    ) -> Result<()> {
        let args = GatedArgs { gate_up, out, rows: count(rows)?, cols: count(cols)?, format_in, format_out };
        if rows == 0 {
            return Ok(());
        }
        // The padding is stored too.
        let stored = if format_out.is_f32() { cols } else { cols.next_multiple_of(256) };
        let grid = [count(rows)?, count(stored.div_ceil(GATED_COLS as usize))?, 1];
        // SAFETY: see `ops`.
        unsafe { self.launch(GATED_ACTIVATION, ONCE, grid, &args) }
    }
}

impl Compute {
    /// Brings `x` into the buffer of conversions, in `format`.
    pub(in super::super) fn convert(&mut self, x: &Buffer, rows: usize, cols: usize, format: Format) -> Result<()> {
        self.launcher.prepare(x, None, rows, cols, &mut self.workspace.conversion, format)
    }

    pub(super) fn gated_activation(&self, args: GatedActivation<'_, GpuBackend>) -> Result<()> {
        let GatedActivation { gate_up, activation: Activation::Silu, rows, cols, out } = args;
        let format = self.activation_format(self.common, rows);
        let out = out.write("the activation's output", rows, cols, format)?;
        let from = gate_up.read("gate and up", rows, 2 * cols)?;
        self.launcher.gated_activation(from, gate_up.format, rows, cols, out, format)
    }
}
