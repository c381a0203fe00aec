//! Weights in the host's memory: logits on the GPU backend do not depend on where the weights lie.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::gpu::Opened;
use super::{MAX_TOKENS, Model, load_tensors, tokens};
use crate::backend::{Backend, ExpertCacheUse, Loader, MemoryLedger, Reserve};
use crate::config::{GpuOptions, KvCacheDtype};
use crate::cpu::Isa;
use crate::gguf::GgufFile;
use crate::gpu::testing::devices::{self, Call, Faults, Live};
use crate::gpu::{Device, GpuBackend};
use crate::testdata;
use crate::{Error, Result};
use crate::{ModelSpec, ModelTensors};

const INVALID: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
/// The wait that `hipsim_without` disables.
const STREAM_FOR_EVENT: u32 = 3;

/// Where the weights of a model lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    AllOnDevice,
    /// Everything that may lie on the host.
    AllOnHost,
    /// The plan's choice, with room for half of the weights on the device.
    Half,
    /// One layer on the device.
    OneLayer,
    ExpertsOnHost,
}

fn load(device: &Opened, name: &str, layout: Layout, total: u64) -> Result<Model<GpuBackend>> {
    load_with(device, name, layout, total, KvCacheDtype::F16, None)
}

/// Like `load_placed`, without a cache of experts unless the options have a size for it.
pub(super) fn load_with(
    (device, options): &Opened,
    name: &str,
    layout: Layout,
    total: u64,
    dtype: KvCacheDtype,
    threads: Option<usize>,
) -> Result<Model<GpuBackend>> {
    let options = GpuOptions { expert_cache: options.expert_cache.or(Some(0)), ..options.clone() };
    load_placed(&(device.clone(), options), name, layout, total, dtype, threads)
}

/// Loads a model of which the device holds `total` bytes of weights if all lie there. With threads, the CPU computes
/// experts on the host.
pub(super) fn load_placed(
    device: &Opened,
    name: &str,
    layout: Layout,
    total: u64,
    dtype: KvCacheDtype,
    threads: Option<usize>,
) -> Result<Model<GpuBackend>> {
    let file = testdata::file(&format!("{name}.gguf"));
    let gguf = GgufFile::open(&file.0).unwrap();
    let spec = ModelSpec::from_gguf(&gguf, Some(super::MAX_MODEL_LEN)).unwrap();
    let tensors = ModelTensors::collect(&gguf, &spec).unwrap();
    let options = match layout {
        Layout::OneLayer => GpuOptions { layers: Some(1), ..device.1.clone() },
        Layout::ExpertsOnHost => GpuOptions { cpu_experts: Some(usize::MAX), ..device.1.clone() },
        Layout::AllOnDevice | Layout::AllOnHost | Layout::Half => device.1.clone(),
    };
    let mut loader = devices::loader(&(device.0.clone(), options), MAX_TOKENS);
    if let Some(threads) = threads {
        loader = loader.with_cpu(threads, Isa::detect());
    }
    let room = loader.room_beside(tensors.uploads())? + total;
    let reserve = match layout {
        Layout::AllOnDevice => None,
        Layout::AllOnHost => Some(Reserve { least: room - total + 1, wanted: room }),
        Layout::Half => Some(Reserve { least: room - total + 1, wanted: room - total / 2 }),
        Layout::OneLayer | Layout::ExpertsOnHost => Some(Reserve { least: 0, wanted: 0 }),
    };
    if let Some(reserve) = reserve {
        loader.place(tensors.uploads(), tensors.roles(), reserve)?;
    }
    load_tensors(loader, &tensors, dtype)
}

/// Returns tokens for the longest steps, whose products read copies of weights on the host.
pub(super) fn long(tokens: &[u32]) -> Vec<u32> {
    tokens.iter().copied().cycle().take(MAX_TOKENS).collect()
}

/// Returns the logits of a prompt, of steps with as many rows as `long`, and of three sequences that decode together in
/// captured graphs.
pub(super) fn logits(model: &mut Model<GpuBackend>, tokens: &[u32]) -> Vec<Vec<f32>> {
    let long = long(tokens);
    let mut all = vec![model.logits(tokens, 0), model.logits(&long, 0)];
    all.push(model.step(&[(&long[..20], 0), (&long[..44], 0)]).unwrap());
    let lengths = [3, 40, 17];
    for new in 0..=2 {
        let start = |length: usize| if new == 0 { 0 } else { length + new - 1 };
        let seqs = lengths.map(|length| (&tokens[..length + new], start(length)));
        all.push(model.step(&seqs).unwrap());
    }
    all
}

