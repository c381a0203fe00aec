//! Comparison with float64 for activations that are exact in 8 bits; stacks, biases, non-finite values, bad input.

use super::*;
use rocmforge_core::Error;

/// Returns activations that blocks of 32 with scale 2^-k hold exactly: each block's largest magnitude is 127 steps.
fn exact_activations(random: &mut Random, n: usize) -> Vec<f32> {
    let mut step = 1.0;
    (0..n)
        .map(|i| {
            if i % 32 == 0 {
                step = 0.5f32.powi((random.next() % 12) as i32);
                return 127.0 * step;
            }
            ((random.next() % 255) as f32 - 127.0) * step
        })
        .collect()
}

/// Returns `(Σ w x, Σ |terms|)` in float64 for one weight row.
fn reference(w: &[f32], x: &[f32]) -> (f64, f64) {
    // A weight is a difference of terms as large as the block's largest value, and rounding errors have their size.
    let largest = w.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let dot = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
    (dot, x.iter().map(|x| f64::from(x.abs() * largest)).sum())
}

/// G19, P5: every type at odd sizes against float64, to f32 precision.
#[test]
fn products_equal_float64() {
    let mut random = Random(1);
    for ggml_type in types() {
        for &cols in col_counts(ggml_type) {
            for (rows, num_rows) in [(1, 3), (15, 1), (16, 2), (17, 5), (33, 17)] {
                let raw = matrix(ggml_type, rows, cols);
                let w = decoded(ggml_type, &raw, rows * cols);
                let x = exact_activations(&mut random, num_rows * cols);
                let x: Vec<f32> = match ggml_type.block_elements() {
                    1 => random.values(num_rows * cols),
                    _ => x,
                };
                let out = multiply(Isa::detect(), &[part(view(ggml_type, rows, cols, &raw))], &x, num_rows);
                for (r, x) in x.chunks(cols).enumerate() {
                    for (o, w) in w.chunks(cols).enumerate() {
                        let (dot, size) = reference(w, x);
                        let got = f64::from(out[r * rows + o]);
                        assert!(
                            (got - dot).abs() <= 2e-6 * size,
                            "{ggml_type:?} {rows} x {cols}, [{r}][{o}]: {got} for {dot}"
                        );
                    }
                }
            }
        }
    }
}

/// q, k, v of three types and one bias, in one stack.
#[test]
fn stacks_mix_types_and_biases() {
    let (cols, num_rows) = (256, 19);
    let x = exact_activations(&mut Random(2), num_rows * cols);
    let specs = [(GgmlType::Q4_K, 33), (GgmlType::Q6_K, 16), (GgmlType::F16, 5), (GgmlType::TQ2_0, 18)];
    let raws: Vec<_> = specs.iter().map(|&(t, rows)| matrix(t, rows, cols)).collect();
    let bias: Vec<f32> = Random(9).values(16);
    let bias_bytes: Vec<u8> = bias.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut parts: Vec<_> = specs.iter().zip(&raws).map(|(&(t, rows), raw)| part(view(t, rows, cols, raw))).collect();
    parts[1].bias = Some(view(GgmlType::F32, 1, 16, &bias_bytes));
    let total: usize = specs.iter().map(|s| s.1).sum();
    let w: Vec<f32> = specs.iter().zip(&raws).flat_map(|(&(t, rows), raw)| decoded(t, raw, rows * cols)).collect();

    let out = multiply(Isa::detect(), &parts, &x, num_rows);
    for (r, x) in x.chunks(cols).enumerate() {
        for (o, w) in w.chunks(cols).enumerate() {
            let (dot, size) = reference(w, x);
            let expected = dot + if (33..49).contains(&o) { f64::from(bias[o - 33]) } else { 0.0 };
            let got = f64::from(out[r * total + o]);
            assert!((got - expected).abs() <= 2e-6 * size + 1e-6, "[{r}][{o}]: {got} for {expected}");
        }
    }

    let pool = ThreadPool::new(2).unwrap();
    let packed =
        PackedMatrix::pack(Isa::detect(), &parts, &mut WeightMemory::default(), &pool, &mut |_| Ok(())).unwrap();
    assert_eq!((packed.rows(), packed.cols()), (total, cols));
    assert_eq!(packed.kernels()[3], (GgmlType::TQ2_0, Isa::detect().name()));
    let mut row = vec![0.0; cols];
    for (o, w) in w.chunks(cols).enumerate() {
        packed.dequantize_row(o, &mut row);
        assert_eq!(bits(&row), bits(w), "row {o}");
    }
}

