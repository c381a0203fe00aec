//! Products with weights. One row goes through `gemv`, straight from the quantised tiles. More rows go through the
//! matrix units, or, with f32 weights, through the vector units.
//!
//! Common stacks of two types have kernels that multiply both in one launch, for the rows of a decode step. The second
//! matrix is so small that its launch would take longer than reading it.

use super::rows::{Norm, gemv_norm, is_plain};
use crate::Result;
use crate::backend::{Activation, GatedActivation, Linear, NormGatedLinear, NormLinear};
use crate::buffer::expert_copies::Cached;
use crate::buffer::{Buffer, Matrix, Outputs, Segment, TILE_COLS, count};
use crate::compute::{Compute, Workspace};
use crate::launch::args::{
    ActivationCode, Format, GemvArgs, GemvPairArgs, LINEAR_ADD, LINEAR_LEAVE, MatmulArgs, MatmulF32Args,
    MatmulGatedArgs, MatmulPairArgs,
};
use crate::launch::catalog::{GEMV, GEMV_PAIR, MATMUL, MATMUL_F32, MATMUL_GATED, MATMUL_PAIR, ONCE, Variant};
use crate::launch::launcher::{Launcher, Left};
use crate::launch::plans::{MatmulPlan, partial_bytes};
use crate::launch::product::{Product, ProductShape};
use crate::{DevicePtr, DeviceSlice, GpuBackend, KernelType};

/// The largest second dimension of a grid.
const MAX_GRID_Y: u32 = 65_535;

/// Rows (f32) that `gemv` reads and writes, and the expert's number per row.
#[derive(Clone, Copy)]
pub(super) struct GemvRows<'b> {
    pub x: DeviceSlice<'b>,
    pub out: DeviceSlice<'b>,
    pub experts: Option<DeviceSlice<'b>>,
}

impl Compute {
    /// Returns the format in which a segment reads its activations.
    fn segment_format(&self, segment: &Segment, rows: usize) -> Format {
        match self.activation_format(segment.ty.matmul_format(), rows) {
            Format::F16 | Format::Bf16 if segment.is_fp8() => Format::Fp8,
            format => format,
        }
    }

    /// Returns the format in which all segments read their activations, if they agree.
    fn matrix_format(&self, matrix: &Matrix, rows: usize) -> Option<Format> {
        let mut formats = matrix.segments.iter().map(|segment| self.segment_format(segment, rows));
        let first = formats.next()?;
        formats.all(|format| format == first).then_some(first)
    }

    /// True if norm, product and activation are fused into one `gemv`, which serves a single row only. Batch-invariant
    /// mode uses `gemv` for any number of rows of f32 weights, but never fused: the fused norm sums in another order
    /// than `norm_rows`.
    fn is_gemv(&self, matrix: &Matrix, rows: usize) -> bool {
        let most = self.launcher().tuning().gemv.most_rows;
        rows == 1 && rows <= most && self.matrix_format(matrix, rows) == Some(Format::F32)
    }

