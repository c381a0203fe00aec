//! Uploads the matrices of heads, always as f16, since one kernel multiplies them for any number of rows.

use std::borrow::Cow;

use super::GpuLoader;
use super::budget::heads_bytes;
use crate::backend::Progress;
use crate::backend::experts::share;
use crate::buffer::HeadMatrices;
use crate::quant::{self, GgmlType};
use crate::tensor::TensorView;
use crate::{Error, Result};

impl GpuLoader {
    pub(super) fn head_matrices(
        &mut self,
        tensor: TensorView<'_>,
        heads: usize,
        progress: &mut Progress<'_>,
    ) -> Result<HeadMatrices> {
        let TensorView { name, rows, cols, .. } = tensor;
        if heads == 0 || !rows.is_multiple_of(heads) {
            return Err(Error::internal(format!("tensor {name} of {rows} rows for {heads} heads")));
        }
        self.has_latent = true;
        let weights = self.weights(heads_bytes(&tensor))?;
        let matrices = HeadMatrices { heads, rows: rows / heads, cols, weights };
        for head in 0..heads {
            let of_head = share(tensor, heads, head);
            let data = match of_head.ggml_type {
                GgmlType::F16 => Cow::Borrowed(of_head.data),
                _ => Cow::Owned(to_f16(&of_head)?),
            };
            let at = matrices.weights.part((head * data.len()) as u64, data.len() as u64)?;
            self.uploader(data.len(), 0)?.bytes(&data, at.slice())?;
            progress(of_head.data.len() as u64)?;
        }
        Ok(matrices)
    }
}

/// Decodes weights to the nearest f16 of each value.
fn to_f16(weight: &TensorView<'_>) -> Result<Vec<u8>> {
    let mut row = vec![0.0; weight.cols];
    let row_bytes = weight.data.len() / weight.rows.max(1);
    let mut out = Vec::with_capacity(2 * weight.rows * weight.cols);
    for data in weight.data.chunks_exact(row_bytes.max(1)) {
        quant::dequantize(weight.ggml_type, data, &mut row)?;
        if let Some(value) = row.iter().find(|value| value.abs() > half::f16::MAX.to_f32()) {
            return Err(Error::Device {
                device: "gpu".to_owned(),
                problem: format!(
                    "tensor {} ({}) holds {value}, beyond the range of the f16 that the GPU keeps such tensors in; use \
                     device=\"cpu\"",
                    weight.name,
                    weight.ggml_type.name()
                ),
            });
        }
        out.extend(row.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()));
    }
    Ok(out)
}
