//! Ops on rows of activations: embedding, norm and change of format, gated activation, gather.

use crate::backend::Activation;
use crate::backend::gpu::DevicePtr;
use crate::backend::gpu::args::{EmbedArgs, Format, GatedArgs, GatherArgs, PrepareArgs};
use crate::backend::gpu::backend::GpuBackend;
use crate::backend::gpu::buffer::{Buffer, Matrix, TILE_COLS, Vector, count};
use crate::backend::gpu::checks::Check;
use crate::backend::gpu::tuning;
use crate::batch::Batch;
use crate::{Error, Result};

/// Columns of a block of `gated_activation`; `GATED_COLS` in `args.h`.
const GATED_COLS: usize = 2048;

/// RMSNorm of rows that an op takes, or `None` for the rows as they are.
pub(in super::super) type Norm<'a> = Option<(&'a Vector, f32)>;

/// Weights and epsilon of the norm of rows of `cols`, as kernels take them.
pub(super) fn norm_args(norm: Norm<'_>, cols: usize) -> Result<(DevicePtr, f32)> {
    norm.map_or(Ok((DevicePtr::NULL, 0.0)), |(weight, eps)| Ok((weight.read(cols)?, eps)))
}

impl GpuBackend {
    /// The format in which a product takes its activations, `on_units` being that of the matrix kernels.
    pub(in super::super) fn activation_format(&self, on_units: Option<Format>, rows: usize) -> Format {
        tuning::activation_format(on_units, rows, self.options.batch_invariant, self.vendor_rows())
    }

    pub(in super::super) fn embed_rows(
        &mut self,
        table: &Matrix,
        batch: &Batch,
        scale: f32,
        out: &mut Buffer,
    ) -> Result<()> {
        self.inputs.check(batch, Check::TokenIds { rows: table.rows })?;
        let [segment] = &table.segments[..] else {
            return Err(Error::internal("an embedding table of several types"));
        };
        let rows = self.rows(batch)?;
        let args = EmbedArgs {
            table: segment.tiles,
            token_ids: self.inputs.token_ids(),
            out: out.write("embed's output", rows, table.cols, Format::F32)?,
            rows: count(rows)?,
            cols: count(table.cols)?,
            scale,
        };
        if rows == 0 {
            return Ok(());
        }
        let grid = [count(rows)?, count(table.cols.div_ceil(TILE_COLS))?, 1];
        // SAFETY: see `ops`; ids were checked against the table.
        unsafe { self.stream.launch(&self.functions.of(segment.ty)?.embed, grid, &args) }
    }

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
        unsafe { self.stream.launch(&self.functions.prepare, [count(rows)?, 1, 1], &args) }
    }

    /// The buffer of conversions, for a call that borrows the backend too; to be put back.
    pub(in super::super) fn take_conversion(&mut self) -> Buffer {
        let Buffer { ptr, bytes, format } = self.conversion;
        Buffer { ptr, bytes, format }
    }

    /// Brings `x` into the buffer of conversions, in `format`.
    pub(super) fn convert(&mut self, x: &Buffer, rows: usize, cols: usize, format: Format) -> Result<()> {
        let mut conversion = self.take_conversion();
        self.prepare(x, None, rows, cols, &mut conversion, format)?;
        self.conversion = conversion;
        Ok(())
    }

    pub(in super::super) fn activate(
        &mut self,
        gate_up: &Buffer,
        activation: Activation,
        rows: usize,
        cols: usize,
        out: &mut Buffer,
    ) -> Result<()> {
        let Activation::Silu = activation;
        let format = self.activation_format(self.common, rows);
        let out = out.write("the activation's output", rows, cols, format)?;
        self.activate_rows(gate_up.read("gate and up", rows, 2 * cols)?, gate_up.format, rows, cols, out, format)
    }

    /// The same at addresses that have room for it.
    pub(super) fn activate_rows(
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
        let grid = [count(rows)?, count(stored.div_ceil(GATED_COLS))?, 1];
        // SAFETY: see `ops`.
        unsafe { self.stream.launch(&self.functions.gated_activation, grid, &args) }
    }

    pub(in super::super) fn gather(&mut self, x: &Buffer, batch: &Batch, cols: usize, out: &mut Buffer) -> Result<()> {
        let from = self.rows(batch)?;
        let rows = self.graphs.recording().unwrap_or(batch.logits_indices.len());
        if batch.logits_indices.len() != self.inputs.shape.logits_rows {
            return Err(Error::internal("gather_rows on another batch than the step's"));
        }
        let needed = batch.logits_indices.iter().max().map_or(0, |&index| index as usize + 1);
        let args = GatherArgs {
            x: x.read("gather_rows' input", needed.max(from.min(rows)), cols)?,
            indices: self.inputs.logits_indices(),
            out: out.write("gather_rows' output", rows, cols, Format::F32)?,
            rows: count(rows)?,
            cols: count(cols)?,
            format_in: x.format,
        };
        if rows == 0 {
            return Ok(());
        }
        // SAFETY: see `ops`; the indices were checked against the batch's tokens.
        unsafe { self.stream.launch(&self.functions.gather_rows, [count(rows)?, 1, 1], &args) }
    }
}
