//! Experts in the host's memory of which the device computes those in its cache, and the CPU the others: golden logits
//! while the cache's content changes.

use crate::Error;
use crate::backend::{Backend, ExpertCacheUse, MemoryLedger};
use crate::config::{GpuOptions, KvCacheDtype};
use crate::gguf::GgufFile;
use crate::gpu::testing::devices::{self, Call, Faults, Live};
use crate::gpu::{Device, GpuBackend};
use crate::testdata;
use crate::tests::gpu::bound_of;
use crate::tests::placement::{Layout, decode, load_placed, load_with, logits, long};
use crate::tests::{Model, ModelSpec, distance, max_abs, tokens};

const INVALID: i32 = 1;
const THREADS: Option<usize> = Some(2);
/// The wait that `hipsim_without` disables.
const STREAM_FOR_EVENT: u32 = 3;

/// Mixtures with and without biases, without gates, with weighted inputs, with shared experts, in a hybrid, and with
/// latent attention.
pub(in crate::tests) const FAMILIES: [&str; 8] =
    ["qwen3moe", "gpt_oss", "qwen35moe", "mixtral", "deepseek2", "llama4", "nemotron_h_moe", "granitemoe"];

type OpenedFaulty = (Device, GpuOptions, Faults);

/// A family with biases in captured graphs, and one without in single launches. `make test-kernels` checks all pairs.
#[test]
fn golden_logits_with_experts_on_both() {
    check_families("cpu-wave32:up@joint", &[("gpt_oss", true, &[Layout::ExpertsOnHost])]);
    check_families("cpu-wave32:up@joint", &[("qwen3moe", false, &[Layout::OneLayer])]);
}

/// Each family, with and without captured graphs, in each layout.
pub(in crate::tests) fn check_families(target: &str, families: &[(&str, bool, &[Layout])]) {
    let Some((device, options, faults)) = devices::open_faulty(target) else { return };
    for &(name, graphs, layouts) in families {
        let options = GpuOptions { graphs: Some(graphs), ..options.clone() };
        layouts
            .iter()
            .for_each(|&layout| check_layout(&(device.clone(), options.clone(), faults.clone()), name, layout));
    }
}

/// Loads a model with a cache of this size; `None` leaves the size to the plan.
fn load(
    (device, options, _): &OpenedFaulty,
    name: &str,
    layout: Layout,
    total: u64,
    bytes: Option<u64>,
) -> Model<GpuBackend> {
    let (dtype, _) = bound_of(name, 1.0);
    let opened = (device.clone(), GpuOptions { expert_cache: bytes, ..options.clone() });
    load_with(&opened, &format!("arch/{name}"), layout, total, dtype, THREADS).unwrap()
}

fn check_layout(opened: &OpenedFaulty, name: &str, layout: Layout) {
    let (device, options, faults) = opened;
    let path = format!("arch/{name}");
    let golden = testdata::npz(&path);
    let (tokens, expected) = (tokens(&golden), golden.f32("logits"));
    let (dtype, bound) = bound_of(name, max_abs(&expected));
    let (decoded, several, total) = {
        let on_device = (device.clone(), options.clone());
        let mut model = load_with(&on_device, &path, Layout::AllOnDevice, 0, dtype, None).unwrap();
        (decode(&mut model, &tokens).0, logits(&mut model, &tokens), model.backend.memory().weights)
    };
    let host = load(opened, name, layout, total, Some(0)).backend.memory().host_weights;
    let mut cached = false;
    for bytes in [host / 2, host] {
        let mut model = load(opened, name, layout, total, Some(bytes));
        let allocated = device.allocated_bytes();
        let MemoryLedger { weights, kv_cache, scratch, other, .. } = model.backend.memory();
        assert_eq!(weights + kv_cache + scratch + other, allocated, "{name} {layout:?} {bytes}");
        let before = faults.calls(Call::LaunchHost);
        let (of_steps, _) = decode(&mut model, &tokens);
        assert!(faults.calls(Call::LaunchHost) > before || options.graphs == Some(true), "{name} {layout:?}");
        let of_several = logits(&mut model, &tokens);
        let ExpertCacheUse { hits, misses, copied_bytes } = model.backend.expert_cache();
        let steps = of_steps.iter().zip(&decoded).chain(of_several.iter().zip(&several));
        let mut errors: Vec<_> = steps.map(|(got, expected)| distance(got, expected).0).collect();
        let largest = errors.iter().copied().fold(0.0, f32::max);
        println!(
            "{name} {layout:?} graphs {:?}: {bytes} of {host} bytes: {largest:.2e}, {hits} hits, {misses} misses, \
             {copied_bytes} bytes copied",
            options.graphs
        );
        // Half of a small model's experts may leave no room for a slot beside the area in which they are unpacked.
        cached |= hits + misses > 0;
        assert!(hits + misses == 0 || hits * misses * copied_bytes > 0, "{name} {layout:?} {bytes}");
        // The prompt as a whole, against transformers, and all steps, against the device alone.
        assert!(distance(&of_several[0], &expected).0 < bound, "{name} {layout:?} {bytes}");
        assert!(largest < 2.0 * bound, "{name} {layout:?} {bytes}: {largest:.2e}");
        // Few steps choose other experts at a near tie.
        errors.sort_by(f32::total_cmp);
        let median = errors[errors.len() / 2];
        assert!(median < bound / 8.0, "{name} {layout:?} {bytes}: {median:.2e}");
        assert_eq!(device.allocated_bytes(), allocated, "{name} {layout:?} {bytes}");
    }
    assert!(cached, "{name} {layout:?}: no room for a slot");
    assert_eq!((device.allocated_bytes(), faults.live()), (0, Live::default()), "{name} {layout:?}");
}

