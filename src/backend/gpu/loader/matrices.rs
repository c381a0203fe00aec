//! Memory of stacks of matrices: their tiles, and their biases.

use super::GpuLoader;
use crate::backend::gpu::buffer::{Matrix, Segment};
use crate::backend::gpu::dense::{dequantized_bytes, kept_bytes};
use crate::backend::gpu::stacks::{Layout, Run, part_bytes};
use crate::backend::{LinearPart, Progress};
use crate::quant;
use crate::{Error, Result};

impl GpuLoader {
    pub(super) fn matrix_weights(&mut self, parts: &[LinearPart<'_>], progress: &mut Progress<'_>) -> Result<Matrix> {
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
        if rows == 0 {
            return Err(Error::internal("a stack of no matrices"));
        }
        self.max_cols = self.max_cols.max(cols);

        let layout = Layout::of(parts);
        let bias = if layout.bias_bytes > 0 {
            let mut values = vec![0.0; rows];
            let mut rest = &mut values[..];
            for part in parts {
                let (here, after) = rest.split_at_mut(part.weight.rows);
                if let Some(bias) = &part.bias {
                    quant::dequantize(bias.ggml_type, bias.data, here)?;
                }
                rest = after;
            }
            let memory = self.weights(layout.bias_bytes)?;
            self.upload_floats(&values, &memory)?;
            Some(memory)
        } else {
            None
        };

        let tiles = self.weights(layout.bytes)?;
        for (LinearPart { weight, .. }, &start) in parts.iter().zip(&layout.starts) {
            self.upload_part(weight, &tiles.part(start, part_bytes(weight))?, progress)?;
        }
        let keeps = kept_bytes(parts).is_some();
        let segments = layout.segments.iter().map(|run| {
            let Run { ty, first_row, rows, start } = *run;
            let bias = bias.as_ref().map(|bias| bias.part(4 * first_row as u64, 4 * rows as u64)).transpose()?;
            let dense = keeps.then(|| self.dense.take(dequantized_bytes(rows, cols))).flatten();
            let tiles = tiles.part(start, ty.matrix_bytes(rows, cols))?;
            Ok(Segment { ty, first_row, rows, tiles, bias, dense })
        });
        let segments = segments.collect::<Result<Vec<_>>>()?;
        let kept = segments.iter().filter(|segment| segment.dense.is_some());
        self.kept.extend(kept.map(|segment| (segment.clone(), cols)));
        Ok(Matrix { rows, cols, segments })
    }
}