/// Returns the bytes that a step of `long` copies between host and device.
fn copied(model: &mut Model<GpuBackend>, tokens: &[u32], faults: &Faults) -> u64 {
    let before = faults.host_bytes();
    model.logits(&long(tokens), 0);
    faults.host_bytes() - before
}

/// Checks every layout that differs for this model: the logits are those of the model on the device, to the bit.
fn check_layouts((device, options, faults): &(Device, GpuOptions, Faults), name: &str, layouts: &[Layout]) {
    let device = (device.clone(), options.clone());
    let tokens = tokens(&testdata::npz(name));
    let (expected, without, total) = {
        let mut model = load(&device, name, Layout::AllOnDevice, 0).unwrap();
        let without = copied(&mut model, &tokens, faults);
        (logits(&mut model, &tokens), without, model.backend.memory().weights)
    };
    for &layout in layouts {
        let mut model = load(&device, name, layout, total).unwrap();
        let MemoryLedger { weights, kv_cache, scratch, other, host_weights, kv_offload: _ } = model.backend.memory();
        println!("{name} {layout:?}: {weights} bytes on the device, {host_weights} on the host");
        assert_eq!(weights + host_weights, total, "{name} {layout:?}");
        assert_eq!(weights + kv_cache + scratch + other, device.0.allocated_bytes(), "{name} {layout:?}");
        match layout {
            Layout::AllOnHost => assert!(weights < total / 4, "{name}: {weights} of {total} bytes on the device"),
            Layout::Half => assert!(weights <= total / 2 && weights > total / 8, "{name}: {weights} of {total}"),
            _ => assert!(weights > 0 && host_weights > 0, "{name} {layout:?}"),
        }
        assert!(model.backend.describe().contains("of weights are in host memory; a token reads"));
        assert!(logits(&mut model, &tokens) == expected, "{name} {layout:?}: other logits");
        // A weight crosses the bus once in a long step. Tables and the output projection are read in place.
        let staged = copied(&mut model, &tokens, faults) - without;
        match layout {
            Layout::ExpertsOnHost => assert_eq!(staged, host_weights, "{name} {layout:?}"),
            _ => assert!(staged > 0 && staged <= host_weights, "{name} {layout:?}: {staged} of {host_weights}"),
        }
        drop(model);
        assert_eq!((device.0.allocated_bytes(), faults.live()), (0, Live::default()), "{name} {layout:?}");
    }
}

/// The layouts that differ for a model with experts; the others differ for all models.
pub(super) const LAYOUTS: [Layout; 4] = [Layout::ExpertsOnHost, Layout::AllOnHost, Layout::Half, Layout::OneLayer];

/// Returns the golden models of this kind that the GPU backend decodes.
pub(super) fn families(is_meant: impl Fn(&ModelSpec) -> bool) -> Vec<String> {
    let is_meant = |name: &String| {
        let file = testdata::file(&format!("arch/{name}.gguf"));
        let spec = ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), Some(super::MAX_MODEL_LEN)).unwrap();
        is_meant(&spec)
    };
    testdata::architectures().into_iter().filter(is_meant).collect()
}

pub(super) fn has_experts(spec: &ModelSpec) -> bool {
    spec.layers.iter().any(|layer| layer.ffn.experts().is_some())
}

/// All mixtures and all models with recurrent states, a dense model, and two with a table of per-layer inputs, of which
/// one has several hidden streams.
pub(super) fn check_all_families() {
    let mixtures = families(has_experts);
    let others = families(|spec| !has_experts(spec) && spec.state_bytes() > 0);
    let dense = ["qwen3", "gemma3n", "gemma4_e"].map(str::to_owned);
    let others = others.into_iter().chain(dense).map(|name| (name, &LAYOUTS[1..]));
    let all: Vec<_> = mixtures.into_iter().map(|name| (name, &LAYOUTS[..])).chain(others).collect();
    check_each(&all, |(name, layouts)| check_families(&[(name, layouts)]));
}

