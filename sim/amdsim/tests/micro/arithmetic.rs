//! Arithmetic of all types, in vectors and scalars.

use crate::{COUNT, expect, run};

#[test]
fn integers() {
    run(
        "dot",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 2, |part, t| {
                let (a, b) = (x[t].to_le_bytes(), x[t + 64].to_le_bytes());
                let signed = |i: usize| i32::from(a[i] as i8) * i32::from(b[i] as i8);
                match part {
                    0 => (0..4).fold(x[t + 128] as i32, |sum, i| sum.wrapping_add(signed(i))) as u32,
                    _ => (0..4).fold(5, |sum, i| sum + u32::from(a[i]) * u32::from(b[i])),
                }
            });
        },
    );
    run(
        "bits",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 4, |part, t| match part {
                0 => x[t].count_ones(),
                1 => (x[t] >> (t & 31) | 1).leading_zeros() + 64 * (x[t] | 0x8000_0000).trailing_zeros(),
                2 => x[t].reverse_bits(),
                _ => x[t] & x[t + 64] | !x[t] & x[t + 128],
            });
        },
    );
    run(
        "wide",
        |_| true,
        |x, y, lanes| {
            let join = |t: usize| u64::from(x[t]) << 32 | u64::from(x[t + 64]);
            expect(y, lanes, 11, |part, t| {
                let (a, b) = (join(t), join(t + 128));
                let shift = (b & 63) as u32;
                let value = match part / 2 {
                    0 => a.wrapping_add(b),
                    1 => a.wrapping_sub(b),
                    2 => a.wrapping_mul(b),
                    3 => a >> shift,
                    4 => (a as i64 >> shift) as u64,
                    _ => u64::from(a < b) + 2 * u64::from((a as i64) < b as i64),
                };
                if part % 2 == 0 { value as u32 } else { (value >> 32) as u32 }
            });
        },
    );
}

#[test]
fn extremes_and_parts() {
    run(
        "extremes",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 4, |part, t| {
                let (a, b, c) = (x[t], x[64 + t], x[128 + t]);
                match part {
                    0 => a.min(b).wrapping_add((a as i32).max(c as i32) as u32),
                    1 => a.saturating_sub(b).wrapping_add((a as i32).saturating_add(c as i32) as u32),
                    2 => a.max(b).max(c),
                    _ => ((a >> 8 & 255) as f32 + (a >> 24) as f32 * 256.0).to_bits(),
                }
            });
        },
    );
    let has_sdwa = |target: &str| target.starts_with("gfx9") || target.starts_with("gfx10");
    run("sdwa", has_sdwa, |x, y, lanes| {
        expect(y, lanes, 2, |part, t| {
            let (a, b, old) = (x[t], x[64 + t], x[128 + t]);
            match part {
                0 => (a >> 16 & 255 & b >> 16) << 16 | old & 0xffff,
                _ => (((a >> 24) as i8 as u32 | b) as i8 as u32) << 8,
            }
        });
    });
    let has_accumulators = |target: &str| matches!(target, "gfx908" | "gfx90a" | "gfx942" | "gfx950");
    run("accumulators", has_accumulators, |x, y, lanes| expect(y, lanes, 1, |_, t| x[t]));
}

#[test]
fn scalar_registers() {
    run(
        "uniform",
        |_| true,
        |x, y, lanes| {
            let (mut sum, mut mixed) = (1f32, 1u64);
            for i in 0..COUNT {
                let v = x[8 * i];
                sum = ((v & 255) as f32).mul_add(0.5, sum);
                let shifted = (u64::from(v) << 32 | u64::from(x[8 * i + 1])) >> (v & 31);
                mixed = mixed.wrapping_mul(3).wrapping_add(shifted);
                if mixed > u64::from(v) << 33 {
                    mixed = mixed.wrapping_sub(v.into());
                }
                let quotient = (v as i32 >> 3) as u32 / (i as u32 + 1);
                let counts = mixed.count_ones() + (v | 256).trailing_zeros();
                mixed ^= u64::from(counts.wrapping_add(quotient));
            }
            expect(y, lanes, 4, |part, _| match part {
                0 => mixed as u32,
                1 => (mixed >> 32) as u32,
                2 => sum.recip().to_bits(),
                _ => ((sum * 0.3).trunc() - (sum * 0.7).floor()).to_bits(),
            });
        },
    );
}

