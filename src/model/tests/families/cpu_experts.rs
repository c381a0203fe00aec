//! Experts in the host's memory that the CPU computes: golden logits on the GPU backend, wherever the experts lie.

use crate::backend::{Backend, MemoryLedger};
use crate::config::GpuOptions;
use crate::gpu::testing::devices::{self, Call, Faults, Live};
use crate::gpu::{Device, GpuBackend};
use crate::testdata;
use crate::tests::gpu::bound_of;
use crate::tests::placement::{Layout, load_with, logits, long};
use crate::tests::{distance, max_abs, tokens};
use crate::{Error, Result};

use crate::tests::Model;

const INVALID: i32 = 1;
/// Threads of the CPU, besides those of other tests.
const THREADS: Option<usize> = Some(2);

/// A family with biases in one layout. `make test-kernels` checks all pairs.
#[test]
fn golden_logits_with_experts_on_the_cpu() {
    check_families("cpu-wave32:up@experts", &[("gpt_oss", &[Layout::ExpertsOnHost])]);
}

pub(in crate::tests) fn check_families(target: &str, families: &[(&str, &[Layout])]) {
    let Some(device) = devices::open_faulty(target) else { return };
    for (name, layouts) in families {
        check_layouts(&device, name, layouts);
    }
}

fn check_layouts((device, options, faults): &(Device, GpuOptions, Faults), name: &str, layouts: &[Layout]) {
    let opened = (device.clone(), options.clone());
    let path = format!("arch/{name}");
    let golden = testdata::npz(&path);
    let (tokens, expected) = (tokens(&golden), golden.f32("logits"));
    let (dtype, bound) = bound_of(name, max_abs(&expected));
    let (all_on_device, total) = {
        let mut model = load_with(&opened, &path, Layout::AllOnDevice, 0, dtype, None).unwrap();
        (logits(&mut model, &tokens), model.backend.memory().weights)
    };
    for &layout in layouts {
        let mut model = load_with(&opened, &path, layout, total, dtype, THREADS).unwrap();
        let MemoryLedger { weights, kv_cache, scratch, other, host_weights, kv_offload: _ } = model.backend.memory();
        assert_eq!(weights + kv_cache + scratch + other, device.allocated_bytes(), "{name} {layout:?}");
        assert!(host_weights > 0, "{name} {layout:?}");
        assert!(model.backend.describe().contains("2 CPU threads compute the experts among them"));
        let calls = || faults.calls(Call::LaunchHost);
        let before = calls();
        let got = logits(&mut model, &tokens);
        assert!(calls() > before, "{name} {layout:?}: the CPU computed nothing");
        let before = calls();
        model.logits(&long(&tokens), 0);
        // A small device has no room for copies.
        let copies = calls() == before;
        assert!(copies || layout != Layout::ExpertsOnHost, "{name} {layout:?}");
        // The prompt as a whole, against transformers.
        let (error, _) = distance(&got[0], &expected);
        println!("{name} {layout:?}: {error:.2e}, of {:.1}", max_abs(&expected));
        assert!(error < bound, "{name} {layout:?}: {error:.2e}");
        // Long steps multiply with copies on the device: the same kernels, the same bits. Others are close.
        for (step, (got, expected)) in got.iter().zip(&all_on_device).enumerate() {
            match step {
                1 if copies => assert!(got == expected, "{name} {layout:?}: other logits of a long step"),
                _ => assert!(distance(got, expected).0 < 2.0 * bound, "{name} {layout:?}, step {step}"),
            }
        }
        drop(model);
        assert_eq!((device.allocated_bytes(), faults.live()), (0, Live::default()), "{name} {layout:?}");
    }
}

/// A row does not depend on the rows beside it, nor on the padding of captured graphs, as long as the CPU computes all
/// of them with the same kernels. The attention of several sequences is the same as that of one.
#[test]
fn rows_of_the_cpu_do_not_depend_on_others() {
    let Some((device, options, _)) = devices::open_faulty("cpu-wave32:up@rows") else { return };
    let tokens = tokens(&testdata::npz("arch/qwen3moe"));
    let mut model = load(&(device, options)).unwrap();
    model.step(&[(&tokens[..9], 0), (&tokens[..9], 0), (&tokens[..9], 0)]).unwrap();
    let alone = model.step(&[(&tokens[..10], 9)]).unwrap();
    let three = model.step(&[(&tokens[..10], 9), (&tokens[..10], 9), (&tokens[..10], 9)]).unwrap();
    let rows: Vec<_> = three.chunks(alone.len()).collect();
    assert!(rows.iter().all(|row| *row == rows[0]), "rows of one step differ");
    assert!(distance(rows[0], &alone).0 < 3e-2);
}

