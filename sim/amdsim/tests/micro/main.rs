//! Tests one class of instructions at a time, against references computed here.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../common/mod.rs"]
mod common;

mod arithmetic;
mod lanes;
mod matrix;
mod memory;

use amdsim::Order;
use common::{Arena, Args, Case, Random, on, targets};

const WORDS: usize = 1024;
const COUNT: usize = 50;

/// Runs a kernel of `micro.hip` with one wave. `judge` gets its inputs, its results and the number of lanes.
fn run(kernel: &str, has: impl Fn(&str) -> bool, judge: impl Fn(&[u32], &[u32], usize)) {
    let x = Random(9).words(WORDS);
    on(&targets(has), "micro", |object, order| {
        let mut memory = Arena::default();
        let y = memory.zeros::<u32>(WORDS);
        // The last argument is for the kernel `uniform` only.
        let args = Args::default().with(y).with(memory.upload(&x)).with(COUNT as i32);
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
