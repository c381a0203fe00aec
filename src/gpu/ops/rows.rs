//! Ops on rows of activations: embedding, norm and conversion, gated activation, gather.

use crate::backend::{
    self, Activate, Activation, AddNorm, AddRows, Cap, Embed, GateColumns, GateHeads, GateRows, GatedActivation,
    GatherRows, NormInPlace, NormKind, NormRows, ScaleRows, TableRow, VectorShape, Xielu,
};
use crate::buffer::{Buffer, TILE_COLS, count};
use crate::compute::Compute;
use crate::gpu_backend::gpu_step::GpuStep;
use crate::launch::args::{
    ACTIVATION_COLS, ADD_ROWS_COLS, ActivationArgs, AddRowsArgs, EmbedArgs, Format, GATE_HEADS_COLS, GATED_COLS,
    GateColumnsArgs, GateHeadsArgs, GateRowsArgs, GatedArgs, GatherArgs, LINEAR_ADD, NormCode, NormRowsArgs,
    SCALE_COLS, ScaleRowsArgs,
};
use crate::launch::catalog::{
    ACTIVATION, ADD_ROWS, EMBED, GATE_COLUMNS, GATE_HEADS, GATE_ROWS, GATED_ACTIVATION, GATED_ACTIVATION_FP8,
    GATHER_ROWS, NORM_ROWS, NORM_ROWS_FP8, NORM_ROWS_OF_PARTS, NORM_ROWS_OTHER, ONCE, SCALE_ROWS,
};
use crate::launch::launcher::Launcher;
use crate::step::checks::Check;
use crate::{DevicePtr, DeviceSlice, GpuBackend};
use crate::{Error, Result};

/// The norm of rows before a product, or `None` for unchanged rows.
pub(crate) type Norm<'a> = Option<backend::Norm<'a, GpuBackend>>;

/// True if a norm divides by the root mean square and adds nothing. `gemv` can fuse that.
pub(super) fn is_plain(norm: Norm<'_>) -> bool {
    norm.is_none_or(|norm| norm.kind == NormKind::Rms && norm.bias.is_none())
}

/// Returns weights and epsilon of the norm of rows of `cols`, in the form that `gemv` takes.
///
/// # Errors
/// `Error::Internal` for a norm that is not plain.
pub(super) fn gemv_norm(norm: Norm<'_>, cols: usize) -> Result<(Option<DeviceSlice<'_>>, f32)> {
    match norm {
        None => Ok((None, 0.0)),
        Some(norm) if is_plain(Some(norm)) => Ok((Some(norm.weight.read(cols)?), norm.eps)),
        Some(norm) => Err(Error::internal(format!("a norm of kind {:?} in a product of one row", norm.kind))),
    }
}

/// Rows that go through a norm, or from one format to another.
pub(super) struct NormedRows<'b> {
    pub x: DeviceSlice<'b>,
    pub out: DeviceSlice<'b>,
    /// Scales of the 8-bit rows of `out` or of `x`; null if neither is 8-bit floats.
    pub scales: DevicePtr,
    pub rows: usize,
    pub cols: usize,
    /// f32 columns between the starts of consecutive rows of `x`.
    pub x_stride: usize,
    pub out_stride: usize,
    pub format_in: Format,
    pub format_out: Format,
    /// `LinearFlags`.
    pub flags: u32,
    /// Factor on a sum.
    pub factor: f32,
}

impl<'b> NormedRows<'b> {
    /// Returns rows of `cols` f32 columns that are changed in place, whose starts are `stride` columns apart.
    pub(super) fn in_place(at: DeviceSlice<'b>, rows: usize, cols: usize, stride: usize) -> Self {
        Self {
            x: at,
            out: at,
            scales: DevicePtr::NULL,
            rows,
            cols,
            x_stride: stride,
            out_stride: stride,
            format_in: Format::F32,
            format_out: Format::F32,
            flags: 0,
            factor: 1.0,
        }
    }
}

/// Products of gate and up, or of up alone, and the output of their activation.
pub(super) struct Gated<'b> {
    pub activation: Activation,
    /// `rows` rows of `2 * cols` columns, or of `cols`.
    pub gate_up: DeviceSlice<'b>,
    /// `rows` rows of `cols` columns.
    pub out: DeviceSlice<'b>,
    pub rows: usize,
    pub cols: usize,
    pub format_in: Format,
    pub format_out: Format,
}

