//! Scans all weights for non-finite values, for `check`.

use super::directory::TensorInfo;
use super::file::GgufFile;
use crate::quant::{GgmlType, can_dequantize, dequantize};
use crate::tensor::TensorView;
use crate::{Error, Result};

/// The number of elements decoded at once: a multiple of every block size, and small enough for the L1 cache.
const CHUNK_ELEMENTS: usize = 4096;

impl GgufFile {
    /// Decodes a tensor in chunks and searches for NaN and infinity. A damaged scale shows as either.
    ///
    /// # Errors
    /// `ModelFile` with the tensor and its first such element, or for a type without a decoder.
    pub fn validate_tensor(&self, info: &TensorInfo) -> Result<()> {
        let view = self.view(info);
        let position = match info.ggml_type {
            t if t.is_integer() => None,
            GgmlType::F64 => view.data.as_chunks().0.iter().position(|&bytes| !f64::from_le_bytes(bytes).is_finite()),
            t if can_dequantize(t) => first_not_finite(&view)?,
            t => {
                let problem = format!("{} has no decoder, so its values cannot be checked", t.name());
                return Err(self.tensor_error(info, problem));
            }
        };
        // The scan reads the whole file once, and it would stay resident otherwise.
        self.release_pages(info);
        position.map_or(Ok(()), |at| Err(self.not_finite(info, at / view.cols, at % view.cols)))
    }

    fn not_finite(&self, info: &TensorInfo, row: usize, column: usize) -> Error {
        self.tensor_error(info, format!("the value in row {row}, column {column} is not finite"))
    }
}

/// Returns the index of the first element, row after row, that decodes to NaN or infinity.
fn first_not_finite(view: &TensorView) -> Result<Option<usize>> {
    let (block_elements, block_bytes) = (view.ggml_type.block_elements(), view.ggml_type.block_bytes());
    let mut values = [0.0; CHUNK_ELEMENTS];
    for (i, data) in view.data.chunks(CHUNK_ELEMENTS / block_elements * block_bytes).enumerate() {
        let values = &mut values[..data.len() / block_bytes * block_elements];
        dequantize(view.ggml_type, data, values)?;
        // Without an early exit the loop vectorizes. The position is only searched for if there is one.
        if !values.iter().fold(true, |finite, v| finite & v.is_finite()) {
            return Ok(values.iter().position(|v| !v.is_finite()).map(|at| i * CHUNK_ELEMENTS + at));
        }
    }
    Ok(None)
}
