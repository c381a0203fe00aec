//! Where workgroups do not see each other's stores at once: the protocol of the engine's kernels works with all of its
//! fences, and without any one of them does not.
#![allow(clippy::unwrap_used)]

mod common;

use amdsim::{CodeObject, Coherence, Order};
use common::{Arena, Args, Case, compile, targets};

const THREADS: usize = 256;
const BLOCKS: usize = 7;

/// One target of each memory model: a cache before L2, an L2 for each part of the chip, two levels of caches before L2, and
/// scopes in the instructions.
const MODELS: [&str; 4] = ["gfx90a", "gfx942", "gfx1100", "gfx1201"];

/// Sums and counters.
type Results = (Vec<u32>, Vec<u32>);

/// The sums that a kernel of `arrival.hip` leaves, and its counters.
fn arrive(object: &CodeObject, kernel: &str, coherence: Coherence, order: Order) -> Results {
    let mut memory = Arena::default();
    let (out, shares) = (memory.zeros::<u32>(THREADS), memory.zeros::<u32>(THREADS * BLOCKS));
    let counters = memory.zeros::<u32>(8);
    let args = Args::default().with(out).with(shares).with(counters).with(BLOCKS as u64);
    let case = Case { object, kernel, grid: [BLOCKS as u32, 1, 1], block: THREADS as u32, args, order };
    case.run_as(coherence, &mut memory).unwrap();
    (memory.download(out), memory.download(counters))
}

/// What each thread's sum must be: that of the thread after it by `step`, in rings of `ring` threads.
fn expected(step: usize, ring: usize) -> Results {
    let share = |block: usize, thread: usize| 1000 * block + 7 * thread + 1;
    let other = |thread: usize| thread / ring * ring + (thread + step) % ring;
    let sum = |thread: usize| (0..BLOCKS).map(|block| share(block, other(thread))).sum::<usize>() as u32;
    ((0..THREADS).map(sum).collect(), vec![0; 8])
}

fn kernels(object: &CodeObject) -> [(&'static str, Results); 2] {
    let wave = object.wavefront_size() as usize;
    [("blocks_arrive", expected(wave, THREADS)), ("waves_arrive", expected(0, wave))]
}

#[test]
fn arrivals_publish_what_was_stored() {
    for target in &targets(|target| MODELS.contains(&target)) {
        let object = compile("arrival", target, &[]);
        for (kernel, expected) in kernels(&object) {
            for order in [Order::Up, Order::Down] {
                for coherence in [Coherence::Full, Coherence::Weak] {
                    let found = arrive(&object, kernel, coherence, order);
                    assert_eq!(found, expected, "{kernel} on {target}, {order:?}, {coherence:?}");
                }
            }
        }
    }
}

#[test]
fn without_any_one_of_its_fences_an_arrival_publishes_nothing() {
    for target in &targets(|target| MODELS.contains(&target)) {
        // The release of both, then the acquire of each.
        for (fence, broken) in
            [(0, &["blocks_arrive", "waves_arrive"][..]), (1, &["blocks_arrive"]), (2, &["waves_arrive"])]
        {
            let object = compile("arrival", target, &[&format!("-DGPU_DROP_FENCE={fence}")]);
            for (kernel, expected) in kernels(&object) {
                for order in [Order::Up, Order::Down] {
                    let found = arrive(&object, kernel, Coherence::Weak, order);
                    let is_broken = broken.contains(&kernel);
                    assert_eq!(
                        found.0 != expected.0,
                        is_broken,
                        "{kernel} on {target}, {order:?}, without fence {fence}"
                    );
                    // Nothing shows it where all stores are seen at once.
                    assert_eq!(arrive(&object, kernel, Coherence::Full, order), expected);
                }
            }
        }
    }
}