#[test]
fn division() {
    run(
        "divide",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 6, |part, t| {
                let quotient = f64::from(x[t] as i32) / f64::from(x[t + 64] as i32);
                match part {
                    0 => (x[t] / ((x[t + 64] & 0xff) + 1)).wrapping_add(x[t] % 77),
                    1 => (x[t] as i32).wrapping_div(x[t + 64] as i32 | 1) as u32,
                    2 => (((u64::from(x[t]) << 32 | u64::from(x[t + 64])) / 1_000_003) >> 7) as u32,
                    3 => (x[t] as i32 as f32 / x[t + 64] as i32 as f32).to_bits(),
                    4 => quotient.to_bits() as u32,
                    _ => (quotient.to_bits() >> 32) as u32,
                }
            });
        },
    );
}

#[test]
fn floats() {
    run(
        "floats",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 7, |part, t| {
                let (a, b, c) = (x[t] as i32 as f32 * 1e-7, x[t + 64] as i32 as f32 * 1e-8, x[t + 128] as i32 as f32);
                let special = match t & 7 {
                    1 | 5 => x[t] & 0x8000_0000 | if t & 4 != 0 { 0x40_0000 } else { 0 },
                    3 | 7 => x[t] & 0x8000_0000 | 0x7f80_0000 | if t & 4 != 0 { 0x40_0000 } else { 0 },
                    _ => x[t],
                };
                let special = f32::from_bits(special);
                let flags = [
                    special.is_nan(),
                    special.is_infinite(),
                    special < 1.0,
                    special.is_nan() || special >= 1.0,
                    special.is_nan(),
                ];
                match part {
                    0 => a.mul_add(b, c).to_bits(),
                    1 => a.min(b).max(a.max(b).min(3.0)).to_bits(),
                    2 => a.round_ties_even().to_bits() ^ b.floor().to_bits(),
                    3 => (a as i32 as u32).wrapping_add(b.abs() as u32),
                    4 => a.abs().sqrt().to_bits(),
                    5 => (a * 2f32.powi((x[t] & 31) as i32 - 16)).to_bits(),
                    _ => flags.iter().enumerate().fold(0, |bits, (i, flag)| bits | u32::from(*flag) << i),
                }
            });
        },
    );
    run(
        "transcendental",
        |_| true,
        |x, y, lanes| {
            for part in 0..5 {
                for t in 0..lanes {
                    let v = f64::from((x[t] & 0xffff) as f32 / 65536.0 - 0.25);
                    let expected = match part {
                        0 => (v * std::f64::consts::TAU).sin(),
                        1 => (v * std::f64::consts::TAU).cos(),
                        2 => (v + 1.0).log2(),
                        3 => (16.0 * v).exp2(),
                        _ => 1.0 / (v + 1.0).sqrt(),
                    };
                    let got = f64::from(f32::from_bits(y[64 * part + t]));
                    assert!((got - expected).abs() <= expected.abs().max(1e-3) * 2e-7, "{part}: {got} {expected}");
                }
            }
        },
    );
}

#[test]
fn halves() {
    use half::f16;
    let pack = |low: f16, high: f16| u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16;
    let fma = |a: f16, b: f16, c: f16| f16::from_f64(a.to_f64() * b.to_f64() + c.to_f64());
    run(
        "halves",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 6, |part, t| {
                let a = [f16::from_f32((x[t] & 1023) as f32), f16::from_f32(0.1)];
                let b = [f16::from_f32(0.3), f16::from_f32((x[t + 64] & 15) as f32)];
                let scaled = |factor: f32| f16::from_f32(x[t] as i32 as f32 * factor);
                let value = |bits: u32| f16::from_bits(bits as u16 & 0xfbff).to_f32();
                match part {
                    0 => pack(fma(a[0], b[0], b[0]), fma(a[1], b[1], b[1])),
                    1 => {
                        pack(f16::from_f32(a[0].to_f32() + b[0].to_f32()), f16::from_f32(a[1].to_f32() + b[1].to_f32()))
                    }
                    2 => pack(scaled(1e-9), scaled(1e-14)),
                    3 => (value(x[t]) + value(x[t] >> 16) * 2.0).to_bits(),
                    4 => {
                        let exact = x[t] as i32 as f32 * 1e-9;
                        let nearest = f16::from_f32(exact);
                        let too_far = nearest.to_f32().abs() > exact.abs();
                        pack(f16::from_bits(nearest.to_bits() - u16::from(too_far)), f16::MAX)
                    }
                    _ => u32::from(f16::from_f32(a[0].to_f32() / ((x[t] & 15) + 1) as f32).to_bits()),
                }
            });
        },
    );
}
