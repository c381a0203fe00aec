//! Expected values come from ggml (the golden archives), from the formats' definitions in float64, or from ggml's
//! table.

use proptest::prelude::*;

use crate::quant::{GgmlType, can_dequantize, dequantize};
use crate::testdata;

/// The types that a model file may contain and this crate decodes.
const DECODED: [GgmlType; 28] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q8_0,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
    GgmlType::IQ2_XXS,
    GgmlType::IQ2_XS,
    GgmlType::IQ2_S,
    GgmlType::IQ3_XXS,
    GgmlType::IQ3_S,
    GgmlType::IQ1_S,
    GgmlType::IQ1_M,
    GgmlType::TQ1_0,
    GgmlType::TQ2_0,
    GgmlType::NVFP4,
    GgmlType::Q1_0,
    GgmlType::Q2_0,
];

fn golden_types() -> impl Iterator<Item = GgmlType> {
    DECODED.into_iter().filter(|&t| t != GgmlType::F32)
}

/// Describes the first element whose bits differ, for a readable failure.
fn first_difference(got: &[f32], want: &[f32]) -> Option<String> {
    assert_eq!(got.len(), want.len());
    let at = got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits())?;
    Some(format!("element {at}: got {:e}, expected {:e}", got[at], want[at]))
}

/// L2, L3, L7, L8: blocks made by ggml decode to ggml's values bit for bit, for any scales.
#[test]
fn test_golden_blocks_decode_bit_for_bit() {
    for t in golden_types() {
        let golden = testdata::npz(&format!("quant/{}", t.name()));
        let (raw, want) = (golden.u8("raw"), golden.f32("values"));
        assert!(want.len() >= 40 * 512, "{t:?}: the archive is not whole");
        let mut got = vec![f32::NAN; want.len()];
        dequantize(t, &raw, &mut got).unwrap();
        assert_eq!(first_difference(&got, &want), None, "{t:?}");
    }
}

/// Compares dot products with those of ggml's float64 reference for the golden activations.
#[test]
fn test_golden_dot_products() {
    for t in golden_types() {
        let golden = testdata::npz(&format!("quant/{}", t.name()));
        let (x, dots, abs_dots) = (golden.f32("x"), golden.f64("dots"), golden.f64("abs_dots"));
        let mut row = vec![0.0; x.len()];
        for (r, data) in golden.u8("raw").chunks_exact(t.row_bytes(x.len()).unwrap()).enumerate() {
            dequantize(t, data, &mut row).unwrap();
            let dot: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            assert!((dot - dots[r]).abs() <= 1e-12 * abs_dots[r], "{t:?} row {r}: {dot} for {}", dots[r]);
        }
    }
}

#[test]
fn test_f32_is_read_little_endian() {
    let mut out = [0.0; 2];
    dequantize(GgmlType::F32, &[0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0], &mut out).unwrap();
    assert_eq!(out, [1.0, -2.5]);
}

/// L5: compares every f16 with its definition (IEEE 754 binary16) in float64.
#[test]
fn test_all_f16_values() {
    for bits in 0..=u16::MAX {
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            e => (1.0 + fraction / 1024.0) * 2f64.powi(e - 15),
        };
        let want = if bits >> 15 == 1 { -magnitude } else { magnitude };
        let mut got = [0.0];
        dequantize(GgmlType::F16, &bits.to_le_bytes(), &mut got).unwrap();
        let same = if want.is_nan() { got[0].is_nan() } else { f64::from(got[0]).to_bits() == want.to_bits() };
        assert!(same, "{bits:#06x}: got {}, expected {want}", got[0]);
    }
}

/// A bfloat16 is the upper half of an f32.
#[test]
fn test_all_bf16_values() {
    for bits in 0..=u16::MAX {
        let want = f32::from_bits(u32::from(bits) << 16);
        let mut got = [0.0];
        dequantize(GgmlType::BF16, &bits.to_le_bytes(), &mut got).unwrap();
        assert!(got[0].to_bits() == want.to_bits() || (want.is_nan() && got[0].is_nan()), "{bits:#06x}");
    }
}

