//! The engine's matrix products (kernels/mma.h) on every kind of matrix unit, and without one.
#![allow(clippy::unwrap_used)]

mod common;

use amdsim::Order;
use common::{Arena, Args, Case, Random, compile, targets};

const SIDE: usize = 16;

/// gfx908 multiplies bf16 in two instructions, each with half of every lane's elements.
#[test]
fn products_of_both_formats_take_every_column_once() {
    let mut random = Random(5);
    // Small integers: they and their sums are exact in both formats.
    let mut tile = || (0..SIDE * SIDE).map(|_| (random.bits() % 31) as f32 - 15.0).collect::<Vec<_>>();
    let (a, b) = (tile(), tile());
    let sum = |row: usize, col: usize| (0..SIDE).map(|k| a[SIDE * row + k] * b[SIDE * col + k]).sum::<f32>();
    let expected: Vec<f32> = (0..SIDE * SIDE).map(|at| sum(at / SIDE, at % SIDE)).collect();
    let bf16 = |values: &[f32]| values.iter().map(|value| half::bf16::from_f32(*value).to_bits()).collect::<Vec<_>>();
    let mut all = targets(|_| true);
    all.extend(["gfx908", "gfx950", "gfx1151"].map(str::to_owned));
    for target in &all {
        for (flag, a, b) in [
            ("-DWITH_BF16=false", common::to_halves(&a), common::to_halves(&b)),
            ("-DWITH_BF16=true", bf16(&a), bf16(&b)),
        ] {
            let object = compile("product", target, &[flag]);
            let mut memory = Arena::default();
            let c = memory.zeros::<f32>(SIDE * SIDE);
            let args = Args::default().with(c).with(memory.upload(&a)).with(memory.upload(&b));
            let (block, order) = (object.wavefront_size(), Order::Up);
            Case { object: &object, kernel: "product", grid: [1; 3], block, args, order }.run(&mut memory).unwrap();
            assert_eq!(memory.download::<f32>(c), expected, "{target} {flag}");
        }
    }
}
