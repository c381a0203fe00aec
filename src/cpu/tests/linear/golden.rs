//! Comparison with blocks, values and dot products of ggml.

use super::*;

/// Returns the largest error that 8-bit activations may cause: half a step per element.
fn rounding_bound(w: &[f32], x: &[f32]) -> f64 {
    let mut bound = 0.0;
    for (w, x) in w.chunks(32).zip(x.chunks(32)) {
        let amax = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        bound += w.iter().map(|v| f64::from(v.abs())).sum::<f64>() * f64::from(amax) / 254.0;
    }
    bound
}

/// L2, L8: ggml's blocks of every type (random bits under odd scales included) times ggml's vector.
#[test]
fn dot_products_of_ggml_blocks() {
    for ggml_type in types().filter(|&t| t != GgmlType::F32) {
        let golden = npz(&format!("quant/{}", ggml_type.name()));
        let (raw, x, dots) = (golden.u8("raw"), golden.f32("x"), golden.f64("dots"));
        let (values, abs_dots) = (golden.f32("values"), golden.f64("abs_dots"));
        let rows = dots.len();
        for isa in Isa::available() {
            let out = multiply(isa, &[part(view(ggml_type, rows, 512, &raw))], &x, 1);
            for row in 0..rows {
                // The terms of a K-quant (scale * code and minimum) are larger than their sum.
                let terms = values[row * 512..][..512].iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let scale = abs_dots[row] + 512.0 * f64::from(terms);
                let eight_bits = match ggml_type.block_elements() {
                    1 => 0.0,
                    _ => rounding_bound(&values[row * 512..][..512], &x),
                };
                let error = (f64::from(out[row]) - dots[row]).abs();
                // 1e-34: subnormal MXFP4 scales count as zero (512 * 12 * 2^-127 * largest x).
                let bound = eight_bits + 2e-6 * scale + 1e-34;
                assert!(error <= bound, "{ggml_type:?} {isa:?} row {row}: {} for {}", out[row], dots[row]);
            }
        }
    }
}

/// The error of 8-bit activations is unbiased: on average well below its bound for every type.
#[test]
fn rounding_of_activations_is_not_biased() {
    let x = Random(3).values(512);
    for ggml_type in types() {
        let rows = 20;
        let raw = matrix(ggml_type, rows, 512);
        let w = decoded(ggml_type, &raw, rows * 512);
        let out = multiply(Isa::detect(), &[part(view(ggml_type, rows, 512, &raw))], &x, 1);
        let (mut error, mut size) = (0.0, 0.0);
        for (w, out) in w.chunks(512).zip(&out) {
            let exact: f64 = w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let norm: f64 = w.iter().map(|w| f64::from(*w).powi(2)).sum();
            error += (f64::from(*out) - exact).powi(2) / norm;
            size += 1.0;
        }
        // Uniform rounding: variance step²/12 per element, step = 3 / 127.
        let expected = (3.0f64 / 127.0).powi(2) / 12.0;
        assert!(error / size < 3.0 * expected, "{ggml_type:?}: {} of {expected}", error / size);
    }
}

/// Packing is a permutation: every row reads back as the values of its GGUF bytes.
#[test]
fn rows_read_back_exactly() {
    for ggml_type in types().filter(|&t| t != GgmlType::F32) {
        let golden = npz(&format!("quant/{}", ggml_type.name()));
        let (raw, values) = (golden.u8("raw"), golden.f32("values"));
        let pool = ThreadPool::new(1).unwrap();
        let rows = golden.shape("raw")[0];
        let packed = PackedMatrix::pack(
            Isa::detect(),
            &[part(view(ggml_type, rows, 512, &raw))],
            &mut WeightMemory::default(),
            &pool,
            &mut |_| Ok(()),
        )
        .unwrap();
        let mut out = vec![0.0; 512];
        for (row, values) in values.chunks(512).enumerate() {
            packed.dequantize_row(row, &mut out);
            assert_eq!(bits(&out), bits(values), "{ggml_type:?} row {row}");
        }
    }
}

/// M15: packed bytes are the file's, up to the last tile's padding.
#[test]
fn packed_bytes_are_file_bytes() {
    let pool = ThreadPool::new(1).unwrap();
    for ggml_type in types() {
        let raw = matrix(ggml_type, 64, 512);
        let packed = PackedMatrix::pack(
            Isa::detect(),
            &[part(view(ggml_type, 64, 512, &raw))],
            &mut WeightMemory::default(),
            &pool,
            &mut |_| Ok(()),
        )
        .unwrap();
        assert!(packed.bytes() >= raw.len() as u64);
        assert!(packed.bytes() <= raw.len() as u64 + 4 * 64, "{ggml_type:?}: {} for {}", packed.bytes(), raw.len());
    }
}
