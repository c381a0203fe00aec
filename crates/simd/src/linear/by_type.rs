//! Maps tensor types to their formats.

pub(super) use super::codebooks::*;
pub(super) use super::formats::*;

/// Evaluates `$body` with `$format` as the format of `$ggml_type`; `None` for a type without a format.
macro_rules! with_format {
    ($ggml_type:expr, $format:ident => $body:expr) => {
        with_format!(@ $ggml_type, $format => $body,
            [Q4_0 = Q4_0, Q4_1 = Q4_1, Q5_0 = Q5_0, Q5_1 = Q5_1, Q8_0 = Q8_0, Q2_K = Q2_K, Q3_K = Q3_K, Q4_K = Q4_K,
             Q5_K = Q5_K, Q6_K = Q6_K, IQ4_NL = IQ4_NL, IQ4_XS = IQ4_XS, MXFP4 = Mxfp4, TQ2_0 = TQ2_0, TQ1_0 = TQ1_0,
             IQ2_XXS = IQ2_XXS, IQ2_XS = IQ2_XS, IQ2_S = IQ2_S, IQ3_XXS = IQ3_XXS, IQ3_S = IQ3_S, IQ1_S = IQ1_S,
             IQ1_M = IQ1_M, NVFP4 = Nvfp4, Q1_0 = Q1_0, Q2_0 = Q2_0])
    };
    (@ $ggml_type:expr, $format:ident => $body:expr, [$($name:ident = $ty:ident),*]) => {
        match $ggml_type {
            $(rocmforge_quant::GgmlType::$name => {
                type $format = $crate::linear::by_type::$ty;
                Some($body)
            })*
            _ => None,
        }
    };
}
pub(super) use with_format;