impl Compute {
    /// See `Ops::norm_rows`.
    pub(crate) fn norm_rows(&self, args: NormRows<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        let cols = args.cols();
        let NormRows { x, norm, rows, out } = args;
        self.launcher().norm_rows(x, Some(norm), rows, cols, out, Format::F32)
    }

    /// See `Ops::norm_in_place`.
    pub(super) fn norm_in_place(&self, args: NormInPlace<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        let cols = args.cols();
        let NormInPlace { x, norm, rows } = args;
        let at = x.read_f32("rows that are normed in place", rows, cols)?;
        self.launcher().launch_norm_rows(&NormedRows::in_place(at, rows, cols, cols), Some(norm))
    }

    /// See `Ops::add_norm`.
    pub(super) fn add_norm(&self, args: AddNorm<'_, GpuBackend>) -> Result<()> {
        args.validate()?;
        let cols = args.cols();
        let AddNorm { x, norm, rows, out, factor } = args;
        let rows = NormedRows {
            x: x.read("the input of a norm", rows, cols)?,
            out: out.read_f32("what a norm is added to", rows, cols)?,
            scales: DevicePtr::NULL,
            rows,
            cols,
            x_stride: cols,
            out_stride: cols,
            format_in: x.format(),
            format_out: Format::F32,
            flags: LINEAR_ADD,
            factor,
        };
        self.launcher().launch_norm_rows(&rows, Some(norm))
    }
}

pub(super) fn gate_columns(step: &mut GpuStep<'_>, args: GateColumns<'_, GpuBackend>) -> Result<()> {
    let GateColumns { gate, x, x_cols, first, activation, rows, cols, out } = args;
    let compute = &step.compute;
    let format = compute.activation_format(compute.common(), rows);
    let args = GateColumnsArgs {
        gate: gate.read_f32("the gate", rows, cols)?.ptr(),
        x: x.read_f32("the columns that a gate lets pass", rows, x_cols)?.after(4 * first as u64)?.ptr(),
        out: out.write("the gate's output", rows, cols, format)?.ptr(),
        cols: count(cols)?,
        x_stride: count(x_cols)?,
        format_out: format,
        activation: activation.into(),
    };
    if rows == 0 {
        return Ok(());
    }
    let grid = activation_grid(format, rows, cols)?;
    let launcher = compute.launcher();
    // SAFETY: see `ops`.
    unsafe { launcher.launch(GATE_COLUMNS, ONCE, grid, &args) }
}

pub(super) fn activation(step: &mut GpuStep<'_>, args: Activate<'_, GpuBackend>) -> Result<()> {
    let Activate { x, activation, rows, cols, out } = args;
    let compute = &step.compute;
    let format = compute.activation_format(compute.common(), rows);
    let gate_up = x.read_f32("the activation's input", rows, cols)?;
    let out = out.write("the activation's output", rows, cols, format)?;
    let (format_in, format_out) = (Format::F32, format);
    compute.launcher().activation(&Gated { activation, gate_up, out, rows, cols, format_in, format_out })
}

pub(super) fn gate_rows(step: &mut GpuStep<'_>, args: GateRows<'_, GpuBackend>) -> Result<()> {
    let GateRows { x, norm, weight, rows, cols, out } = args;
    let hidden = weight.elements();
    let memory = out.read_any("the rows that are gated", rows, cols)?.ptr();
    // The gate multiplies the scales of 8-bit floats, which follow the rows. The rounded floats do not change.
    let (memory, cols, format_out) = match out.format() {
        Format::Fp8 => (scales(out.memory(), rows, cols)?, 1, Format::F32),
        format => (memory, cols, format),
    };
    let args = GateRowsArgs {
        x: x.read("the rows of a gate", rows, hidden)?.ptr(),
        norm: norm.map(|norm| norm.weight.read(hidden)).transpose()?.into(),
        weight: weight.read(hidden)?.ptr(),
        out: memory,
        hidden: count(hidden)?,
        cols: count(cols)?,
        format_in: x.format(),
        format_out,
        eps: norm.map_or(0.0, |norm| norm.eps),
    };
    if rows == 0 {
        return Ok(());
    }
    let launcher = step.compute.launcher();
    // SAFETY: see `ops`.
    unsafe { launcher.launch(GATE_ROWS, ONCE, [count(rows)?, 1, 1], &args) }
}

