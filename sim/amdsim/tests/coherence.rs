//! Tests of caches. If workgroups do not see each other's stores at once, the protocol of the engine's kernels needs
//! each of its fences, and works with all of them. If nothing invalidates the scalar cache between kernels, the
//! engine's kernels bypass it for numbers that change.
#![allow(clippy::unwrap_used)]

mod common;

use amdsim::{CodeObject, Coherence, Order, ScalarCache};
use common::{Arena, Args, Case, compile, targets};

const THREADS: usize = 256;
const BLOCKS: usize = 7;

/// One target of each memory model: a cache before L2; an L2 for each part of the chip; two levels of caches before L2;
/// scopes in the instructions.
const MODELS: [&str; 4] = ["gfx90a", "gfx942", "gfx1100", "gfx1201"];

/// Sums and counters.
type Results = (Vec<u32>, Vec<u32>);

/// Returns the sums and the counters of a kernel of `arrival.hip`.
fn arrive(object: &CodeObject, kernel: &str, coherence: Coherence, order: Order) -> Results {
    let mut memory = Arena::default();
    let (out, shares) = (memory.zeros::<u32>(THREADS), memory.zeros::<u32>(THREADS * BLOCKS));
    let counters = memory.zeros::<u32>(8);
    let args = Args::default().with(out).with(shares).with(counters).with(BLOCKS as u64);
    let case = Case { object, kernel, grid: [BLOCKS as u32, 1, 1], block: THREADS as u32, args, order };
    case.run_as(coherence, &mut memory).unwrap();
    (memory.download(out), memory.download(counters))
}

/// Returns the sum that each thread must get: that of the thread `step` places later, in rings of `ring` threads.
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
        // The release of both kernels, then the acquire of each.
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
                    // The missing fence does not show if all stores are seen at once.
                    assert_eq!(arrive(&object, kernel, Coherence::Full, order), expected);
                }
            }
        }
    }
}

/// Results of a step: the gathered rows, and the sums of the links by plain loads and by the engine's loads.
#[derive(Debug, PartialEq)]
struct Found {
    gathered: Vec<f32>,
    plain: Vec<u32>,
    sums: Vec<u32>,
}

const ROWS: usize = 3;
const COLS: usize = 4;
/// `LINK_BLOCKS`, `COPY_STEP_BLOCKS` and, in words of 4 bytes, `COPY_STEP_LINE` of args.h.
const LINKS: usize = 4;
const COPY_BLOCKS: usize = 32;
const LINE: usize = 32;
/// `CHOSEN_TOKEN` of args.h: the flag of a number that the device has.
const CHOSEN: u32 = 1 << 31;

/// Runs the steps of a replayed graph on a device that never invalidates the scalar cache. `copy_step` brings the
/// numbers; the first number of each step comes from the previous step's results. Then other kernels read them.
fn repeat_steps(object: &CodeObject, steps: &[[u32; ROWS]]) -> Vec<Found> {
    let mut memory = Arena::default();
    let mut scalar = ScalarCache::default();
    let x: Vec<f32> = (0..ROWS * COLS).map(|i| i as f32).collect();
    let (x, out) = (memory.upload(&x), memory.zeros::<f32>(ROWS * COLS));
    // Each block has a line with its number of pairs of words. The indices follow, and a word to fill the last pair.
    let mut words = [[2, 0]; COPY_BLOCKS].map(|count| [&count[..], &[0; LINE - 2]].concat()).concat();
    words.resize(words.len() + 4, 0);
    let (host, device) = (memory.upload(&words), memory.zeros::<u32>(4));
    let chosen = memory.zeros::<u32>(2);
    let links = [memory.zeros::<u32>(2 * LINKS), memory.zeros::<u32>(2 * LINKS)];
    let mut launch = |memory: &mut Arena, kernel, grid, block, args| {
        let case = Case { object, kernel, grid: [grid, 1, 1], block, args, order: Order::Up };
        case.run_after(Coherence::Weak, memory, &mut scalar).unwrap();
    };
    let mut run = |indices: &[u32; ROWS]| {
        words[COPY_BLOCKS * LINE..][..ROWS].copy_from_slice(indices);
        words[COPY_BLOCKS * LINE] = CHOSEN | 1;
        memory.replace(host, &words);
        memory.replace(chosen, &[0, indices[0]]);
        let args = Args::default().with(host).with(device).with(chosen).with(1u32).with(ROWS as u32);
        launch(&mut memory, "copy_step", COPY_BLOCKS as u32, 256, args);
        let args = Args::default().with(x).with(device).with(out);
        let args = args.with(ROWS as u32).with(COLS as u32).with(0u64);
        launch(&mut memory, "gather_rows", ROWS as u32, 256, args);
        let link = |before: u64, out: u64| Args::default().with(device).with(before).with(out);
        launch(&mut memory, "link_steps", LINKS as u32, 64, link(0, links[0]));
        launch(&mut memory, "link_steps", LINKS as u32, 64, link(links[0], links[1]));
        let words: Vec<u32> = memory.download(links[1]);
        Found {
            gathered: memory.download(out),
            plain: words.iter().copied().step_by(2).collect(),
            sums: words.iter().copied().skip(1).step_by(2).collect(),
        }
    };
    steps.iter().map(&mut run).collect()
}

fn expected_of(indices: [u32; ROWS]) -> Found {
    let row = |index: u32| (0..COLS).map(move |col| (index as usize * COLS + col) as f32);
    let sums = vec![2 * indices[0]; LINKS];
    Found { gathered: indices.into_iter().flat_map(row).collect(), plain: sums.clone(), sums }
}

/// ROCm/hip#3902: kernels of a replayed graph read a number of the previous step. The engine's kernels do not. A kernel
/// with plain loads does, and so would the engine's kernels with plain loads.
#[test]
fn a_step_reads_no_number_of_the_one_before() {
    let steps = [[2, 0, 1], [1, 2, 0]];
    for target in &targets(|target| MODELS.contains(&target)) {
        let [first, second] = steps.map(expected_of);
        let found = repeat_steps(&compile("step", target, &[]), &steps);
        assert_eq!(found[0], first, "{target}");
        assert_eq!((&found[1].gathered, &found[1].sums), (&second.gathered, &second.sums), "{target}");
        assert_eq!(found[1].plain, first.plain, "{target}: a scalar load sees what the cache holds");

        let mutated = repeat_steps(&compile("step", target, &["-DGPU_SCALAR_STEP"]), &steps);
        assert_eq!(mutated, [expected_of(steps[0]), expected_of(steps[0])], "{target}");
    }
}
