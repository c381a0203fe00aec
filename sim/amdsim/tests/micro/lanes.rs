//! Instructions in which lanes read each other.

use crate::{expect, run};

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

/// The exchanges that sums over lanes consist of.
#[test]
fn exchanges() {
    run("exchanges", |_| true, |x, y, lanes| expect(y, lanes, lanes.ilog2() as usize, |part, t| x[t ^ 1 << part]));
    run("sum_of_exchange", |_| true, |x, y, lanes| expect(y, lanes, 1, |_, t| (x[t] & 255) + (x[t ^ 8] & 255)));
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