/// Without a size, the cache takes memory that is free beside the wanted KV cache.
#[test]
fn the_cache_takes_free_memory() {
    let Some((device, options, _)) = devices::open_faulty("cpu-wave32:up@free") else { return };
    let (dtype, layout) = (KvCacheDtype::F16, Layout::ExpertsOnHost);
    let mut model = load_placed(&(device, options), "arch/qwen3moe", layout, 0, dtype, THREADS).unwrap();
    assert!(model.backend.describe().contains("a cache of"), "{}", model.backend.describe());
    let tokens = long(&tokens(&testdata::npz("arch/qwen3moe")));
    (0..48).for_each(|at| drop(model.logits(&tokens[..at + 1], at)));
    let ExpertCacheUse { hits, misses, .. } = model.backend.expert_cache();
    assert!(hits > 0 && misses > 0, "{hits} hits, {misses} misses");
}

/// Uses are counted without the padding of a graph: five sequences, in graphs of eight rows.
#[test]
fn uses_of_padding_rows_are_not_counted() {
    const SEQS: usize = 5;
    let Some((device, options, _)) = devices::open_faulty("cpu-wave32:up@counts") else { return };
    let opened = (device, GpuOptions { expert_cache: Some(1 << 20), graphs: Some(true), ..options });
    let name = "arch/qwen3moe";
    let mut model = load_with(&opened, name, Layout::ExpertsOnHost, 0, KvCacheDtype::F16, None).unwrap();
    let tokens = long(&tokens(&testdata::npz(name)));
    (0..41).for_each(|at| drop(model.step(&[(&tokens[..at + 1], at); SEQS]).unwrap()));
    let file = testdata::file(&format!("{name}.gguf"));
    let spec = ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), None).unwrap();
    let pairs: usize = spec.layers.iter().filter_map(|layer| layer.ffn.experts()).map(|experts| experts.used).sum();
    let ExpertCacheUse { hits, misses, .. } = model.backend.expert_cache();
    // Every eighth step begins with a look at the counts of eight steps ago. The first step was one of a row, at load.
    assert_eq!((hits + misses) as usize, 30 * SEQS * pairs + pairs);
    assert!(hits > 0 && misses > 0, "{hits} hits, {misses} misses");
}

/// G3: whatever call fails, the step can be repeated, and later logits are right.
pub(in crate::tests) fn check_failed_calls(numbers: &[u64]) {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave64:up@joint") else { return };
    let tokens = tokens(&testdata::npz("arch/qwen3moe"));
    // Without graphs, each step makes its calls.
    let opened = (device, GpuOptions { graphs: Some(false), ..options }, faults.clone());
    let mut model = load(&opened, "qwen3moe", Layout::ExpertsOnHost, 0, Some(1 << 20));
    let (expected, _) = decode(&mut model, &tokens);
    let bound = 2.0 * bound_of("qwen3moe", expected.iter().map(|logits| max_abs(logits)).fold(0.0, f32::max)).1;
    let calls = [Call::CopyToDevice, Call::CopyOnDevice, Call::Record, Call::WaitEvent, Call::LaunchHost, Call::Launch];
    for call in calls {
        for &nth in numbers {
            faults.fail(call, nth, INVALID);
            let (logits, failed) = decode(&mut model, &tokens);
            assert_eq!(failed, usize::from(!faults.disarm()), "{call:?} {nth}");
            let mut errors = logits.iter().zip(&expected).map(|(got, expected)| distance(got, expected).0);
            assert!(errors.all(|error| error < bound), "{call:?} {nth}: other logits");
        }
    }
}

/// A device that is lost within a step ends the model, whose memory the CPU's call does not use after its end.
#[test]
fn a_lost_device_ends_the_model() {
    const LOST: i32 = 700;
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@gone") else { return };
    let opened = (device, GpuOptions { graphs: Some(false), ..options }, faults.clone());
    let tokens = tokens(&testdata::npz("arch/qwen3moe"));
    let mut model = load(&opened, "qwen3moe", Layout::ExpertsOnHost, 0, Some(1 << 20));
    let short = &tokens[..5];
    model.step(&[(short, 0)]).unwrap();
    faults.fail(Call::WaitEvent, 2, LOST);
    assert!(matches!(model.step(&[(short, 0)]), Err(Error::EngineDead { .. })));
    assert!(faults.disarm() || matches!(model.step(&[(short, 0)]), Err(Error::EngineDead { .. })));
}

/// Mutation test: without the waits of streams for events, nothing runs the CPU's calls in time.
#[test]
fn the_step_waits_for_the_cpu() {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@unjoined") else { return };
    let opened = (device, GpuOptions { graphs: Some(false), ..options }, faults);
    let tokens = tokens(&testdata::npz("arch/qwen3moe"));
    let mut model = load(&opened, "qwen3moe", Layout::ExpertsOnHost, 0, Some(1 << 20));
    let expected = model.logits(&tokens[..5], 0);
    assert!(model.logits(&tokens[..5], 0) == expected);
    devices::leave_out(&opened.1, STREAM_FOR_EVENT);
    let outcome = model.step(&[(&tokens[..5], 0)]);
    assert!(outcome.map_or(true, |got| got != expected), "the CPU's part is there without a wait");
}
