//! Products with weights: one row by `gemv` straight from the quantised tiles, more rows on the matrix units.

use crate::backend::Activation;
use crate::backend::hip::args::{Format, GemvArgs, LINEAR_ADD, MatmulArgs};
use crate::backend::hip::backend::HipBackend;
use crate::backend::hip::buffer::{Buffer, Matrix, Segment, TILE_COLS, Vector, count};
use crate::backend::hip::{DevicePtr, KernelType, tuning};
use crate::{Error, Result};

/// Where a product's rows come from and go to.
pub(super) struct Product {
    pub x: DevicePtr,
    /// RMSNorm of the rows on the way, `gemv` only.
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
    /// What a product with `ty` reads its activations as.
    pub(in super::super) fn input_format(&self, ty: KernelType, rows: usize) -> Format {
        tuning::activation_format(ty.matmul_format(), rows, self.options.batch_invariant, self.vendor_rows())
    }

    /// What all segments read, if they agree.
    fn matrix_format(&self, matrix: &Matrix, rows: usize) -> Option<Format> {
        let mut formats = matrix.segments.iter().map(|segment| self.input_format(segment.ty, rows));
        let first = formats.next()?;
        formats.all(|format| format == first).then_some(first)
    }

    /// `out (+)= matrix · x`.
    pub(in super::super) fn multiply(
        &mut self,
        matrix: &Matrix,
        x: &Buffer,
        rows: usize,
        out: &mut Buffer,
        flags: u32,
    ) -> Result<()> {
        if flags & LINEAR_ADD != 0 {
            out.read_f32("the residual", rows, matrix.rows)?;
        }
        let out = out.write("linear's output", rows, matrix.rows, Format::F32)?;
        self.multiply_into(matrix, x, rows, out, Format::F32, flags)
    }

    /// `multiply` to an address, in a format that all segments' kernels can write.
    fn multiply_into(
        &mut self,
        matrix: &Matrix,
        x: &Buffer,
        rows: usize,
        out: DevicePtr,
        out_format: Format,
        flags: u32,
    ) -> Result<()> {
        let mut converted = None;
        for segment in &matrix.segments {
            let wanted = self.input_format(segment.ty, rows);
            let x = if x.format == wanted {
                x.read("linear's input", rows, matrix.cols)?
            } else {
                // Queued again only when the segments differ: what is there was read by kernels before this one.
                if converted != Some(wanted) {
                    self.convert(x, rows, matrix.cols, wanted)?;
                    converted = Some(wanted);
                }
                self.conversion.ptr
            };
            let product = Product {
                x,
                norm: DevicePtr::NULL,
                eps: 0.0,
                rows,
                cols: matrix.cols,
                out: out.offset(out_format.element_bytes() * segment.first_row as u64),
                out_format,
                out_stride: matrix.rows,
                flags,
            };
            self.product(segment, wanted, &product)?;
        }
        Ok(())
    }

    /// `out = matrix · rms_norm(x)`. For one row the norm is `gemv`'s; else `normed` takes the rows in the matrix' format.
    #[allow(clippy::too_many_arguments)] // the op's
    pub(in super::super) fn norm_multiply(
        &mut self,
        x: &Buffer,
        norm: &Vector,
        eps: f32,
        matrix: &Matrix,
        rows: usize,
        normed: &mut Buffer,
        out: &mut Buffer,
    ) -> Result<()> {
        check_norm(norm, matrix)?;
        let format = self.matrix_format(matrix, rows).unwrap_or(Format::F32);
        if rows > 1 || !format.is_f32() {
            self.prepare(x, Some((norm, eps)), rows, matrix.cols, normed, format)?;
            return self.multiply(matrix, normed, rows, out, 0);
        }
        let x = x.read_f32("norm_linear's input", rows, matrix.cols)?;
        let out = out.write("norm_linear's output", rows, matrix.rows, Format::F32)?;
        for segment in &matrix.segments {
            let out = out.offset(4 * segment.first_row as u64);
            let (cols, out_stride) = (matrix.cols, matrix.rows);
            let out_format = Format::F32;
            let product = Product { x, norm: norm.ptr, eps, rows, cols, out, out_format, out_stride, flags: 0 };
            self.product(segment, Format::F32, &product)?;
        }
        Ok(())
    }

