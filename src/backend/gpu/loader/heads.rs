//! Uploads the matrices of heads, always as f16, since one kernel multiplies them for any number of rows.

use std::borrow::Cow;

use super::budget::heads_bytes;
use super::{GpuLoader, to_f16};
use crate::backend::Progress;
use crate::backend::experts::share;
use crate::backend::gpu::buffer::HeadMatrices;
use crate::quant::GgmlType;
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
