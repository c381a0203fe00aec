//! Products with weights: one row by `gemv` straight from the quantised tiles, more rows on the matrix units.

use super::rows::{Norm, norm_args};
use crate::Result;
use crate::backend::Activation;
use crate::backend::hip::args::{Format, GemvArgs, LINEAR_ADD, MatmulArgs};
use crate::backend::hip::backend::HipBackend;
use crate::backend::hip::buffer::{Buffer, Matrix, Segment, TILE_COLS, count};
use crate::backend::hip::{DevicePtr, tuning};

/// Where a product's rows come from and go to.
pub(super) struct Product {
    pub x: DevicePtr,
    /// RMSNorm of the rows on the way, `gemv` only; null for the rows as they are.
    norm: DevicePtr,
    eps: f32,
    pub rows: usize,
    pub cols: usize,
    pub out: DevicePtr,
    pub out_format: Format,
    pub out_stride: usize,
    pub flags: u32,
}

impl HipBackend {
    /// What all segments read, if they agree.
    fn matrix_format(&self, matrix: &Matrix, rows: usize) -> Option<Format> {
        let mut formats = matrix.segments.iter().map(|s| self.activation_format(s.ty.matmul_format(), rows));
        let first = formats.next()?;
        formats.all(|format| format == first).then_some(first)
    }

    /// Whether `gemv` computes all segments, for a single row.
    fn is_gemv(&self, matrix: &Matrix, rows: usize) -> bool {
        rows == 1 && self.matrix_format(matrix, rows) == Some(Format::F32)
    }

    /// `out (+)= matrix · x`. A norm of `x` only where it `is_gemv`, 16-bit outputs only by the vendor's library: other
    /// kernels have neither.
    #[allow(clippy::too_many_arguments)] // the op's, and how its callers differ
    pub(in super::super) fn multiply(
        &mut self,
        matrix: &Matrix,
        x: &Buffer,
        norm: Norm<'_>,
        rows: usize,
        out: &mut Buffer,
        out_format: Format,
        flags: u32,
    ) -> Result<()> {
        let (norm, eps) = norm_args(norm, matrix.cols)?;
        if flags & LINEAR_ADD != 0 {
            out.read_f32("the residual", rows, matrix.rows)?;
        }
        let out = out.write("linear's output", rows, matrix.rows, out_format)?;
        let mut converted = None;
        for segment in &matrix.segments {
            let format = self.activation_format(segment.ty.matmul_format(), rows);
            let x = if x.format == format {
                x.read("linear's input", rows, matrix.cols)?
            } else {
                // Queued again only when the segments differ: what is there was read by kernels before this one.
                if converted != Some(format) {
                    self.convert(x, rows, matrix.cols, format)?;
                    converted = Some(format);
                }
                self.conversion.ptr
            };
            let product = Product {
                x,
                norm,
                eps,
                rows,
                cols: matrix.cols,
                out: out.offset(out_format.element_bytes() * segment.first_row as u64),
                out_format,
                out_stride: matrix.rows,
                flags,
            };
            match format {
                Format::F16 | Format::Bf16 => self.vendor_product(segment, format, &product)?,
                Format::F32 => self.gemv(segment, DevicePtr::NULL, &product)?,
                Format::F16Tiled | Format::Bf16Tiled => self.matmul(segment, &product)?,
            }
        }
        Ok(())
    }

    /// `out = matrix · rms_norm(x)`. For one row the norm is `gemv`'s; else `normed` takes the rows in the matrix' format.
    #[allow(clippy::too_many_arguments)] // the op's
    pub(in super::super) fn norm_multiply(
        &mut self,
        x: &Buffer,
        norm: Norm<'_>,
        matrix: &Matrix,
        rows: usize,
        normed: &mut Buffer,
        out: &mut Buffer,
        out_format: Format,
    ) -> Result<()> {
        if self.is_gemv(matrix, rows) {
            return self.multiply(matrix, x, norm, rows, out, out_format, 0);
        }
        let format = self.matrix_format(matrix, rows).unwrap_or(Format::F32);
        self.prepare(x, norm, rows, matrix.cols, normed, format)?;
        self.multiply(matrix, normed, None, rows, out, out_format, 0)
    }

