//! Matrix units.

use crate::run;

/// The product of A (rows of `depth` elements from x) and B (columns from x + 512), plus a constant.
fn check_matrix(
    x: &[u32],
    y: &[u32],
    (side, depth): (usize, usize),
    value: [fn(&[u32], usize) -> f64; 2],
    c: Option<i32>,
) {
    for row in 0..side {
        for column in 0..side {
            let product = |k| value[0](x, row * depth + k) * value[1](&x[512..], column * depth + k);
            let sum: f64 = (0..depth).map(product).sum();
            let got = y[row * side + column];
            match c {
                Some(c) => assert_eq!(got as i32, sum as i32 + c, "{row}, {column}"),
                None => assert_eq!(f32::from_bits(got), sum as f32, "{row}, {column}"),
            }
        }
    }
}

fn u4(x: &[u32], i: usize) -> f64 {
    f64::from(x[i / 8] >> (4 * (i % 8)) & 15)
}

fn i8(x: &[u32], i: usize) -> f64 {
    f64::from((x[i / 4] >> (8 * (i % 4))) as i8)
}

fn u8(x: &[u32], i: usize) -> f64 {
    f64::from((x[i / 4] >> (8 * (i % 4))) as u8)
}

fn bf16(x: &[u32], i: usize) -> f64 {
    half::bf16::from_bits((x[i / 2] >> (16 * (i % 2))) as u16 & 0xbfff).to_f64()
}

/// e4m3 without its largest exponents, and without -0, which is NaN in the FNUZ variant.
fn fp8(x: &[u32], i: usize, bias: i32) -> f64 {
    let byte = (x[i / 4] >> (8 * (i % 4))) as i32 & 0xbf | 1;
    let (exponent, mantissa) = (byte >> 3 & 15, f64::from(byte & 7) / 8.0);
    let value = match exponent {
        0 => mantissa * 2f64.powi(1 - bias),
        _ => (1.0 + mantissa) * 2f64.powi(exponent - bias),
    };
    if byte & 128 != 0 { -value } else { value }
}

#[test]
fn matrix_units() {
    let wmma = |target: &str| target.starts_with("gfx11") || target.starts_with("gfx12");
    let mfma = |target: &str| matches!(target, "gfx90a" | "gfx942");
    run("matrix_i8", wmma, |x, y, _| check_matrix(x, y, (16, 16), [i8, u8], Some(3)));
    run("matrix_u4", wmma, |x, y, _| check_matrix(x, y, (16, 16), [u4, u4], Some(0)));
    let bf16_unit = |target: &str| wmma(target) || mfma(target);
    run("matrix_bf16", bf16_unit, |x, y, _| check_matrix(x, y, (16, 16), [bf16, bf16], None));
    let ocp: fn(&[u32], usize) -> f64 = |x, i| fp8(x, i, 7);
    run("matrix_fp8", |target| target.starts_with("gfx12"), |x, y, _| check_matrix(x, y, (16, 16), [ocp, ocp], None));
    run("matrix_32", mfma, |x, y, _| check_matrix(x, y, (32, 8), [i8, i8], None));
    run(
        "matrix_overlap",
        |target| target == "gfx942",
        |x, y, _| {
            for (at, got) in y[..256].iter().enumerate() {
                let (row, column) = (at / 16, at % 16);
                let sum: f64 = (0..16).map(|k| i8(x, row * 16 + k) * i8(&x[512..], column * 16 + k)).sum();
                let c = [1.0, 2.0, 4.0, -1.0][row % 4];
                assert_eq!(f32::from_bits(*got), (sum + c) as f32, "{row}, {column}");
            }
        },
    );
    run("matrix_k32_i8", |target| target == "gfx942", |x, y, _| check_matrix(x, y, (16, 32), [i8, i8], Some(3)));
    let fnuz: fn(&[u32], usize) -> f64 = |x, i| fp8(x, i, 8);
    run("matrix_k32_fp8", |target| target == "gfx942", |x, y, _| check_matrix(x, y, (16, 32), [fnuz, fnuz], None));
}