pub(super) fn gate_heads(step: &mut GpuStep<'_>, args: GateHeads<'_, GpuBackend>) -> Result<()> {
    let GateHeads { gate, function, rows, heads, cols, out } = args;
    let args = GateHeadsArgs {
        gate: gate.read_f32("the gates of heads", rows, heads)?.ptr(),
        out: out.read("the heads that are gated", rows, heads * cols)?.ptr(),
        heads: count(heads)?,
        head_cols: count(cols)?,
        function: function.into(),
        format: out.format(),
    };
    if rows == 0 {
        return Ok(());
    }
    let launcher = step.compute.launcher();
    let grid = [count(rows)?, count((heads * cols).div_ceil(GATE_HEADS_COLS as usize))?, 1];
    // SAFETY: see `ops`.
    unsafe { launcher.launch(GATE_HEADS, ONCE, grid, &args) }
}

pub(super) fn scale_rows(step: &mut GpuStep<'_>, args: ScaleRows<'_, GpuBackend>) -> Result<()> {
    let ScaleRows { x, rows, cols, columns, scale, cap } = args;
    // For the kernel, a soft cap of 0 means none.
    let (softcap, [least, most]) = match cap {
        None => (0.0, [f32::NEG_INFINITY, f32::INFINITY]),
        Some(Cap::Soft(cap)) => (cap, [f32::NEG_INFINITY, f32::INFINITY]),
        Some(Cap::Hard(range)) => (0.0, range),
    };
    let (format, x) = (x.format(), x.read("the values that are scaled", rows, cols)?.ptr());
    let (first, end) = (count(columns.start)?, count(columns.end)?);
    let args = ScaleRowsArgs { x, cols: count(cols)?, first, end, format, scale, softcap, least, most };
    if rows == 0 {
        return Ok(());
    }
    let launcher = step.compute.launcher();
    let grid = [count(rows)?, count(cols.div_ceil(SCALE_COLS as usize))?, 1];
    // SAFETY: see `ops`.
    unsafe { launcher.launch(SCALE_ROWS, ONCE, grid, &args) }
}

/// Returns the grid of a launch whose blocks have `ACTIVATION_COLS` stored columns of a row each.
fn activation_grid(format: Format, rows: usize, cols: usize) -> Result<[u32; 3]> {
    Ok([count(rows)?, count(stored_cols(format, cols).div_ceil(ACTIVATION_COLS as usize))?, 1])
}

/// Returns the address of the scales of 8-bit rows, which follow the rows.
fn scales(rows_at: DeviceSlice<'_>, rows: usize, cols: usize) -> Result<DevicePtr> {
    Ok(rows_at.after(Format::fp8_bytes(rows, cols)[0])?.ptr())
}

/// Returns the stored columns of rows of `cols`, including padding.
fn stored_cols(format: Format, cols: usize) -> usize {
    if format.is_f32() { cols } else { cols.next_multiple_of(TILE_COLS) }
}

pub(super) fn embed(step: &mut GpuStep<'_>, args: Embed<'_, GpuBackend>) -> Result<()> {
    let Embed { table, scale, out } = args;
    step.inputs.check(step.batch, Check::TokenIds { rows: table.rows })?;
    let [segment] = &table.segments[..] else {
        return Err(Error::internal("an embedding table of several types"));
    };
    let rows = step.tokens;
    let args = EmbedArgs {
        table: segment.tiles.ptr(),
        token_ids: step.inputs.token_ids()?.ptr(),
        out: out.write("embed's output", rows, table.cols, Format::F32)?.ptr(),
        rows: count(rows)?,
        cols: count(table.cols)?,
        scale,
    };
    if rows == 0 {
        return Ok(());
    }
    let launcher = step.compute.launcher();
    let grid = [count(rows)?, count(table.cols.div_ceil(TILE_COLS))?, 1];
    // SAFETY: see `ops`; ids were checked against the table.
    unsafe { launcher.launch(EMBED, segment.ty, grid, &args) }
}

