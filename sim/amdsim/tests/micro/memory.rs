//! Memories, sizes of accesses, atomics, parts of words.

use crate::{expect, run};

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
            // The old values, in any order, are the sums before each lane.
            let mut old: Vec<u32> = y[64..64 + lanes].to_vec();
            old.sort_unstable();
            assert_eq!(old[0], 0);
            assert!(old.iter().all(|value| *value < sum.max(1)));
            // An exchange returns every stored value except the last.
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
