//! Decode steps on the GPU backend: captured at the load, and replayed by one launch each.

use super::{Opened, decode_together, load};
use crate::backend::Backend;
use crate::config::GpuOptions;
use crate::gpu::GpuBackend;
use crate::gpu::testing::devices::{self, CPU_TARGETS, Call, Faults, Live};
use crate::gpu::testing::library::alone;
use crate::testdata;
use crate::tests::{MAX_TOKENS, Model, library, tokens};

/// G3, G23, G26: a decode step is one launch of a captured graph, which copies the step's numbers. Nothing is
/// allocated, and only the requested rows come back.
#[test]
fn a_decode_step_is_one_copy_and_one_launch() {
    let Some((device, options, faults)) = devices::open_faulty(CPU_TARGETS[0]) else { return };
    let device = (device, options);
    for name in ["quant_models/Q4_0", "arch/deepseek2", "arch/lfm2", "arch/nemotron_h", "arch/qwen35", "arch/qwen3moe"]
    {
        check_decode_calls(&device, &faults, name);
    }
}

fn check_decode_calls(device: &Opened, faults: &devices::Faults, name: &str) {
    let tokens = tokens(&testdata::npz(name));
    let mut model = load(device, name);
    let mut decode = |length: usize| {
        model.step(&[(&tokens[..length], length - 1), (&tokens[..length - 1], length - 2)]).unwrap();
    };
    (3..6).for_each(&mut decode);
    assert!(faults.live().allocations <= 64);
    let count = || Call::ALL.map(|call| faults.calls(call));
    let before = count();
    (6..16).for_each(&mut decode);
    for ((call, before), after) in Call::ALL.into_iter().zip(before).zip(count()) {
        let expected = match call {
            Call::LaunchGraph => 10,
            // A step copies its two rows of logits separately.
            Call::CopyToHost => 20,
            // Events for the step's numbers and its selection. It waits for the second event twice, and for the stream
            // once per row.
            Call::Record => 20,
            Call::Synchronize => 50,
            // One before each of the other calls.
            Call::MakeCurrent => 100,
            _ => 0,
        };
        assert_eq!(after - before, expected, "{call:?}");
    }
}

/// Decodes steps of these sizes. Returns the logits of the last two steps of each.
fn decode_sizes(model: &mut Model<GpuBackend>, sizes: &[usize]) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (5..25).collect();
    let lengths = [3, 1, 2, 4, 3, 1, 2, 4, 3, 1, 2, 4, 3];
    sizes.iter().flat_map(|&size| decode_together(model, &tokens, &lengths[..size])).collect()
}

const SIZES: [usize; 6] = [1, 2, 3, 5, 9, 13];

/// Returns the logits of steps that are not captured.
fn decode_uncaptured((device, options): &Opened, name: &str) -> Vec<Vec<f32>> {
    let device = (device.clone(), GpuOptions { graphs: Some(false), ..options.clone() });
    decode_sizes(&mut load(&device, name), &SIZES)
}

/// Every step is captured at the load and none after it, for all batch sizes. Captured graphs give the same results as
/// other steps. One model has no attention, so nothing tells how long contexts can be.
#[test]
fn steps_are_captured_at_the_load_alone() {
    check_captures(&["quant_models/Q4_0", "arch/mamba", "arch/nemotron_h", "arch/qwen3moe"]);
}

pub(in crate::tests) fn check_captures(names: &[&str]) {
    let Some((device, options, faults)) = devices::open_faulty(CPU_TARGETS[0]) else { return };
    let device = (device, options);
    for name in names {
        let expected = decode_uncaptured(&device, name);
        let mut model = load(&device, name);
        let made = |faults: &Faults| [Call::BeginCapture, Call::InstantiateGraph].map(|call| faults.calls(call));
        let (before, launched) = (made(&faults), faults.calls(Call::LaunchGraph));
        assert!(faults.live().graphs >= 10, "{:?}", faults.live());
        assert_eq!(decode_sizes(&mut model, &SIZES), expected, "{name}");
        assert_eq!(made(&faults), before, "{name}");
        assert_eq!(faults.calls(Call::LaunchGraph) - launched, 2 * SIZES.len() as u64, "{name}");
        drop(model);
        assert_eq!(faults.live(), Live::default());
    }
}

/// Capture stops when its reserved memory is used up. Larger steps then run op by op, and the engine reports it. The
/// test has its own device, whose memory nothing else takes.
#[test]
fn captures_keep_to_their_room() {
    const EACH: u64 = 32 << 20;
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@memory") else { return };
    let device = (device, options);
    let name = "quant_models/Q4_0";
    let (expected, other) = (decode_uncaptured(&device, name), load(&device, name).backend.memory().other);
    let room = devices::loader(&device, MAX_TOKENS).graph_bytes();
    let fitting = room / EACH;
    assert!((1..5).contains(&fitting), "{room}");
    faults.take_for_graphs(EACH);
    let mut model = load(&device, name);
    assert_eq!(faults.live().graphs as u64, fitting);
    assert_eq!(model.backend.memory().other, other + fitting * EACH);
    let described = model.backend.describe();
    assert!(described.contains("captured and replayed, but the") && described.contains("op by op"), "{described}");
    let launched = faults.calls(Call::LaunchGraph);
    assert_eq!(decode_sizes(&mut model, &SIZES), expected);
    let repeated = faults.calls(Call::LaunchGraph) - launched;
    assert!((1..2 * SIZES.len() as u64).contains(&repeated), "{repeated}");
    drop(model);
    assert_eq!(faults.live(), Live::default());
}

/// The matrix library refuses a product during capture, which loses the capture. A new capture uses our kernels for it,
/// and no step fails.
#[test]
fn a_library_that_refuses_in_a_capture_fails_no_step() {
    let _alone = alone();
    let name = "arch/llama3_ropescale";
    let Some(plain) = devices::open(CPU_TARGETS[0]) else { return };
    let expected = decode_uncaptured(&plain, name);
    let Some((device, options, _cache)) = library::open() else { return };
    devices::misbehave("capture");
    let mut model = load(&(device.clone(), options), name);
    devices::misbehave("");
    let described = model.backend.describe();
    let refused = "long prompts: matmul (the matrix library refused: hipblasLt: Matmul failed with status 6)";
    assert!(described.contains(refused), "{described}");
    assert!(described.contains("decode steps: captured and replayed"), "{described}");
    assert_eq!(decode_sizes(&mut model, &SIZES), expected);
    drop(model);
    assert_eq!(device.allocated_bytes(), 0);
}
