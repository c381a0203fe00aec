//! ggml's block formats: one table of ids and sizes, and scalar (de)quantisation, the oracle of all kernels.

mod types;

pub use types::GgmlType;

use crate::Result;

/// Decodes whole blocks of `ggml_type` into `out`; `data` must hold exactly the blocks of `out.len()` elements.
///
/// # Errors
/// `Error::Internal` when the lengths do not fit each other or the type has no decoder (`can_dequantize`).
pub fn dequantize(ggml_type: GgmlType, data: &[u8], out: &mut [f32]) -> Result<()> {
    let _ = (ggml_type, data, out);
    todo!("quant")
}

/// Quantises `x` to Q8_0-style blocks of 32 (see `Q8Block`)... replaced by the real module.
pub fn can_dequantize(ggml_type: GgmlType) -> bool {
    let _ = ggml_type;
    todo!("quant")
}
