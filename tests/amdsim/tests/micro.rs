//! One class of instructions at a time, against references computed here.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod common;

use amdsim::Order;
use common::{Arena, Args, Case, Random, on, targets};

const WORDS: usize = 1024;

/// Runs a kernel of `micro.hip` with one wave; `judge` gets its sources, its results and the number of lanes.
fn run(kernel: &str, has: impl Fn(&str) -> bool, judge: impl Fn(&[u32], &[u32], usize)) {
    let x = Random(9).words(WORDS);
    on(&targets(has), "micro", |object, order| {
        let mut memory = Arena::default();
        let y = memory.zeros::<u32>(WORDS);
        let args = Args::default().with(y).with(memory.upload(&x));
        let block = object.wavefront_size();
        let case = Case { object, kernel, grid: [1; 3], block, args, order };
        case.run(&mut memory).unwrap_or_else(|trap| panic!("{}: {trap}", object.target()));
        if order == Order::Up {
            println!("{kernel} on {}", object.target());
        }
        judge(&x, &memory.download::<u32>(y), block as usize);
    });
}

/// Expects `reference(part, lane)` in the lanes of each part of 64 words.
fn expect(y: &[u32], lanes: usize, parts: usize, reference: impl Fn(usize, usize) -> u32) {
    for part in 0..parts {
        for lane in 0..lanes {
            let (got, expected) = (y[64 * part + lane], reference(part, lane));
            assert_eq!(got, expected, "part {part}, lane {lane}: {got:#x}, expected {expected:#x}");
        }
    }
}

#[test]
fn dpp() {
    run(
        "dpp",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 6, |part, t| {
                let (row, column, kept) = (t & !15, t & 15, 1000 + t as u32);
                match part {
                    0 => x[t ^ 1],
                    1 => {
                        if column == 0 {
                            kept
                        } else {
                            x[t - 1]
                        }
                    }
                    2 => {
                        if column > 12 {
                            0
                        } else {
                            x[t + 3]
                        }
                    }
                    3 => {
                        if t / 16 % 2 == 1 {
                            kept
                        } else {
                            x[row + (column + 13) % 16]
                        }
                    }
                    4 => x[row + 15 - column],
                    _ => x[t ^ 7],
                }
            });
        },
    );
    run(
        "dpp_in_place",
        |_| true,
        |x, y, lanes| {
            let value = |t: usize| x[t] & 255;
            expect(y, lanes, 1, |_, t| if t % 16 == 0 { value(t) } else { value(t) + value(t - 1) });
        },
    );
}

#[test]
fn lanes() {
    run(
        "swizzle",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 3, |part, t| match part {
                0 => x[t ^ 1],
                1 => x[t & !31 | t & 3 | 5],
                _ => x[t ^ 3],
            });
        },
    );
    run(
        "lanes",
        |_| true,
        |x, y, lanes| {
            let ballot = (0..lanes).fold(0u64, |mask, t| mask | u64::from(x[t] & 1) << t);
            expect(y, lanes, 5, |part, t| match part {
                0 => x[0].wrapping_add(x[5]),
                1 => ballot as u32,
                2 => (ballot >> 32) as u32,
                3 => t as u32 ^ 1,
                _ => {
                    if t & 1 == 1 {
                        x[t ^ 2]
                    } else {
                        7
                    }
                }
            });
        },
    );
    run(
        "permlane",
        |target| !target.starts_with("gfx9"),
        |x, y, lanes| {
            expect(y, lanes, 2, |part, t| if part == 0 { x[t ^ 16] } else { x[[t ^ 7 ^ 8, t ^ 7 ^ 8][part]] });
        },
    );
}

#[test]
fn parts_of_words() {
    let half = |x: &[u32], i: usize| (x[i / 2] >> (16 * (i % 2))) as u16;
    let byte = |x: &[u32], i: usize| (x[i / 4] >> (8 * (i % 4))) as u8;
    run(
        "d16",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 2, |part, t| match part {
                0 => 0x1234_0000 | x[t] & 0xffff,
                _ => x[t] & 0xffff_0000 | 0x5678 | (t as u32) << 16 & 0xffff,
            });
        },
    );
    run(
        "unaligned",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 1, |_, t| x[t] >> 16 | x[t + 1] << 16);
        },
    );
    run(
        "bytes",
        |_| true,
        |x, y, lanes| {
            for t in 0..lanes {
                assert_eq!(byte(y, t), byte(x, 3 * t).wrapping_add(byte(x, t + 1)));
                assert_eq!(half(&y[64..], t), half(x, t).wrapping_add(half(x, t + 7)));
                assert_eq!(y[128 + t] as i32, i32::from(byte(x, t) as i8) + i32::from(half(x, t) as i16));
            }
        },
    );
    run(
        "perm",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 4, |part, t| {
                let joined = u64::from(x[t]) << 32 | u64::from(x[t + 64]);
                match part {
                    0 => (0..4).fold(0, |word, i| {
                        let bytes = joined.to_le_bytes();
                        let selected = match x[t + 128] >> (8 * i) & 15 {
                            sign @ 8..12 => {
                                if bytes[2 * (sign as usize - 8) + 1] & 128 != 0 {
                                    255
                                } else {
                                    0
                                }
                            }
                            12 => 0,
                            13.. => 255,
                            index => bytes[index as usize],
                        };
                        word | u32::from(selected) << (8 * i)
                    }),
                    1 => (joined >> (8 * (x[t + 128] & 3))) as u32,
                    2 => (joined >> (x[t + 128] & 31)) as u32,
                    _ => (x[t] >> 5 & 0x1ff).wrapping_add((((x[t] << 17) as i32) >> 20) as u32),
                }
            });
        },
    );
}

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