/// L7: compares every scale with every element of MXFP4 to the definition in OCP Microscaling Formats v1.0: E8M0 with
/// bias 127, E2M1 with bias 1, element `j` in the low nibble of byte `j`, element `j + 16` in its high one.
#[test]
fn test_all_mxfp4_values() {
    for scale in 0..=u8::MAX {
        let mut block = vec![scale];
        block.extend((0..16).map(|code| code | (15 - code) << 4));
        let mut got = [0.0; 32];
        dequantize(GgmlType::MXFP4, &block, &mut got).unwrap();
        for (j, got) in got.into_iter().enumerate() {
            let code = if j < 16 { j } else { 31 - j };
            let (sign, exponent, fraction) = (code >> 3, (code >> 1 & 3) as i32, (code & 1) as f64);
            let element = if exponent == 0 { fraction / 2.0 } else { 2f64.powi(exponent - 1) * (1.0 + fraction / 2.0) };
            let want = if sign == 1 { -element } else { element } * 2f64.powi(i32::from(scale) - 127);
            assert_eq!(got, want as f32, "scale {scale}, element {j}");
        }
    }
}

/// Compares every scale of NVFP4 with every element to the definitions: E4M3 (OCP 8-bit Floating Point v1.0, bias 7)
/// and E2M1; of 16 elements, `j` in the low nibble of byte `j`, `j + 8` in its high one.
#[test]
fn test_all_nvfp4_values() {
    for first in (0..0x80).step_by(4) {
        let scales = [0, 1, 2, 3].map(|i| first + i);
        let mut block = scales.to_vec();
        block.extend((0..4).flat_map(|_| (0..8).map(|code| code | (15 - code) << 4)));
        let mut got = [0.0; 64];
        dequantize(GgmlType::NVFP4, &block, &mut got).unwrap();
        // A sign of a scale is not read.
        block[..4].iter_mut().for_each(|scale| *scale |= 0x80);
        let mut signed = [0.0; 64];
        dequantize(GgmlType::NVFP4, &block, &mut signed).unwrap();
        assert_eq!(got, signed);
        for (j, got) in got.into_iter().enumerate() {
            let scale = match (scales[j / 16] >> 3, scales[j / 16] & 7) {
                (15, 7) => 0.0,
                (0, fraction) => f64::from(fraction) * 2f64.powi(-9),
                (exponent, fraction) => (1.0 + f64::from(fraction) / 8.0) * 2f64.powi(i32::from(exponent) - 7),
            };
            let code = if j % 16 < 8 { j % 16 } else { 23 - j % 16 };
            let element = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code % 8];
            let want = if code < 8 { element } else { -element } * scale;
            assert_eq!(got, want as f32, "scales {scales:?}, element {j}");
        }
    }
}

/// L2, L6: ids and sizes agree with the golden archives, which contain ggml's own.
#[test]
fn test_table_agrees_with_ggml() {
    let index = testdata::json("quant/index.json");
    let mut seen = 0;
    for (name, entry) in index.as_object().unwrap() {
        let number = |key: &str| entry[key].as_u64().unwrap() as usize;
        let t = GgmlType::from_name(name).unwrap_or_else(|| panic!("{name} is not in the table"));
        assert_eq!(t.id() as usize, number("type_id"), "{name}");
        assert_eq!((t.block_elements(), t.block_bytes()), (number("block_size"), number("type_size")), "{name}");
        seen += 1;
    }
    assert!(seen >= 27, "only {seen} types in the index");
}

/// L6: tests ggml's whole enum, including types without golden blocks. Removed ids stay without a type.
#[test]
fn test_table_of_ids_and_sizes() {
    let ggml: [(u32, &str, usize, usize); 11] = [
        (0, "F32", 1, 4),
        (9, "Q8_1", 32, 36),
        (15, "Q8_K", 256, 292),
        (24, "I8", 1, 1),
        (25, "I16", 1, 2),
        (26, "I32", 1, 4),
        (27, "I64", 1, 8),
        (28, "F64", 1, 8),
        (40, "NVFP4", 64, 36),
        (41, "Q1_0", 128, 18),
        (42, "Q2_0", 64, 18),
    ];
    for (id, name, elements, bytes) in ggml {
        let t = GgmlType::from_id(id).unwrap();
        assert_eq!((t.name(), t.block_elements(), t.block_bytes()), (name, elements, bytes));
    }
    let known: Vec<u32> = (0..1000).filter(|&id| GgmlType::from_id(id).is_some()).collect();
    let removed = [4, 5, 31, 32, 33, 36, 37, 38];
    let expected: Vec<u32> = (0..=42).filter(|id| !removed.contains(id)).collect();
    assert_eq!(known, expected);
    assert!(GgmlType::from_id(u32::MAX).is_none());
    for id in 0..1000 {
        assert_eq!(GgmlType::is_removed_id(id), removed.contains(&id), "{id}");
    }
}