    /// Gate and up of many rows by the vendor's library, half as wide where that loses nothing that the activation's own
    /// format would keep.
    pub(in super::super) fn norm_gate_up(
        &mut self,
        x: &Buffer,
        norm: &Vector,
        eps: f32,
        gate_up: &Matrix,
        rows: usize,
        normed: &mut Buffer,
        products: &mut Buffer,
    ) -> Result<()> {
        // Segments begin at whole tiles of columns, or 16-bit rows would not be where the activation looks for them.
        let whole = gate_up.rows.is_multiple_of(TILE_COLS) && gate_up.segments.len() == 1;
        if self.matrix_format(gate_up, rows) != Some(Format::F16) || !whole {
            return self.norm_multiply(x, norm, eps, gate_up, rows, normed, products);
        }
        check_norm(norm, gate_up)?;
        self.prepare(x, Some((norm, eps)), rows, gate_up.cols, normed, Format::F16)?;
        let out = products.write("gate and up", rows, gate_up.rows, Format::F16)?;
        self.multiply_into(gate_up, normed, rows, out, Format::F16, 0)
    }

    /// Gate and up of a single row, where one kernel does it all.
    pub(in super::super) fn gated_gemv_of(
        &self,
        gate_up: &Matrix,
        activation: Activation,
        rows: usize,
    ) -> Option<[DevicePtr; 2]> {
        let Activation::Silu = activation;
        let format = self.matrix_format(gate_up, rows)?;
        gate_up.pair.filter(|_| rows == 1 && format.is_f32())
    }

    /// `out = silu(gate · n(x)) * (up · n(x))`.
    #[allow(clippy::too_many_arguments)] // the op's
    pub(in super::super) fn gated_gemv(
        &mut self,
        x: &Buffer,
        norm: &Vector,
        eps: f32,
        gate_up: &Matrix,
        [weights, weights_up]: [DevicePtr; 2],
        rows: usize,
        out: &mut Buffer,
    ) -> Result<()> {
        check_norm(norm, gate_up)?;
        let (cols, out_rows) = (gate_up.cols, gate_up.rows / 2);
        let ty = gate_up.segments.first().map_or(KernelType::F32, |segment| segment.ty);
        let grid_x = tuning::gemv_blocks(out_rows, self.multiprocessors());
        let args = GemvArgs {
            weights,
            weights_up,
            x: x.read_f32("norm_gated_linear's input", rows, cols)?,
            norm: norm.ptr,
            bias: DevicePtr::NULL,
            out: out.write("norm_gated_linear's output", rows, out_rows, Format::F32)?,
            out_rows: count(out_rows)?,
            cols: count(cols)?,
            rows: count(rows)?,
            x_stride: count(cols)?,
            out_stride: count(out_rows)?,
            flags: 0,
            grid_x,
            eps,
        };
        // SAFETY: see `ops`.
        unsafe { self.stream.launch(&self.functions.of(ty)?.gemv, [grid_x, count(rows)?, 1], &args) }
    }

    /// One segment, its activations in `format`.
    fn product(&mut self, segment: &Segment, format: Format, product: &Product) -> Result<()> {
        if matches!(format, Format::F16 | Format::Bf16) {
            return self.vendor_product(segment, format, product);
        }
        let functions = self.functions.of(segment.ty)?;
        let (rows, out_rows) = (count(product.rows)?, count(segment.rows)?);
        let (cols, out_stride) = (count(product.cols)?, count(product.out_stride)?);
        if format.is_f32() {
            let grid_x = tuning::gemv_blocks(segment.rows, self.multiprocessors());
            let args = GemvArgs {
                weights: segment.tiles,
                weights_up: DevicePtr::NULL,
                x: product.x,
                norm: product.norm,
                bias: segment.bias,
                out: product.out,
                out_rows,
                cols,
                rows,
                x_stride: cols,
                out_stride,
                flags: product.flags,
                grid_x,
                eps: product.eps,
            };
            // SAFETY: see `ops`.
            return unsafe { self.stream.launch(&functions.gemv, [grid_x, rows, 1], &args) };
        }
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
            out_stride,
            splits: plan.grid[2],
            flags: product.flags,
        };
        // SAFETY: see `ops`; partial sums and counters have the room that `tuning` keeps to.
        unsafe { self.stream.launch(functions.matmul(plan.n)?, plan.grid, &args) }
    }
}

fn check_norm(norm: &Vector, matrix: &Matrix) -> Result<()> {
    match norm.len == matrix.cols {
        true => Ok(()),
        false => Err(Error::internal(format!("a norm of {} for a matrix of {} inputs", norm.len, matrix.cols))),
    }
}