#[test]
fn atomics() {
    run(
        "lds_atomics",
        |_| true,
        |x, y, lanes| {
            expect(y, 8, 2, |part, t| {
                let values = (t..lanes).step_by(8).map(|lane| if part == 0 { x[lane] } else { x[lane] & 255 });
                values.fold(0, u32::wrapping_add)
            });
        },
    );
    run(
        "atomics",
        |_| true,
        |x, y, lanes| {
            let x = &x[..lanes];
            let sum: u32 = x.iter().map(|word| word & 255).sum();
            assert_eq!((y[0], y[1]), (sum, *x.iter().max().unwrap()));
            assert_eq!(y[2] as i32, x.iter().map(|word| *word as i32).min().unwrap().min(0));
            assert_eq!(y[3], x.iter().fold(0, |all, word| all ^ word));
            let wide: u64 = x.iter().map(|word| u64::from(*word) << 8).sum();
            assert_eq!(u64::from(y[4]) | u64::from(y[5]) << 32, wide);
            assert_eq!(f32::from_bits(y[6]), sum as f32);
            assert_eq!(y[7], x.iter().copied().fold(0, u32::wrapping_add));
            // The old values, in whatever order, are the sums before each lane.
            let mut old: Vec<u32> = y[64..64 + lanes].to_vec();
            old.sort_unstable();
            assert_eq!(old[0], 0);
            assert!(old.iter().all(|value| *value < sum.max(1)));
            // An exchange returns everything that was stored, but the last.
            let mut seen: Vec<u32> = y[128..128 + lanes].iter().chain(&y[8..9]).copied().collect();
            let mut stored: Vec<u32> = x.iter().copied().chain([0]).collect();
            seen.sort_unstable();
            stored.sort_unstable();
            assert_eq!(seen, stored);
        },
    );
}

#[test]
fn memories() {
    run(
        "scratch",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 1, |_, t| {
                let mut a: Vec<u32> = (0..40).map(|i| x[(i * 7 + t) & 63]).collect();
                (0..20).fold(0u32, |sum, i| {
                    let j = (x[i] as usize % 40 + t) % 40;
                    a[j] = a[j].wrapping_add(a[(j + 3) % 40]);
                    sum.wrapping_add(a[j])
                })
            });
        },
    );
    run(
        "call",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 1, |_, t| {
                let mut a = [1u32, 2, 3, 4, 5, 6, 7, 8];
                let mut called = |v: u32| {
                    for i in 0..8 {
                        let place = (v.wrapping_add(i) & 7) as usize;
                        a[place] = a[place].wrapping_add(v >> i);
                    }
                    a[(v & 7) as usize]
                };
                called(x[t]).wrapping_add(called(x[t + 64]))
            });
        },
    );
    run(
        "constants",
        |_| true,
        |x, y, lanes| {
            let table = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3];
            expect(y, lanes, 1, |_, t| table[x[t] as usize & 15]);
        },
    );
    run(
        "flat",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 1, |_, t| if x[64 + t] & 1 == 1 { x[t ^ 1] } else { x[128 + t] });
        },
    );
    run(
        "buffers",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 2, |part, t| match part {
                0 => {
                    if t < 32 {
                        x[4 * t]
                    } else {
                        0
                    }
                }
                _ => {
                    if t < 16 {
                        x[t]
                    } else {
                        0
                    }
                }
            });
        },
    );
    run(
        "lds_sizes",
        |_| true,
        |x, y, lanes| {
            expect(y, lanes, 3, |part, t| {
                let byte = |t: usize, i: usize| x[t] >> (4 * i) & 0xff;
                let half = |t: usize, i: usize| x[t] >> (5 * i) & 0xffff;
                let other = t ^ 1;
                match part {
                    0 => (0..4).fold(0, |word, i| word | (byte(other, i) ^ byte(other, i + 4)) << (8 * i)),
                    1 => (0..2).fold(0, |word, i| word | (half(other, i) ^ half(other, i + 2)) << (16 * i)),
                    _ => {
                        let product = u64::from(x[t ^ 2]) * u64::from(x[64 + (t ^ 2)]);
                        ((product >> 16) as u32).wrapping_add(byte(t, 3)).wrapping_add(half(t ^ 3, 1))
                    }
                }
            });
        },
    );
    run(
        "wide_memory",
        |_| true,
        |x, y, lanes| {
            for t in 0..lanes {
                for i in 0..4 {
                    assert_eq!(y[4 * (t ^ 1) + i], x[4 * t + i].wrapping_add(1));
                }
                assert_eq!(y[4 * t + 256..][..3], [2, 0, 1].map(|i| x[4 * t + 256 + i]));
                let pair = |words: &[u32], at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
                assert_eq!(pair(y, 512 + 2 * t), pair(x, 2 * t).wrapping_sub(pair(x, 512 + 2 * t)));
            }
        },
    );
    run("time", |_| true, |_, y, lanes| expect(y, lanes, 1, |_, _| 1));
}

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
    run("matrix_k32_i8", |target| target == "gfx942", |x, y, _| check_matrix(x, y, (16, 32), [i8, i8], Some(3)));
    let fnuz: fn(&[u32], usize) -> f64 = |x, i| fp8(x, i, 8);
    run("matrix_k32_fp8", |target| target == "gfx942", |x, y, _| check_matrix(x, y, (16, 32), [fnuz, fnuz], None));
}