/// A NaN or infinity in one activation row gives NaN or infinity there and changes no other row.
#[test]
fn values_that_are_not_finite_surface() {
    let (rows, cols) = (17, 256);
    for ggml_type in types() {
        let raw = matrix(ggml_type, rows, cols);
        let parts = [part(view(ggml_type, rows, cols, &raw))];
        let mut x = Random(4).values(3 * cols);
        for isa in Isa::available() {
            let clean = multiply(isa, &parts, &x, 3);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let good = std::mem::replace(&mut x[cols + 40], bad);
                let out = multiply(isa, &parts, &x, 3);
                x[cols + 40] = good;
                assert!(out[rows..2 * rows].iter().all(|v| !v.is_finite()), "{ggml_type:?} {isa:?} {bad}");
                assert_eq!(bits(&out[..rows]), bits(&clean[..rows]));
                assert_eq!(bits(&out[2 * rows..]), bits(&clean[2 * rows..]));
            }
        }
    }
}

/// Blocks of zeros, of subnormals and of values near the largest f32 neither panic nor turn into noise.
#[test]
fn extreme_activations() {
    let raw = matrix(GgmlType::Q8_0, 4, 32);
    let parts = [part(view(GgmlType::Q8_0, 4, 32, &raw))];
    for isa in Isa::available() {
        assert!(multiply(isa, &parts, &[0.0; 32], 1).iter().all(|v| *v == 0.0));
        assert!(multiply(isa, &parts, &[1e-42; 32], 1).iter().all(|v| v.abs() < 1e-28));
        let w = decoded(GgmlType::Q8_0, &raw, 4 * 32);
        for (out, w) in multiply(isa, &parts, &[1e36; 32], 1).iter().zip(w.chunks(32)) {
            let dot: f64 = w.iter().map(|w| f64::from(*w) * 1e36).sum();
            let size: f64 = w.iter().map(|w| f64::from(w.abs()) * 1e36).sum();
            assert!((f64::from(*out) - dot).abs() <= 1e-6 * size, "{out} for {dot}");
        }
    }
}

/// L4: bytes that do not fit the shape, mixed columns, no parts, and types without a decoder are typed errors.
#[test]
fn inconsistent_parts_are_errors() {
    let pool = ThreadPool::new(1).unwrap();
    let raw = matrix(GgmlType::Q4_0, 3, 64);
    let check = |parts: &[LinearPart<'_>]| {
        assert!(
            matches!(
                PackedMatrix::pack(Isa::detect(), parts, &mut WeightMemory::default(), &pool, &mut |_| Ok(())),
                Err(Error::Internal { .. })
            ),
            "{parts:?}"
        );
    };
    check(&[]);
    check(&[part(view(GgmlType::Q4_0, 4, 64, &raw))]);
    check(&[part(view(GgmlType::Q4_0, 3, 63, &raw))]);
    check(&[part(view(GgmlType::Q4_0, usize::MAX, 64, &raw))]);
    check(&[part(view(GgmlType::Q4_0, 0, 64, &[]))]);
    check(&[part(view(GgmlType::I32, 3, 36, &[0; 432]))]);
    check(&[part(view(GgmlType::Q4_0, 3, 64, &raw)), part(view(GgmlType::Q4_0, 6, 32, &raw))]);
    let mut biased = part(view(GgmlType::Q4_0, 3, 64, &raw));
    biased.bias = Some(view(GgmlType::F32, 1, 2, &[0; 8]));
    check(&[biased]);
}
