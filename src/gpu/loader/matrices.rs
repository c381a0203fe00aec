//! Memory of stacks of matrices: their tiles, and their biases.

use super::GpuLoader;
use crate::DeviceBuffer;
use crate::backend::{LinearPart, Progress};
use crate::buffer::{Dense, Matrix, Segment};
use crate::launch::args::Format;
use crate::quant;
use crate::weights::dense::{dequantized_bytes, is_fp8, kept_bytes};
use crate::weights::stacks::{Layout, Run, part_bytes};
use crate::{Error, Result};

/// Returns the rows and columns of a stack.
///
/// # Errors
/// `Error::Internal` for an empty stack, different numbers of columns, or bytes that do not match a shape.
fn shape(parts: &[LinearPart<'_>]) -> Result<[usize; 2]> {
    let cols = parts.first().map_or(0, |part| part.weight.cols);
    let mut rows = 0;
    for LinearPart { weight, .. } in parts {
        let expected = weight.ggml_type.row_bytes(cols).and_then(|bytes| bytes.checked_mul(weight.rows));
        if weight.cols != cols || expected != Some(weight.data.len()) || weight.data.is_empty() {
            return Err(Error::internal(format!(
                "matrix {}: {} bytes for {} rows of {} {}, in a stack of {cols} columns",
                weight.name,
                weight.data.len(),
                weight.rows,
                weight.cols,
                weight.ggml_type.name()
            )));
        }
        rows += weight.rows;
    }
    match rows {
        0 => Err(Error::internal("a stack of no matrices")),
        _ => Ok([rows, cols]),
    }
}

/// Returns the biases of all `rows` outputs of a stack, 0 for a matrix without one.
fn biases(parts: &[LinearPart<'_>], rows: usize) -> Result<Vec<f32>> {
    let mut values = vec![0.0; rows];
    let mut rest = &mut values[..];
    for part in parts {
        let (here, after) = rest.split_at_mut(part.weight.rows);
        if let Some(bias) = &part.bias {
            quant::dequantize(bias.ggml_type, bias.data, here)?;
        }
        rest = after;
    }
    Ok(values)
}

impl GpuLoader {
    pub(super) fn matrix_weights(&mut self, parts: &[LinearPart<'_>], progress: &mut Progress<'_>) -> Result<Matrix> {
        let [rows, cols] = shape(parts)?;
        self.max_cols = self.max_cols.max(cols);
        let layout = Layout::of(parts)?;
        let bias = match layout.bias_bytes {
            0 => None,
            bytes => {
                let memory = self.weights(bytes)?;
                self.upload_floats(&biases(parts, rows)?, &memory)?;
                Some(memory)
            }
        };
        let mut on_host = self.next_on_host();
        let (tiles, staged) = self.tiles(&mut on_host, layout.bytes)?;
        for (LinearPart { weight, .. }, &start) in parts.iter().zip(&layout.starts) {
            self.upload_part(weight, &tiles.part(start, part_bytes(weight)?)?, progress)?;
        }
        let dtype = self.options.compute_dtype;
        let (keeps, is_fp8) = (kept_bytes(parts, dtype).is_some(), is_fp8(parts, dtype));
        let segments = layout.segments.iter().map(|run| {
            let dense = if keeps { self.dense(run.rows, cols, is_fp8) } else { None };
            self.segment(run, cols, &tiles, bias.as_ref(), dense)
        });
        Ok(Matrix { rows, cols, segments: segments.collect::<Result<_>>()?, staged })
    }

    /// Takes room for dequantised weights of the matrix library; `None` if it does not fit.
    fn dense(&mut self, rows: usize, cols: usize, is_fp8: bool) -> Option<Dense> {
        if !is_fp8 {
            return Some(Dense { rows: self.dense.take(dequantized_bytes(rows, cols))?, scales: None });
        }
        let [rows, scales] = Format::fp8_bytes(rows, cols).map(|bytes| self.dense.take(bytes));
        Some(Dense { rows: rows?, scales: Some(scales?) })
    }

    /// Returns the segment of a stack's run with its tiles and biases, and with the room of its dequantised copy, if it
    /// is kept.
    fn segment(
        &mut self,
        run: &Run,
        cols: usize,
        tiles: &DeviceBuffer,
        bias: Option<&DeviceBuffer>,
        dense: Option<Dense>,
    ) -> Result<Segment> {
        let Run { ty, first_row, rows, start } = *run;
        let segment = Segment {
            ty,
            first_row,
            rows,
            tiles: tiles.part(start, ty.matrix_bytes(rows, cols))?,
            bias: bias.map(|bias| bias.part(4 * first_row as u64, 4 * rows as u64)).transpose()?,
            dense,
        };
        if segment.dense.is_some() {
            self.kept.push((segment.clone(), cols));
        }
        Ok(segment)
    }
}
