//! The scan of all weights for values that are not finite, for `check`.

use super::directory::TensorInfo;
use super::file::GgufFile;
use crate::Result;
use crate::quant::{GgmlType, can_dequantize, dequantize};

/// Elements decoded at once: a multiple of every block, small enough for the L1 cache.
const CHUNK_ELEMENTS: usize = 4096;

impl GgufFile {
    /// Decodes every tensor, piece by piece, and looks for NaN and infinity (a damaged scale shows as either).
    ///
    /// # Errors
    /// `ModelFile` that names the first tensor with such a value and the element, or one whose type has no decoder.
    pub fn validate_values(&self) -> Result<()> {
        let mut values = [0.0; CHUNK_ELEMENTS];
        self.tensors().iter().try_for_each(|info| self.validate_tensor(info, &mut values))
    }

    fn validate_tensor(&self, info: &TensorInfo, values: &mut [f32; CHUNK_ELEMENTS]) -> Result<()> {
        let view = self.view(info);
        let ggml_type = info.ggml_type;
        if ggml_type.is_integer() {
            return Ok(());
        }
        let position = if ggml_type == GgmlType::F64 {
            view.data.as_chunks().0.iter().position(|&bytes| !f64::from_le_bytes(bytes).is_finite())
        } else if can_dequantize(ggml_type) {
            let chunk_bytes = CHUNK_ELEMENTS / ggml_type.block_elements() * ggml_type.block_bytes();
            let mut position = None;
            for (i, data) in view.data.chunks(chunk_bytes).enumerate() {
                let len = data.len() / ggml_type.block_bytes() * ggml_type.block_elements();
                dequantize(ggml_type, data, &mut values[..len])?;
                position = values[..len].iter().position(|v| !v.is_finite()).map(|at| i * CHUNK_ELEMENTS + at);
                if position.is_some() {
                    break;
                }
            }
            position
        } else {
            let name = ggml_type.name();
            return Err(self.tensor_error(info, format!("{name} has no decoder, so its values cannot be checked")));
        };
        // The scan reads the whole file once; without this it would stay resident.
        self.release_pages(info);
        match position {
            None => Ok(()),
            Some(at) => {
                let (row, col) = (at / view.cols, at % view.cols);
                Err(self.tensor_error(info, format!("the value in row {row}, column {col} is not finite")))
            }
        }
    }
}