pub(super) fn add_rows(step: &mut GpuStep<'_>, args: AddRows<'_, GpuBackend>) -> Result<()> {
    let table_rows = args.table_rows();
    let AddRows { table, cols, row, out } = args;
    let rows = step.tokens;
    step.inputs.check(step.batch, Check::TableRows { row, rows: table_rows })?;
    let (positions, token_ids, separator) = match row {
        TableRow::OfPosition => (Some(step.inputs.positions()?), None, 0),
        TableRow::First => (None, None, 0),
        TableRow::SecondBehind(token) => (Some(step.inputs.positions()?), Some(step.inputs.token_ids()?), token),
    };
    let args = AddRowsArgs {
        table: table.read(table_rows * cols)?.ptr(),
        positions: positions.into(),
        token_ids: token_ids.into(),
        out: out.read_f32("what rows of a table are added to", rows, cols)?.ptr(),
        cols: count(cols)?,
        separator,
    };
    if rows == 0 {
        return Ok(());
    }
    let launcher = step.compute.launcher();
    let grid = [count(rows)?, count(cols.div_ceil(ADD_ROWS_COLS as usize))?, 1];
    // SAFETY: see `ops`; rows of the table, and where sequences begin, were checked.
    unsafe { launcher.launch(ADD_ROWS, ONCE, grid, &args) }
}

pub(super) fn gather_rows(step: &mut GpuStep<'_>, args: GatherRows<'_, GpuBackend>) -> Result<()> {
    let GatherRows { x, cols, out } = args;
    let rows = step.logits;
    let needed = step.batch.logits_indices.iter().max().map_or(0, |&index| index as usize + 1);
    let args = GatherArgs {
        x: x.read("gather_rows' input", needed.max(step.tokens.min(rows)), cols)?.ptr(),
        indices: step.inputs.logits_indices()?.ptr(),
        out: out.write("gather_rows' output", rows, cols, Format::F32)?.ptr(),
        rows: count(rows)?,
        cols: count(cols)?,
        format_in: x.format(),
    };
    if rows == 0 {
        return Ok(());
    }
    let launcher = step.compute.launcher();
    // SAFETY: see `ops`; the indices were checked against the batch's tokens.
    unsafe { launcher.launch(GATHER_ROWS, ONCE, [count(rows)?, 1, 1], &args) }
}

impl Launcher {
    /// Computes `out = x`, or its norm, in `format`.
    pub(crate) fn norm_rows(
        &self,
        x: &Buffer,
        norm: Norm<'_>,
        rows: usize,
        cols: usize,
        out: &mut Buffer,
        format: Format,
    ) -> Result<()> {
        let format_in = x.format();
        let x = x.read_any("the input of a norm or conversion", rows, cols)?;
        let out = out.write("the output of a norm or conversion", rows, cols, format)?;
        let rows = NormedRows {
            x,
            out,
            scales: match (format_in, format) {
                (_, Format::Fp8) => scales(out, rows, cols)?,
                (Format::Fp8, _) => scales(x, rows, cols)?,
                _ => DevicePtr::NULL,
            },
            rows,
            cols,
            x_stride: cols,
            out_stride: cols,
            format_in,
            format_out: format,
            flags: 0,
            factor: 1.0,
        };
        self.launch_norm_rows(&rows, norm)
    }