    /// `out = act(gate · n(x)) * (up · n(x))`, n being the norm.
    #[allow(clippy::too_many_arguments)] // the op's
    pub(in super::super) fn norm_gated_multiply(
        &mut self,
        x: &Buffer,
        norm: Norm<'_>,
        gate_up: &Matrix,
        activation: Activation,
        rows: usize,
        cols: usize,
        normed: &mut Buffer,
        products: &mut Buffer,
        out: &mut Buffer,
    ) -> Result<()> {
        if let ([first, ..], Some(up)) = (&gate_up.segments[..], gate_up.up)
            && self.is_gemv(gate_up, rows)
        {
            let Activation::Silu = activation; // the kernel's
            let gate = Segment { rows: gate_up.rows / 2, ..*first };
            let (norm, eps) = norm_args(norm, gate_up.cols)?;
            let product = Product {
                x: x.read_f32("norm_gated_linear's input", rows, gate_up.cols)?,
                norm,
                eps,
                rows,
                cols: gate_up.cols,
                out: out.write("norm_gated_linear's output", rows, gate.rows, Format::F32)?,
                out_format: Format::F32,
                out_stride: gate.rows,
                flags: 0,
            };
            return self.gemv(&gate, up, &product);
        }
        // The library's products half as wide where that loses nothing that the activation's own format would keep.
        // Segments begin at whole tiles of columns, or 16-bit rows would not be where the activation looks for them.
        let whole = gate_up.rows.is_multiple_of(TILE_COLS) && gate_up.segments.len() == 1;
        let format = match self.matrix_format(gate_up, rows) {
            Some(Format::F16) if whole => Format::F16,
            _ => Format::F32,
        };
        self.norm_multiply(x, norm, gate_up, rows, normed, products, format)?;
        self.activate(products, activation, rows, cols, out)
    }

    /// A product of f32 rows; with the tiles of `up`, SiLU of it times that with `up`.
    fn gemv(&self, segment: &Segment, up: DevicePtr, product: &Product) -> Result<()> {
        let grid_x = tuning::gemv_blocks(segment.rows, self.multiprocessors());
        let rows = count(product.rows)?;
        let args = GemvArgs {
            weights: segment.tiles,
            weights_up: up,
            x: product.x,
            norm: product.norm,
            bias: segment.bias,
            out: product.out,
            experts: DevicePtr::NULL,
            expert_bytes: 0,
            out_rows: count(segment.rows)?,
            cols: count(product.cols)?,
            rows,
            x_stride: count(product.cols)?,
            out_stride: count(product.out_stride)?,
            flags: product.flags,
            grid_x,
            eps: product.eps,
            share: 1,
        };
        // SAFETY: see `ops`.
        unsafe { self.stream.launch(&self.functions.of(segment.ty)?.gemv, [grid_x, rows, 1], &args) }
    }

    /// A product on the matrix units.
    fn matmul(&self, segment: &Segment, product: &Product) -> Result<()> {
        let (rows, out_rows, cols) = (count(product.rows)?, count(segment.rows)?, count(product.cols)?);
        let plan = match self.options.batch_invariant {
            true => tuning::invariant_matmul(rows, out_rows),
            false => tuning::matmul(rows, out_rows, cols, self.multiprocessors()),
        };
        let args = MatmulArgs {
            weights: segment.tiles,
            x: product.x,
            bias: segment.bias,
            out: product.out,
            partial: self.partial,
            counters: self.counters,
            out_rows,
            cols,
            rows,
            out_stride: count(product.out_stride)?,
            splits: plan.grid[2],
            flags: product.flags,
        };
        let function = self.functions.of(segment.ty)?.matmul(plan.n)?;
        // SAFETY: see `ops`; partial sums and counters have the room that `tuning` keeps to.
        unsafe { self.stream.launch(function, plan.grid, &args) }
    }
}