    /// Returns the segments of a matrix that are multiplied in one launch.
    fn pair<'a>(&self, matrix: &'a Matrix, rows: usize) -> Option<[&'a Segment; 2]> {
        let [first, second] = &matrix.segments[..] else { return None };
        let wanted = rows <= self.launcher().tuning().matmul.most_pair_rows;
        (wanted && self.launcher().has(GEMV_PAIR, [first.ty, second.ty])).then_some([first, second])
    }

    /// Ensures that the rows are in `format`, either in `x` itself or in the conversion buffer, whose format is
    /// `converted`.
    fn bring(
        &mut self,
        format: Format,
        x: &Buffer,
        rows: usize,
        cols: usize,
        converted: &mut Option<Format>,
    ) -> Result<()> {
        // Another conversion is needed only if segments differ. It may overwrite the rows, since earlier kernels have
        // read them.
        if x.format() != format && *converted != Some(format) {
            self.convert(x, rows, cols, format)?;
            *converted = Some(format);
        }
        Ok(())
    }

    /// Computes `out (+)= matrix · x`. `x` may have a norm only if it `is_gemv`. Outputs may have 16 bits only from the
    /// vendor's library. Other kernels support neither.
    pub(crate) fn linear(&mut self, args: Linear<'_, GpuBackend>, norm: Norm<'_>, out_format: Format) -> Result<()> {
        let copy = self.staged(args.matrix, args.rows)?;
        let matrix = copy.as_ref().unwrap_or(args.matrix);
        self.multiply(Linear { matrix, ..args }, norm, out_format)?;
        self.release_staged()
    }

    fn multiply(&mut self, args: Linear<'_, GpuBackend>, norm: Norm<'_>, out_format: Format) -> Result<()> {
        let Linear { x, matrix, rows, out, add } = args;
        let (norm, eps) = gemv_norm(norm, matrix.cols)?;
        if add {
            out.read_f32("the residual", rows, matrix.rows)?;
        }
        let flags = if add { LINEAR_ADD } else { 0 };
        out.write("linear's output", rows, matrix.rows, out_format)?;
        let cols = matrix.cols;
        let shape = ProductShape { norm, eps, rows, cols, out_format, out_stride: matrix.rows, flags };
        let mut converted = None;
        if let Some(pair) = self.pair(matrix, rows)
            && let Some(format @ (Format::F32 | Format::F16Tiled)) = self.matrix_format(matrix, rows)
        {
            self.bring(format, x, rows, cols, &mut converted)?;
            let (launcher, workspace) = (self.launcher(), self.workspace());
            let product = Product { x: workspace.rows_in(format, x, rows, cols)?, out: out.memory(), shape };
            return match format.is_f32() {
                true => launcher.gemv_pair(pair, &product),
                false => launcher.matmul_pair(pair, &product, workspace),
            };
        }
        for segment in &matrix.segments {
            let format = self.segment_format(segment, rows);
            self.bring(format, x, rows, cols, &mut converted)?;
            match format {
                Format::F16 | Format::Bf16 | Format::Fp8 => {
                    let (library, launcher, workspace) = self.with_library()?;
                    let product = Product { x: workspace.rows_in(format, x, rows, cols)?, out: out.memory(), shape };
                    let Some(refused) = library.product(launcher, segment, format, &product)? else { continue };
                    self.give_up_library(refused.why);
                    // Our own kernels compute the missing outputs. They write f32, so 16-bit outputs are computed again
                    // from the first.
                    let first = if out_format.is_f32() { refused.first } else { 0 };
                    out.write("linear's output", rows, matrix.rows, Format::F32)?;
                    let format = self.activation_format(segment.ty.matmul_format(), rows);
                    self.bring(format, x, rows, cols, &mut converted)?;
                    let x = self.workspace().rows_in(format, x, rows, cols)?;
                    let shape = ProductShape { out_format: Format::F32, ..shape };
                    let rest = Product { x, out: out.memory(), shape };
                    self.launcher().matmul(&segment.outputs_from(first, cols)?, &rest, self.workspace())?;
                }
                Format::F32 | Format::F16Tiled | Format::Bf16Tiled => {
                    let (launcher, workspace) = (self.launcher(), self.workspace());
                    let product = Product { x: workspace.rows_in(format, x, rows, cols)?, out: out.memory(), shape };
                    match format.is_f32() {
                        true => launcher.product_of_f32(&segment.outputs(), &product)?,
                        false => launcher.matmul(&segment.outputs(), &product, workspace)?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes `out = matrix · norm(x)`, in `out_format`. For one row the norm is fused into `gemv`, if it supports
    /// the norm. Otherwise `normed` gets the rows in the matrix' format.
    pub(super) fn norm_linear(&mut self, args: NormLinear<'_, GpuBackend>, out_format: Format) -> Result<()> {
        let NormLinear { x, norm, matrix, rows, normed, out } = args;
        if self.is_gemv(matrix, rows) && is_plain(norm) {
            return self.linear(Linear { x, matrix, rows, out, add: false }, norm, out_format);
        }
        let format = match self.matrix_format(matrix, rows) {
            // Other norms have no kernel with 8-bit outputs, so their rows are rounded afterwards.
            Some(Format::Fp8) if !is_plain(norm) => Format::F32,
            Some(format) => format,
            None => Format::F32,
        };
        let x = self.launcher().normed(x, norm, [rows, matrix.cols], normed, format)?;
        self.linear(Linear { x, matrix, rows, out, add: false }, None, out_format)
    }

    /// Returns the launch of gate and up with their fused activation, and the format of its rows. `None` if it is not
    /// faster, if the vendor's library multiplies, or if there is no kernel.
    fn gated_plan(&self, gate_up: &Matrix, gate: &Outputs<'_>, rows: usize) -> Result<Option<(MatmulPlan, Format)>> {
        let tiled = |format: &Format| matches!(format, Format::F16Tiled | Format::Bf16Tiled);
        let Some(format) = self.matrix_format(gate_up, rows).filter(tiled) else { return Ok(None) };
        if !tiled(&self.activation_format(self.common(), rows)) {
            return Ok(None);
        }
        let launcher = self.launcher();
        let (few, out_rows, cols) = (count(rows)?, count(gate.rows)?, count(gate_up.cols)?);
        let plan = launcher.tuning().gated_matmul(few, out_rows, cols, launcher.multiprocessors());
        let plan = plan.filter(|plan| launcher.has(MATMUL_GATED, Variant::with_rows(gate.ty, plan.n)));
        Ok(plan.map(|plan| (plan, format)))
    }

    /// Computes `out = act(gate · n(x)) * (up · n(x))`, where n is the norm.
    pub(super) fn norm_gated_linear(&mut self, args: NormGatedLinear<'_, GpuBackend>) -> Result<()> {
        let cols = args.cols();
        let NormGatedLinear { x, norm, gate_up, activation, rows, normed, products, out } = args;
        let halves = gate_up.gate_and_up()?;
        if let Some([gate, up]) = &halves
            && self.is_gemv(gate_up, rows)
        {
            let (x, norm) = match is_plain(norm) {
                true => (x, norm),
                false => {
                    self.launcher().norm_rows(x, norm, rows, gate_up.cols, normed, Format::F32)?;
                    (&*normed, None)
                }
            };
            let (norm, eps) = gemv_norm(norm, gate_up.cols)?;
            let (cols, out_format, out_stride) = (gate_up.cols, Format::F32, gate.rows);
            let product = Product {
                x: x.read_f32("norm_gated_linear's input", rows, cols)?,
                out: out.write("norm_gated_linear's output", rows, gate.rows, out_format)?,
                shape: ProductShape { norm, eps, rows, cols, out_format, out_stride, flags: 0 },
            };
            return self.launcher().gemv(gate, Some((up, activation)), &product);
        }
        if let Some([gate, up]) = &halves
            && let Some((plan, format)) = self.gated_plan(gate_up, gate, rows)?
        {
            let x = self.launcher().normed(x, norm, [rows, gate_up.cols], normed, format)?;
            let format_out = self.activation_format(self.common(), rows);
            let product = Product {
                x: x.read("norm_gated_linear's rows", rows, gate_up.cols)?,
                out: out.write("norm_gated_linear's output", rows, cols, format_out)?,
                shape: ProductShape {
                    norm: None,
                    eps: 0.0,
                    rows,
                    cols: gate_up.cols,
                    out_format: format_out,
                    out_stride: cols,
                    flags: 0,
                },
            };
            let copy = self.staged(gate_up, rows)?;
            let halves = copy.as_ref().map(Matrix::gate_and_up).transpose()?.flatten();
            let both = halves.as_ref().map_or([gate, up], |[gate, up]| [gate, up]);
            self.launcher().matmul_gated(both, activation, &product, plan, self.workspace())?;
            return self.release_staged();
        }
        // The library writes 16-bit products if the activation's own format would round them to f16 anyway. Segments
        // must begin at whole tiles of columns, or the activation would not find the 16-bit rows. There must be no
        // bias, since the library would read it as 16-bit numbers.
        let taken = self.matrix_format(gate_up, rows);
        let is_f16 = |segment: &Segment| segment.ty.matmul_format() == Some(Format::F16Tiled) && segment.bias.is_none();
        let format = match (&gate_up.segments[..], taken) {
            ([segment], Some(Format::F16 | Format::Fp8))
                if gate_up.rows.is_multiple_of(TILE_COLS) && is_f16(segment) =>
            {
                Format::F16
            }
            _ => Format::F32,
        };
        self.norm_linear(NormLinear { x, norm, matrix: gate_up, rows, normed, out: products }, format)?;
        // The next matrix takes the format of gate and up. After the library has refused them, nothing is 8 bits any
        // more.
        let format = match taken {
            Some(Format::Fp8) if cols.is_multiple_of(8) && self.library_rows().is_some() => Format::Fp8,
            _ => self.activation_format(self.common(), rows),
        };
        self.gated_activation(GatedActivation { gate_up: products, activation, rows, cols, out }, format)
    }
}

impl Launcher {
    /// Returns the normed rows in `format`: `x` itself if that needs no work, else `normed`.
    fn normed<'b>(
        &self,
        x: &'b Buffer,
        norm: Norm<'_>,
        [rows, cols]: [usize; 2],
        normed: &'b mut Buffer,
        format: Format,
    ) -> Result<&'b Buffer> {
        if norm.is_none() && x.format() == format {
            return Ok(x);
        }
        self.norm_rows(x, norm, rows, cols, normed, format)?;
        Ok(normed)
    }

    /// Multiplies f32 rows with a matrix; with a second matrix `up`, stores the activation of both products.
    fn gemv(&self, outputs: &Outputs<'_>, up: Option<(&Outputs<'_>, Activation)>, product: &Product<'_>) -> Result<()> {
        let grid_x = self.tuning().gemv_blocks(outputs.rows, self.multiprocessors());
        let args = gemv_args(outputs, product, grid_x)?;
        let args = match up {
            None => args,
            Some((up, activation)) => {
                GemvArgs { weights_up: up.tiles.ptr(), bias_up: up.bias.into(), activation: activation.into(), ..args }
            }
        };
        let rows = GemvRows { x: product.x, out: product.out_from(outputs.first_row)?, experts: None };
        self.launch_gemv(outputs.ty, rows, &args)
    }

    /// Multiplies f32 rows with a matrix. More rows than `gemv` takes occur only with f32 weights.
    fn product_of_f32(&self, outputs: &Outputs<'_>, product: &Product<'_>) -> Result<()> {
        let ProductShape { rows, cols, out_stride, flags, .. } = product.shape;
        let (rows, out_rows) = (count(rows)?, count(outputs.rows)?);
        let Some(plan) = self.tuning().matmul_f32(rows, out_rows) else { return self.gemv(outputs, None, product) };
        let args = MatmulF32Args {
            weights: outputs.tiles.ptr(),
            x: product.x.ptr(),
            bias: outputs.bias.into(),
            out: product.out_from(outputs.first_row)?.ptr(),
            out_rows,
            cols: count(cols)?,
            rows,
            x_stride: count(cols)?,
            out_stride: count(out_stride)?,
            flags,
        };
        // SAFETY: see `ops`.
        unsafe { self.launch(MATMUL_F32, Variant::with_rows(ONCE, plan.n), plan.grid, &args) }
    }

    /// Launches `gemv` as often as the number of rows requires.
    pub(super) fn launch_gemv(&self, ty: KernelType, rows: GemvRows<'_>, args: &GemvArgs) -> Result<()> {
        // Each launch takes whole rows of x, each shared by `share` outputs.
        let most = MAX_GRID_Y / args.share * args.share;
        for first in (0..args.rows).step_by(most as usize) {
            let behind = |rows: u32, stride: u32| 4 * u64::from(rows) * u64::from(stride);
            let here = GemvArgs {
                x: rows.x.after(behind(first / args.share, args.x_stride))?.ptr(),
                out: rows.out.after(behind(first, args.out_stride))?.ptr(),
                experts: rows.experts.map(|experts| experts.after(behind(first, 1))).transpose()?.into(),
                rows: most.min(args.rows - first),
                ..*args
            };
            // SAFETY: see `ops`.
            unsafe { self.launch(GEMV, ty, [here.grid_x, here.rows, 1], &here)? };
        }
        Ok(())
    }

    fn gemv_pair(&self, pair: [&Segment; 2], product: &Product<'_>) -> Result<()> {
        let (out_rows, tile_bytes) = (pair.map(|segment| segment.rows), pair.map(|segment| segment.ty.tile_bytes()));
        let blocks = self.tuning().gemv_pair_blocks(out_rows, tile_bytes, self.multiprocessors());
        let args = GemvPairArgs {
            first: gemv_args(&pair[0].outputs(), product, blocks[0])?,
            second: gemv_args(&pair[1].outputs(), product, blocks[1])?,
        };
        let grid = [blocks[0] + blocks[1], args.first.rows, 1];
        // SAFETY: see `ops`.
        unsafe { self.launch(GEMV_PAIR, pair.map(|segment| segment.ty), grid, &args) }
    }

    /// Launches a product on the matrix units. If it adds to a residual, its splits' partial sums stay in the
    /// workspace. A norm of the residual follows and adds them, since it reads all of the residual anyway.
    fn matmul(&self, outputs: &Outputs<'_>, product: &Product<'_>, workspace: &Workspace) -> Result<()> {
        let (rows, out_rows, cols) = (count(product.shape.rows)?, count(outputs.rows)?, count(product.shape.cols)?);
        let plan = self.tuning().matmul(rows, out_rows, cols, self.multiprocessors());
        let mut args = matmul_args(outputs, product, plan, workspace.partial(), workspace.counters())?;
        let is_whole = outputs.bias.is_none() && args.out_rows == args.out_stride;
        let leaves = plan.leaves && is_whole && args.flags & LINEAR_ADD != 0;
        if leaves {
            args.flags |= LINEAR_LEAVE;
        }
        // SAFETY: see `ops`; partial sums and counters have the room that `plans` keeps to.
        unsafe { self.launch(MATMUL, Variant::with_rows(outputs.ty, plan.n), plan.grid, &args)? };
        if leaves {
            let (out, parts, num_parts) = (args.out, args.partial, args.splits);
            self.leave(Left { out, rows, cols: out_rows, parts, num_parts });
        }
        Ok(())
    }

    /// Launches the products with gate and up, fused with their activation.
    fn matmul_gated(
        &self,
        [gate, up]: [&Outputs<'_>; 2],
        activation: Activation,
        product: &Product<'_>,
        plan: MatmulPlan,
        workspace: &Workspace,
    ) -> Result<()> {
        let args = MatmulGatedArgs {
            product: matmul_args(gate, product, plan, workspace.partial(), workspace.counters())?,
            weights_up: up.tiles.ptr(),
            bias_up: up.bias.into(),
            activation: activation.into(),
            format_out: product.shape.out_format,
        };
        // SAFETY: see `ops`.
        unsafe { self.launch(MATMUL_GATED, Variant::with_rows(gate.ty, plan.n), plan.grid, &args) }
    }

    fn matmul_pair(&self, pair: [&Segment; 2], product: &Product<'_>, workspace: &Workspace) -> Result<()> {
        let (partial, counters) = (workspace.partial(), workspace.counters());
        let out_rows = [count(pair[0].rows)?, count(pair[1].rows)?];
        let (rows, cols) = (count(product.shape.rows)?, count(product.shape.cols)?);
        let plans = self.tuning().matmuls(rows, out_rows, cols, self.multiprocessors());
        let [x, y, splits] = plans[0].grid;
        let second_partial = partial.after(partial_bytes(plans[0]))?;
        let second_counters = counters.after(4 * u64::from(x) * u64::from(y))?;
        let args = MatmulPairArgs {
            first: matmul_args(&pair[0].outputs(), product, plans[0], partial, counters)?,
            second: matmul_args(&pair[1].outputs(), product, plans[1], second_partial, second_counters)?,
        };
        let variant = Variant::with_rows(pair.map(|segment| segment.ty), plans[0].n);
        // SAFETY: see `ops`; partial sums and counters of both have the room that `plans` keeps to.
        unsafe { self.launch(MATMUL_PAIR, variant, [x + plans[1].grid[0], y, splits], &args) }
    }
}

fn gemv_args(outputs: &Outputs<'_>, product: &Product<'_>, grid_x: u32) -> Result<GemvArgs> {
    let ProductShape { norm, eps, rows, cols, out_stride, flags, .. } = product.shape;
    Ok(GemvArgs {
        weights: outputs.tiles.ptr(),
        weights_up: DevicePtr::NULL,
        x: product.x.ptr(),
        norm: norm.into(),
        bias: outputs.bias.into(),
        bias_up: DevicePtr::NULL,
        out: product.out_from(outputs.first_row)?.ptr(),
        experts: DevicePtr::NULL,
        expert_bytes: 0,
        out_rows: count(outputs.rows)?,
        cols: count(cols)?,
        rows: count(rows)?,
        x_stride: count(cols)?,
        out_stride: count(out_stride)?,
        flags,
        activation: ActivationCode::SILU,
        grid_x,
        eps,
        share: 1,
        cached: Cached::args(None, None),
    })
}

fn matmul_args(
    outputs: &Outputs<'_>,
    product: &Product<'_>,
    plan: MatmulPlan,
    partial: DeviceSlice<'_>,
    counters: DeviceSlice<'_>,
) -> Result<MatmulArgs> {
    let ProductShape { rows, cols, out_stride, flags, .. } = product.shape;
    Ok(MatmulArgs {
        weights: outputs.tiles.ptr(),
        x: product.x.ptr(),
        bias: outputs.bias.into(),
        out: product.out_from(outputs.first_row)?.ptr(),
        partial: partial.ptr(),
        counters: counters.ptr(),
        out_rows: count(outputs.rows)?,
        cols: count(cols)?,
        rows: count(rows)?,
        out_stride: count(out_stride)?,
        splits: plan.grid[2],
        flags,
    })
}
