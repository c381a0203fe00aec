//! The block formats of `rocmforge_quant`, with the errors of this crate.

pub use rocmforge_quant::{GgmlType, can_dequantize};

use crate::{Error, Result};

/// Decodes whole blocks of `ggml_type` into `out`. `data` must hold exactly the blocks of `out.len()` elements.
///
/// # Errors
/// `Error::Internal` if the lengths do not match or the type has no decoder (`can_dequantize`).
pub fn dequantize(ggml_type: GgmlType, data: &[u8], out: &mut [f32]) -> Result<()> {
    rocmforge_quant::dequantize(ggml_type, data, out).map_err(|error| Error::internal(error.to_string()))
}