    /// Rounds consecutive rows in a matrix library's layout to 8-bit floats. `out` holds the floats and their scales.
    pub(crate) fn round_to_fp8(
        &self,
        x: DeviceSlice<'_>,
        format_in: Format,
        [rows, cols]: [usize; 2],
        [out, scales]: [DeviceSlice<'_>; 2],
    ) -> Result<()> {
        let (scales, format_out) = (scales.ptr(), Format::Fp8);
        let rows = NormedRows { x, out, scales, format_in, format_out, ..NormedRows::in_place(x, rows, cols, cols) };
        self.launch_norm_rows(&rows, None)
    }

    /// Launches `norm_rows` in memory that is large enough.
    pub(super) fn launch_norm_rows(&self, normed: &NormedRows<'_>, norm: Norm<'_>) -> Result<()> {
        let &NormedRows { x, out, scales, rows, cols, x_stride, out_stride, format_in, format_out, flags, factor } =
            normed;
        let bias = norm.and_then(|norm| norm.bias);
        // The norm also completes rows with pending partial sums, if its kernel can.
        let takes = is_plain(norm) && format_in.is_f32() && x_stride == cols && flags == 0 && format_out != Format::Fp8;
        let left = if takes { self.take_left(x.ptr(), count(rows)?, count(cols)?) } else { None };
        let args = NormRowsArgs {
            x: x.ptr(),
            norm: norm.map(|norm| norm.weight.read(cols)).transpose()?.into(),
            bias: bias.map(|bias| bias.read(cols)).transpose()?.into(),
            out: out.ptr(),
            rows: count(rows)?,
            cols: count(cols)?,
            x_stride: count(x_stride)?,
            out_stride: count(out_stride)?,
            format_in,
            format_out,
            kind: norm.map_or(NormCode::Rms, |norm| norm.kind.into()),
            flags,
            eps: norm.map_or(0.0, |norm| norm.eps),
            factor,
            num_parts: left.map_or(0, |left| left.num_parts),
            parts: left.map_or(DevicePtr::NULL, |left| left.parts),
            scales,
        };
        if rows == 0 {
            return Ok(());
        }
        let (kernel, blocks) = match left {
            _ if format_out == Format::Fp8 => (NORM_ROWS_FP8, args.rows),
            Some(_) => (NORM_ROWS_OF_PARTS, self.norm_parts_blocks(args.rows)),
            None if is_plain(norm) && format_in != Format::Fp8 => (NORM_ROWS, args.rows),
            None => (NORM_ROWS_OTHER, args.rows),
        };
        // SAFETY: see `ops`.
        unsafe { self.launch(kernel, ONCE, [blocks, 1, 1], &args) }
    }

    /// Launches `activation` on f32 products of up alone, in memory that is large enough.
    pub(super) fn activation(&self, products: &Gated<'_>) -> Result<()> {
        let &Gated { activation, gate_up: x, rows, cols, out, format_out, .. } = products;
        let Xielu { positive, negative, slope, eps } = match activation {
            Activation::Xielu(xielu) => xielu,
            _ => Xielu { positive: 0.0, negative: 0.0, slope: 0.0, eps: 0.0 },
        };
        let args = ActivationArgs {
            x: x.ptr(),
            out: out.ptr(),
            cols: count(cols)?,
            format_out,
            activation: activation.into(),
            positive,
            negative,
            slope,
            eps,
        };
        if rows == 0 {
            return Ok(());
        }
        let grid = activation_grid(format_out, rows, cols)?;
        // SAFETY: see `ops`.
        unsafe { self.launch(ACTIVATION, ONCE, grid, &args) }
    }

    /// Launches `gated_activation` in memory that is large enough.
    pub(super) fn gated_activation(&self, gated: &Gated<'_>) -> Result<()> {
        let &Gated { activation, gate_up, rows, cols, out, format_in, format_out } = gated;
        let is_fp8 = format_out == Format::Fp8;
        let scales = if is_fp8 { scales(out, rows, cols)? } else { DevicePtr::NULL };
        let (rows, cols, stored) = (count(rows)?, count(cols)?, stored_cols(format_out, cols));
        let (gate_up, out, activation) = (gate_up.ptr(), out.ptr(), activation.into());
        let args = GatedArgs { gate_up, out, scales, rows, cols, format_in, format_out, activation };
        if rows == 0 {
            return Ok(());
        }
        let blocks = if is_fp8 { 1 } else { count(stored.div_ceil(GATED_COLS as usize))? };
        let kernel = if is_fp8 { GATED_ACTIVATION_FP8 } else { GATED_ACTIVATION };
        // SAFETY: see `ops`.
        unsafe { self.launch(kernel, ONCE, [rows, blocks, 1], &args) }
    }
}

impl Compute {
    pub(super) fn gated_activation(&self, args: GatedActivation<'_, GpuBackend>, format: Format) -> Result<()> {
        let GatedActivation { gate_up, activation, rows, cols, out } = args;
        let out = out.write("the activation's output", rows, cols, format)?;
        let from = gate_up.read("gate and up", rows, 2 * cols)?;
        let (format_in, format_out) = (gate_up.format(), format);
        self.launcher().gated_activation(&Gated { activation, gate_up: from, rows, cols, out, format_in, format_out })
    }
}