fn load(device: &(Device, GpuOptions)) -> Result<Model<GpuBackend>> {
    load_with(device, "arch/qwen3moe", Layout::ExpertsOnHost, 0, crate::config::KvCacheDtype::F16, THREADS)
}

/// G3: whatever call fails around the CPU's part, the step ends in an error, and the next one has the right logits.
#[test]
fn failed_calls_of_the_cpu_do_not_change_later_steps() {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@calls") else { return };
    let tokens = tokens(&testdata::npz("arch/qwen3moe"));
    // Without graphs, each step makes its calls.
    let mut model = load(&(device, GpuOptions { graphs: Some(false), ..options })).unwrap();
    let short = &tokens[..5];
    let expected = model.logits(short, 0);
    let long = long(&tokens);
    let expected_long = model.logits(&long, 0);
    for (call, numbers) in [(Call::LaunchHost, 0..2), (Call::Launch, 5..6), (Call::CopyToDevice, 1..2)] {
        for nth in numbers {
            faults.fail(call, nth, INVALID);
            let outcomes = [model.step(&[(short, 0)]), model.step(&[(&long, 0)])];
            let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
            assert!(!faults.disarm() && failed == 1, "{call:?} {nth}");
            assert!(
                outcomes.into_iter().all(|o| o.is_ok() || matches!(o, Err(Error::Device { .. }))),
                "{call:?} {nth}"
            );
            assert!(model.logits(short, 0) == expected, "{call:?} {nth}: other logits");
            assert!(model.logits(&long, 0) == expected_long, "{call:?} {nth}: other logits of a long step");
        }
    }
}

/// In batch-invariant mode the device computes all experts, so the bits do not depend on the place of weights.
#[test]
fn batch_invariant_steps_do_not_use_the_cpu() {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@invariant") else { return };
    let tokens = tokens(&testdata::npz("arch/qwen3moe"));
    let opened = (device, GpuOptions { batch_invariant: true, ..options });
    let dtype = crate::config::KvCacheDtype::F16;
    let expected = {
        let mut model = load_with(&opened, "arch/qwen3moe", Layout::AllOnDevice, 0, dtype, None).unwrap();
        model.logits(&tokens, 0)
    };
    let mut model = load(&opened).unwrap();
    let before = faults.calls(Call::LaunchHost);
    assert!(model.logits(&tokens, 0) == expected);
    assert_eq!(faults.calls(Call::LaunchHost), before);
}

/// From as many rows as a copy of the experts is worth, decode steps copy them. No captured graph is in the way.
#[test]
fn decode_steps_of_many_rows_copy_experts() {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@many") else { return };
    let tokens = tokens(&testdata::npz("arch/qwen3moe"));
    let mut model = load(&(device, options)).unwrap();
    let experts = model.backend.memory().weights;
    let one = |index: usize| (&tokens[index..=index], 0);
    let copied_by = |model: &mut Model<GpuBackend>, rows: usize| {
        let before = faults.host_bytes();
        model.step(&(0..rows).map(|row| one(row % 32)).collect::<Vec<_>>()).unwrap();
        faults.host_bytes() - before
    };
    // 64 rows are the threshold without a measurement.
    let [few, many] = [63, 64].map(|rows| copied_by(&mut model, rows));
    assert!(many > few + experts, "{few}, {many}, {experts}");
}

/// If the wait at the end fails, calls of the CPU may still run, so their memory stays.
#[test]
fn a_failed_wait_keeps_the_memory_of_the_cpu() {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@kept") else { return };
    for (fails, kept) in [(false, false), (true, true)] {
        let model = load(&(device.clone(), options.clone())).unwrap();
        if fails {
            faults.fail(Call::Synchronize, 0, INVALID);
        }
        drop(model);
        assert_eq!((fails && faults.disarm(), faults.live().host_allocations > 0), (false, kept));
    }
}