#[test]
fn test_ids_and_names_round_trip() {
    assert_eq!(GgmlType::ALL.len(), 35);
    for &t in GgmlType::ALL {
        assert_eq!(GgmlType::from_id(t.id()), Some(t));
        assert_eq!(GgmlType::from_name(t.name()), Some(t));
        assert_eq!(GgmlType::from_name(&t.name().to_lowercase()), Some(t));
    }
    assert_eq!(GgmlType::from_name("Q4_2"), None);
    assert_eq!(GgmlType::from_name(""), None);
}

#[test]
fn test_decoders_are_exactly_those_promised() {
    for &t in GgmlType::ALL {
        assert_eq!(can_dequantize(t), DECODED.contains(&t), "{t:?}");
    }
    let error = dequantize(GgmlType::I32, &[0; 4], &mut [0.0]).unwrap_err();
    assert!(error.to_string().contains("I32 has no decoder"), "{error}");
}

/// L1: the size of a row neither overflows nor rounds.
#[test]
fn test_row_bytes_is_checked() {
    assert_eq!(GgmlType::Q4_K.row_bytes(512), Some(288));
    assert_eq!(GgmlType::Q4_K.row_bytes(0), Some(0));
    assert_eq!(GgmlType::Q4_K.row_bytes(255), None);
    assert_eq!(GgmlType::Q8_0.row_bytes(48), None);
    assert_eq!(GgmlType::F32.row_bytes(usize::MAX), None);
    assert_eq!(GgmlType::F32.row_bytes(usize::MAX / 4), Some(usize::MAX / 4 * 4));
    assert_eq!(GgmlType::Q8_0.row_bytes(usize::MAX & !31), None);
}

/// L4: data that is too short or too long is an error, and nothing is written.
#[test]
fn test_wrong_lengths_are_errors() {
    for t in DECODED {
        let data = vec![0x5a; 3 * t.block_bytes()];
        let mut out = vec![7.5; 3 * t.block_elements()];
        for wrong in [0, t.block_bytes(), data.len() - t.block_bytes(), data.len() - 1] {
            let error = dequantize(t, &data[..wrong], &mut out).unwrap_err();
            assert!(error.to_string().contains(t.name()), "{error}");
        }
        let fewer = out.len() - 1;
        dequantize(t, &data, &mut out[..fewer]).unwrap_err();
        assert!(out.iter().all(|&v| v == 7.5), "{t:?}");
        dequantize(t, &[], &mut []).unwrap();
    }
}

/// L13: blocks are read at any address.
#[test]
fn test_unaligned_data() {
    for t in golden_types() {
        let golden = testdata::npz(&format!("quant/{}", t.name()));
        let row_bytes = t.row_bytes(512).unwrap();
        let want = &golden.f32("values")[..512];
        for offset in 0..8 {
            let mut buffer = vec![0xff; offset];
            buffer.extend(&golden.u8("raw")[..row_bytes]);
            let mut got = vec![0.0; 512];
            dequantize(t, &buffer[offset..], &mut got).unwrap();
            assert_eq!(first_difference(&got, want), None, "{t:?} at {offset}");
        }
    }
}

proptest! {
    /// Any bits decode without a panic, and block by block as all together.
    #[test]
    fn prop_any_bits_decode(which in 0..DECODED.len(), seed in any::<[u8; 32]>(), blocks in 1usize..5) {
        let t = DECODED[which];
        let mut reader = blake3::Hasher::new_keyed(&seed).finalize_xof();
        let mut data = vec![0; blocks * t.block_bytes()];
        reader.fill(&mut data);
        let mut whole = vec![0.0; blocks * t.block_elements()];
        dequantize(t, &data, &mut whole).unwrap();
        let mut part = vec![0.0; t.block_elements()];
        for (block, values) in data.chunks_exact(t.block_bytes()).zip(whole.chunks_exact(t.block_elements())) {
            dequantize(t, block, &mut part).unwrap();
            prop_assert!(part.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
    }
}