/// Checks each of these, and names all that fail.
pub(super) fn check_each<T: std::fmt::Debug>(all: &[T], check: impl Fn(&T)) {
    let fails = |one: &&T| catch_unwind(AssertUnwindSafe(|| check(one))).is_err();
    let wrong: Vec<_> = all.iter().filter(fails).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Each family and each layout once. `make test-kernels` checks all pairs.
#[test]
fn logits_do_not_depend_on_the_place_of_weights() {
    check_families(&[
        ("qwen3", &[Layout::OneLayer]),
        ("granitehybrid", &[Layout::AllOnHost]),
        ("gemma4_e", &[Layout::Half]),
        ("qwen3moe", &[Layout::ExpertsOnHost]),
        ("gpt_oss", &[Layout::AllOnHost]),
        ("qwen35moe", &[Layout::Half]),
    ]);
}

pub(super) fn check_families(families: &[(&str, &[Layout])]) {
    let Some(device) = devices::open_faulty("cpu-wave32:up@placed") else { return };
    for (name, layouts) in families {
        check_layouts(&device, &format!("arch/{name}"), layouts);
    }
}

/// Decodes 60 tokens one by one, in captured graphs, with a long step among them. Returns the logits, and the number of
/// steps that failed and were repeated.
pub(super) fn decode(model: &mut Model<GpuBackend>, tokens: &[u32]) -> (Vec<Vec<f32>>, usize) {
    let long = long(tokens);
    let mut failed = 0;
    let mut step = |seq: (&[u32], usize)| {
        let first = model.step(&[seq]);
        first.or_else(|_| {
            failed += 1;
            model.step(&[seq])
        })
    };
    let mut all: Vec<_> = (0..40).map(|at| step((&long[..at + 1], at)).unwrap()).collect();
    all.push(step((&long, 0)).unwrap());
    all.extend((40..60).map(|at| step((&long[..at + 1], at)).unwrap()));
    (all, failed)
}

/// The cache holds half of the experts or fewer, and its content changes while graphs are replayed. Logits stay those
/// of the model on the device, to the bit.
#[test]
fn logits_do_not_depend_on_the_cache_of_experts() {
    check_caches(&["qwen3moe", "gpt_oss"]);
}

pub(super) fn check_caches(names: &[&str]) {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@cached") else { return };
    for name in names {
        let name = format!("arch/{name}");
        let tokens = tokens(&testdata::npz(&name));
        let opened = (device.clone(), options.clone());
        let expected = decode(&mut load(&opened, &name, Layout::AllOnDevice, 0).unwrap(), &tokens);
        let host = load(&opened, &name, Layout::ExpertsOnHost, 0).unwrap().backend.memory().host_weights;
        for bytes in [host / 8, host / 2] {
            let opened = (device.clone(), GpuOptions { expert_cache: Some(bytes), ..options.clone() });
            let mut model = load(&opened, &name, Layout::ExpertsOnHost, 0).unwrap();
            let allocated = device.allocated_bytes();
            let MemoryLedger { weights, kv_cache, scratch, other, .. } = model.backend.memory();
            assert_eq!(weights + kv_cache + scratch + other, allocated, "{name} {bytes}");
            assert!(decode(&mut model, &tokens) == expected, "{name} {bytes}: other logits");
            let ExpertCacheUse { hits, misses, copied_bytes } = model.backend.expert_cache();
            println!("{name}: {bytes} of {host} bytes: {hits} hits, {misses} misses, {copied_bytes} bytes copied");
            assert!(hits > 0 && misses > 0 && copied_bytes > 0, "{name} {bytes}: {hits} {misses} {copied_bytes}");
            assert_eq!(device.allocated_bytes(), allocated, "{name} {bytes}");
        }
        assert_eq!((device.allocated_bytes(), faults.live()), (0, Live::default()), "{name}");
    }
}

/// G3: whatever copy of the cache fails, the step can be repeated, and all logits are right. `make test-kernels` lets
/// more of them fail.
#[test]
fn failed_copies_of_experts_do_not_change_later_steps() {
    check_failed_copies_of_experts(&[0, 3]);
}

pub(super) fn check_failed_copies_of_experts(numbers: &[u64]) {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave64:up@cached") else { return };
    let name = "arch/qwen3moe";
    let tokens = tokens(&testdata::npz(name));
    let options = GpuOptions { expert_cache: Some(1 << 20), ..options };
    let mut model = load(&(device, options), name, Layout::ExpertsOnHost, 0).unwrap();
    let (expected, _) = decode(&mut model, &tokens);
    for call in [Call::CopyToDevice, Call::CopyToHost, Call::Record] {
        for &nth in numbers {
            faults.fail(call, nth, INVALID);
            let (logits, failed) = decode(&mut model, &tokens);
            let happened = !faults.disarm();
            assert!(happened || nth > 0, "no {call:?}");
            assert_eq!(failed, usize::from(happened), "{call:?} {nth}");
            assert!(logits == expected, "{call:?} {nth}: other logits");
        }
    }
}

/// G3: whatever call of a long step fails, the step ends in an error, and the next one has the right logits. At a
/// commit, every seventh fails.
#[test]
fn failed_copies_of_weights_do_not_change_later_steps() {
    check_failed_copies_of_weights(7);
}

pub(super) fn check_failed_copies_of_weights(every: usize) {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@staged") else { return };
    let name = "arch/qwen3moe";
    let tokens = tokens(&testdata::npz(name));
    let mut model = load(&(device, options), name, Layout::OneLayer, 0).unwrap();
    let long = long(&tokens);
    let expected = model.logits(&long, 0);
    for call in [Call::CopyToDevice, Call::Record, Call::WaitEvent, Call::Launch] {
        for nth in (0..).step_by(every) {
            faults.fail(call, nth, INVALID);
            let outcome = model.step(&[(&long, 0)]);
            if faults.disarm() {
                assert!(outcome.unwrap() == expected, "{call:?}");
                assert!(nth > 3, "{nth} calls of {call:?}");
                break;
            }
            assert!(matches!(outcome, Err(Error::Device { .. })), "{call:?} {nth}: {outcome:?}");
            // A short step reads in place what copies of the failed one may still read.
            let tokens = &long[..3];
            model.step(&[(tokens, 0)]).unwrap();
            assert!(model.step(&[(&long, 0)]).unwrap() == expected, "{call:?} {nth}: other logits");
        }
    }
}

/// Mutation test: without the waits of streams for events, kernels and copies use the buffers in no order, and the
/// stand-in says so.
#[test]
fn copies_of_weights_need_the_waits_for_events() {
    let Some(device) = devices::open("cpu-wave64:up@staged") else { return };
    let name = "arch/qwen3moe";
    let long = long(&tokens(&testdata::npz(name)));
    let mut model = load(&device, name, Layout::OneLayer, 0).unwrap();
    model.step(&[(&long, 0)]).unwrap();
    devices::leave_out(&device.1, STREAM_FOR_EVENT);
    model.step(&[(&long, 0)]).unwrap_err();
    let fault = devices::fault(&device.1);
    assert!(fault.contains("copy of") && fault.contains("launch of"), "{fault}");
}

/// G3: whatever call for the host's memory fails, the load ends in an error, and nothing is left.
#[test]
fn refused_host_memory_leaves_nothing_behind() {
    let Some((device, options, faults)) = devices::open_faulty("cpu-wave32:up@pinned") else { return };
    let opened = (device, options);
    let load = || load(&opened, "arch/qwen3moe", Layout::OneLayer, 0).map(|model| model.backend.memory().host_weights);
    assert!(load().unwrap() > 0);
    for call in [Call::AllocateHost, Call::HostOnDevice, Call::FreeHost] {
        for nth in 0.. {
            faults.fail(call, nth, OUT_OF_MEMORY);
            let loaded = load().and_then(|_| opened.0.check());
            if faults.disarm() {
                loaded.unwrap();
                assert!(nth > 3, "{nth} calls of {call:?}");
                break;
            }
            let error = loaded.unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. } | Error::Device { .. }), "{call:?} {nth}: {error}");
            assert_eq!((opened.0.allocated_bytes(), faults.live()), (0, Live::default()), "{call:?} {nth}");
        }
    }
}
