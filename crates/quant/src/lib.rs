//! ggml's block formats: a table of ids and sizes, and the scalar decoders, which are the reference for all kernels.
//!
//! Layouts follow ggml's `ggml-common.h`. Every decoder multiplies and adds in the order of ggml's own `to_float`, so
//! its values equal ggml's bit for bit. Data is read byte by byte, so it need not be aligned.

pub mod codebooks;
mod decode_basic;
mod decode_codebook;
mod decode_k;
mod grids;
mod types;

pub use types::GgmlType;

/// The arguments of `dequantize` contradict each other.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(String);

/// Passes each block of `data` to `decode`, with its part of `out`.
fn for_each_block<const BYTES: usize, const ELEMENTS: usize>(
    data: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let blocks = data.as_chunks::<BYTES>().0;
    let values = out.as_chunks_mut::<ELEMENTS>().0;
    blocks.iter().zip(values).for_each(|(block, values)| decode(block, values));
}

type Decoder = fn(&[u8], &mut [f32]);

/// Returns the decoder of a type. The sizes come from the table; one that contradicts the decoder's own does not
/// compile.
fn decoder(ggml_type: GgmlType) -> Option<Decoder> {
    macro_rules! blocks {
        ($name:ident, $decode:path) => {
            Some(|data, out| {
                const BYTES: usize = GgmlType::$name.block_bytes();
                const ELEMENTS: usize = GgmlType::$name.block_elements();
                for_each_block::<BYTES, ELEMENTS>(data, out, $decode)
            })
        };
    }
    match ggml_type {
        GgmlType::F32 => blocks!(F32, decode_basic::f32),
        GgmlType::F16 => blocks!(F16, decode_basic::f16),
        GgmlType::BF16 => blocks!(BF16, decode_basic::bf16),
        GgmlType::Q4_0 => blocks!(Q4_0, decode_basic::q4_0),
        GgmlType::Q4_1 => blocks!(Q4_1, decode_basic::q4_1),
        GgmlType::Q5_0 => blocks!(Q5_0, decode_basic::q5_0),
        GgmlType::Q5_1 => blocks!(Q5_1, decode_basic::q5_1),
        GgmlType::Q8_0 => blocks!(Q8_0, decode_basic::q8_0),
        GgmlType::TQ1_0 => blocks!(TQ1_0, decode_basic::tq1_0),
        GgmlType::TQ2_0 => blocks!(TQ2_0, decode_basic::tq2_0),
        GgmlType::Q1_0 => blocks!(Q1_0, decode_basic::q1_0),
        GgmlType::Q2_0 => blocks!(Q2_0, decode_basic::q2_0),
        GgmlType::Q2_K => blocks!(Q2_K, decode_k::q2_k),
        GgmlType::Q3_K => blocks!(Q3_K, decode_k::q3_k),
        GgmlType::Q4_K => blocks!(Q4_K, decode_k::q4_k),
        GgmlType::Q5_K => blocks!(Q5_K, decode_k::q5_k),
        GgmlType::Q6_K => blocks!(Q6_K, decode_k::q6_k),
        GgmlType::IQ4_NL => blocks!(IQ4_NL, decode_codebook::iq4_nl),
        GgmlType::IQ4_XS => blocks!(IQ4_XS, decode_codebook::iq4_xs),
        GgmlType::MXFP4 => blocks!(MXFP4, decode_codebook::mxfp4),
        GgmlType::NVFP4 => blocks!(NVFP4, decode_codebook::nvfp4),
        GgmlType::IQ2_XXS => blocks!(IQ2_XXS, decode_codebook::iq2_xxs),
        GgmlType::IQ2_XS => blocks!(IQ2_XS, decode_codebook::iq2_xs),
        GgmlType::IQ2_S => blocks!(IQ2_S, decode_codebook::iq2_s),
        GgmlType::IQ3_XXS => blocks!(IQ3_XXS, decode_codebook::iq3_xxs),
        GgmlType::IQ3_S => blocks!(IQ3_S, decode_codebook::iq3_s),
        GgmlType::IQ1_S => blocks!(IQ1_S, decode_codebook::iq1_s),
        GgmlType::IQ1_M => blocks!(IQ1_M, decode_codebook::iq1_m),
        GgmlType::Q8_1
        | GgmlType::Q8_K
        | GgmlType::I8
        | GgmlType::I16
        | GgmlType::I32
        | GgmlType::I64
        | GgmlType::F64 => None,
    }
}

/// Decodes whole blocks of `ggml_type` into `out`. `data` must hold exactly the blocks of `out.len()` elements.
///
/// # Errors
/// The lengths do not match, or the type has no decoder (`can_dequantize`).
pub fn dequantize(ggml_type: GgmlType, data: &[u8], out: &mut [f32]) -> Result<(), DecodeError> {
    let name = ggml_type.name();
    let decode = decoder(ggml_type).ok_or_else(|| DecodeError(format!("{name} has no decoder")))?;
    if ggml_type.row_bytes(out.len()) != Some(data.len()) {
        return Err(DecodeError(format!(
            "{} bytes of {name} cannot be decoded into {} elements: a block holds {} elements in {} bytes",
            data.len(),
            out.len(),
            ggml_type.block_elements(),
            ggml_type.block_bytes(),
        )));
    }
    decode(data, out);
    Ok(())
}

/// True if `dequantize` supports the type.
pub fn can_dequantize(ggml_type: GgmlType) -> bool {
    decoder(ggml_type).is_some()
}

/// Returns the f16 at byte `at` of a block.
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Returns nibble `index` of packed bytes, the low one of each byte first.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    (bytes[index / 2] >> (4 * (index % 2))) & 15
}
