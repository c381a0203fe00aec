//! Contents that left the device come back from host memory and from files, and change no bit.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::Error;
use crate::config::{
    DeviceKind, EngineArgs, EngineConfig, GpuOptions, KvCacheDtype, KvFilesConfig, KvOffloadConfig, SamplingParams,
    StateConfig,
};
use crate::devices::OpenDevice;
use crate::gguf::GgufFile;
use crate::gpu::Device;
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::load::load_on;
use crate::model::ModelSpec;
use crate::scheduler::WaitingReason;
use crate::testdata::{self, TempFile};
use crate::tests::failures::stress::{a_thousand_requests, tiny as crowded};
use crate::tests::fake::hashed;
use crate::tests::support::*;
use crate::tests::tiny;
use crate::{Engine, FinishReason, LoadedModel, OffloadStats};

fn offloading(config: EngineConfig, memory: u64, folder: Option<&Path>) -> EngineConfig {
    let files = folder.map(|folder| KvFilesConfig { folder: folder.join("kv"), capacity: 1 << 16, namespace: [3; 32] });
    EngineConfig { kv_offload: Some(KvOffloadConfig { memory, files }), ..config }
}

fn rig(config: EngineConfig, synchronous: bool) -> Rig {
    let rig = Rig::with(config, hashed(VOCAB), None);
    rig.script.synchronous.store(synchronous, Ordering::SeqCst);
    rig
}

fn prompt(which: u32) -> Vec<u32> {
    (0..22).map(|i| (which * 7 + i * i) % VOCAB as u32).collect()
}

fn cached(done: &Finished) -> usize {
    done[&0].last.as_ref().unwrap().metrics.num_cached_tokens
}

fn offload_stats(engine: &Engine) -> OffloadStats {
    engine.check_integrity().unwrap();
    engine.stats().kv_offload
}

/// Runs prompts that do not fit in the device together, and checks each text.
fn run_all(rig: &Rig, prompts: u32) -> Vec<usize> {
    let run = |which| {
        let done = rig.run(&prompt(which), greedy(6));
        assert_eq!(done[&0].tokens, alone(&rig.rule, &prompt(which), &greedy(6), 0, 0), "prompt {which}");
        cached(&done)
    };
    (0..prompts).map(run).collect()
}

/// Waits until files have so many contents, and the engine knows.
fn wait_for_files(engine: &Engine, contents: usize) {
    let start = Instant::now();
    while engine.stats().kv_offload.index.disk_contents < contents {
        assert!(start.elapsed() < HANG, "{:?}", engine.stats().kv_offload);
        std::thread::yield_now();
    }
}

/// A synchronous device loses nothing; an asynchronous one as much as it cannot copy in time.
#[test]
fn prompts_come_back_from_host_memory() {
    for (synchronous, states) in [(true, None), (false, None), (true, slots(3, 2, 2)), (false, slots(3, 1, 2))] {
        let config = EngineConfig { kv_groups: blocks(16), states, ..config() };
        let rig = rig(offloading(config, 1 << 20, None), synchronous);
        assert_eq!(run_all(&rig, 6), [0; 6]);
        assert_eq!(run_all(&rig, 6), [20; 6], "{synchronous} {states:?}");
        let stats = offload_stats(&rig.engine);
        assert_eq!(stats.index.lost, 0);
        assert!(stats.index.memory_hit_tokens >= 60 && stats.index.loaded >= 10, "{stats:?}");
        assert_eq!(rig.engine.memory().kv_offload, 1 << 20);
        assert_nothing_left(&rig.engine);
        assert!(rig.engine.reset_prefix_cache().unwrap());
        assert_eq!(offload_stats(&rig.engine).index.memory_contents, 0);
        assert_eq!(run_all(&rig, 1), [0]);
    }
}

/// Salts are part of the names of contents in all tiers.
#[test]
fn salts_share_nothing_below_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let config = EngineConfig { kv_groups: blocks(16), ..config() };
    let rig = rig(offloading(config, 2_000, Some(folder.path())), true);
    let ask = |salt: &str| {
        let draft = Draft { cache_salt: Some(salt.into()), ..request(&prompt(0), greedy(2)) };
        cached(&submit(&rig.engine, draft).unwrap().wait())
    };
    assert_eq!(ask("a"), 0);
    run_all(&rig, 8);
    wait_for_files(&rig.engine, 30);
    assert_eq!((ask("b"), ask("a")), (0, 20));
}

/// Host memory is so small that most contents go on to files. Another engine finds them there, and all that the first
/// one held when it was closed.
#[test]
fn files_outlive_the_engine() {
    for (synchronous, states) in [(true, None), (false, slots(3, 1, 2))] {
        let folder = tempfile::tempdir().unwrap();
        let config = EngineConfig { kv_groups: blocks(16), states, ..config() };
        let config = offloading(config, 8_000, Some(folder.path()));
        let first = rig(config.clone(), synchronous);
        assert_eq!(run_all(&first, 9), [0; 9]);
        assert!(offload_stats(&first.engine).index.memory_bytes <= 8_000);
        first.engine.close();
        let second = rig(config.clone(), synchronous);
        let before = offload_stats(&second.engine);
        assert!(before.index.disk_contents >= 45 && before.disk_bytes > 0, "{before:?}");
        assert_eq!(run_all(&second, 9), [20; 9]);
        let stats = offload_stats(&second.engine);
        assert_eq!(
            (stats.index.disk_hit_tokens, stats.disk_unreadable, stats.disk_dropped),
            (9 * 20, 0, 0),
            "{stats:?}"
        );
        assert_nothing_left(&second.engine);
        // Another model's contents are not found, and nothing is after a reset.
        let mut other = config.clone();
        other.kv_offload.iter_mut().flat_map(|offload| &mut offload.files).for_each(|files| files.namespace = [4; 32]);
        assert_eq!(run_all(&rig(other, synchronous), 1), [0]);
        assert!(second.engine.reset_prefix_cache().unwrap());
        second.engine.close();
        assert_eq!(run_all(&rig(config, synchronous), 1), [0]);
    }
}

/// A request that runs when the engine is closed, with a step in flight, leaves its full blocks in files.
#[test]
fn files_have_the_requests_that_ran_last() {
    let folder = tempfile::tempdir().unwrap();
    let config = EngineConfig { kv_groups: blocks(16), ..config() };
    let config = offloading(config, 8_000, Some(folder.path()));
    let first = rig(config.clone(), false);
    first.script.step_micros.store(20_000, Ordering::SeqCst);
    let client = first.submit(&prompt(0), greedy(40));
    let mut num_tokens = 0;
    while num_tokens < 4 {
        num_tokens += client.next_tokens().len();
    }
    first.engine.close();
    assert_eq!(client.wait()[&0].reason, Some(FinishReason::Abort));
    assert_eq!(run_all(&rig(config, false), 1), [20]);
}

/// Files that vanish or are damaged while the engine runs cost only the time to compute.
#[test]
fn lost_files_are_computed_again() {
    let folder = tempfile::tempdir().unwrap();
    let config = EngineConfig { kv_groups: blocks(16), ..config() };
    let config = offloading(config, 8_000, Some(folder.path()));
    rig_with_prompts(&config);
    let rig = rig(config, true);
    let mut files = Vec::new();
    let mut folders = vec![folder.path().join("kv").join("03".repeat(32))];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() { folders.push(entry) } else { files.push(entry) }
        }
    }
    for (i, file) in files.iter().enumerate() {
        match i % 3 {
            0 => std::fs::remove_file(file).unwrap(),
            1 => std::fs::write(file, b"RFKVOF1\n").unwrap(),
            _ => {}
        }
    }
    assert!(run_all(&rig, 9).into_iter().sum::<usize>() < 9 * 20);
    assert!(offload_stats(&rig.engine).disk_unreadable > 0);
    assert!(rig.engine.stats().kv_cache.prefix_cache_misses.unreadable > 0);
    assert_nothing_left(&rig.engine);
}

fn rig_with_prompts(config: &EngineConfig) {
    let rig = rig(config.clone(), true);
    run_all(&rig, 9);
    rig.engine.close();
}

/// A step evicts more blocks than are copied at once. Its copies have ended before those of the next one begin, and an
/// idle engine copies the rest.
#[test]
fn prompts_longer_than_a_step_come_back() {
    let config = EngineConfig { kv_groups: blocks(16), max_num_batched_tokens: 8, ..config() };
    let rig = rig(offloading(config, 1 << 20, None), false);
    assert_eq!(rig.script.copies.staged.load(Ordering::SeqCst), 4);
    let prompt = |which: u32| (0..57).map(|i| (which * 7 + i * i) % VOCAB as u32).collect::<Vec<_>>();
    for expected in [0, 56] {
        for which in 0..4 {
            let done = rig.run(&prompt(which), greedy(2));
            assert_eq!(done[&0].tokens, alone(&rig.rule, &prompt(which), &greedy(2), 0, 0));
            assert_eq!(cached(&done), expected, "{:?}", rig.engine.stats().kv_offload);
        }
    }
    assert_nothing_left(&rig.engine);
}

/// A device that can hold few copies loses contents rather than wait.
#[test]
fn what_cannot_be_copied_in_time_is_lost() {
    let config = EngineConfig { kv_groups: blocks(16), ..config() };
    let rig = rig(offloading(config, 1 << 20, None), false);
    rig.script.copies.most_saves.store(1, Ordering::SeqCst);
    // All at once, since an idle engine copies everything that is evicted soon.
    for _ in 0..2 {
        let clients: Vec<Client> = (0..6).map(|which| rig.submit(&prompt(which), greedy(1))).collect();
        for (which, client) in (0..).zip(clients) {
            let tokens = alone(&rig.rule, &prompt(which), &greedy(1), 0, 0);
            assert_eq!(client.wait()[&0].tokens, tokens, "prompt {which}");
        }
    }
    assert!(offload_stats(&rig.engine).index.lost > 0);
    assert_nothing_left(&rig.engine);
}

/// A host without memory for copies loses contents, and requests go on.
#[test]
fn what_the_host_has_no_memory_for_is_lost() {
    let config = EngineConfig { kv_groups: blocks(16), ..config() };
    let rig = rig(offloading(config, 1 << 20, None), true);
    rig.script.copies.refuses_memory.store(true, Ordering::SeqCst);
    assert_eq!(run_all(&rig, 6), [0; 6]);
    assert_eq!(run_all(&rig, 1), [0]);
    let index = offload_stats(&rig.engine).index;
    assert!(index.lost > 0 && index.memory_contents == 0, "{index:?}");
    rig.script.copies.refuses_memory.store(false, Ordering::SeqCst);
    run_all(&rig, 6);
    assert_eq!(run_all(&rig, 6), [20; 6]);
    assert_nothing_left(&rig.engine);
}

/// Runs prompts until the first one is in host memory alone, and holds copies to the device from then on.
fn rig_that_holds_restores(config: EngineConfig) -> Rig {
    let rig = rig(offloading(EngineConfig { kv_groups: blocks(24), ..config }, 1 << 20, None), false);
    run_all(&rig, 8);
    rig.script.copies.holds_restores.store(true, Ordering::SeqCst);
    rig
}

/// Waits until a request waits for copies to the device.
fn wait_for_a_load(engine: &Engine) {
    let start = Instant::now();
    while !engine.waiting().unwrap().iter().any(|(_, reason)| *reason == WaitingReason::KvOffload) {
        assert!(start.elapsed() < HANG, "{:?}", engine.stats());
        std::thread::yield_now();
    }
}

/// A request whose prefix is copied to the device holds up no other. It may end meanwhile.
#[test]
fn requests_go_on_while_a_prefix_is_loaded() {
    for most in [0, 1] {
        let rig = rig_that_holds_restores(config());
        rig.script.copies.most_restores.store(most, Ordering::SeqCst);
        let waiting = rig.submit(&prompt(0), greedy(6));
        wait_for_a_load(&rig.engine);
        let cancelled = rig.submit(&prompt(1), greedy(6));
        assert_eq!(rig.run(&[40; 7], greedy(30))[&0].tokens, alone(&rig.rule, &[40; 7], &greedy(30), 0, 0));
        assert!(waiting.outputs.is_empty());
        rig.engine.abort_id(cancelled.accepted.id).unwrap();
        assert_eq!(cancelled.wait()[&0].reason, Some(FinishReason::Abort));
        rig.script.copies.holds_restores.store(false, Ordering::SeqCst);
        let done = waiting.wait();
        assert_eq!((cached(&done), &done[&0].tokens), (20, &alone(&rig.rule, &prompt(0), &greedy(6), 0, 0)));
        assert_nothing_left(&rig.engine);
        // Another request finds the blocks of the one that was cancelled.
        assert_eq!(run_all(&rig, 2), [20; 2]);
    }
}

/// A request that ends during the copies of its prefix leaves nothing, even if no other follows.
#[test]
fn cancelled_loads_leave_nothing() {
    let rig = rig_that_holds_restores(config());
    let client = rig.submit(&prompt(0), greedy(6));
    wait_for_a_load(&rig.engine);
    rig.engine.abort_id(client.accepted.id).unwrap();
    client.wait();
    assert_nothing_left(&rig.engine);
    rig.engine.close();
    assert_eq!(rig.engine.stats().kv_cache.blocks_owned, 0);
}

/// A device that is lost during copies back ends the engine, and no block stays owned.
#[test]
fn a_device_may_be_lost_during_loads() {
    let rig = rig_that_holds_restores(config());
    let client = rig.submit(&prompt(0), greedy(6));
    wait_for_a_load(&rig.engine);
    rig.script.copies.is_lost.store(true, Ordering::SeqCst);
    assert!(matches!(client.wait()[&0].error, Some(Error::EngineDead { .. })));
    rig.engine.close();
    assert_eq!(rig.engine.stats().kv_cache.blocks_owned, 0);
}

/// A device that is lost during a copy ends the engine. Its files serve the next one.
#[test]
fn files_survive_a_lost_device() {
    let folder = tempfile::tempdir().unwrap();
    let config = EngineConfig { kv_groups: blocks(16), ..config() };
    let config = offloading(config, 8_000, Some(folder.path()));
    let first = rig(config.clone(), false);
    run_all(&first, 9);
    wait_for_files(&first.engine, 10);
    first.script.copies.is_lost.store(true, Ordering::SeqCst);
    first.run(&prompt(9), greedy(6));
    assert!(matches!(first.engine.check_integrity(), Err(Error::EngineDead { .. })));
    first.engine.close();
    let second = rig(config, false);
    assert!(run_all(&second, 9).into_iter().sum::<usize>() > 0);
    assert_nothing_left(&second.engine);
}

/// K2: requests with cancels, failures and preemptions through both tiers. Each byte is accounted for.
#[test]
fn a_thousand_requests_through_both_tiers() {
    check_a_thousand(true, None);
}

/// Runs the test above with other devices, and with recurrent states.
pub(in crate::tests) fn a_thousand_requests_with_all_settings() {
    check_a_thousand(false, None);
    check_a_thousand(true, slots(6, 2, 4));
    check_a_thousand(false, slots(6, 1, 4));
}

fn check_a_thousand(synchronous: bool, states: Option<StateConfig>) {
    let folder = tempfile::tempdir().unwrap();
    let config = offloading(EngineConfig { states, ..crowded() }, 6_000, Some(folder.path()));
    let rig = a_thousand_requests(synchronous, config, hashed(VOCAB));
    let stats = offload_stats(&rig.engine);
    assert!(stats.index.memory_bytes <= 6_000 && stats.index.loaded > 0 && stats.disk_written > 0, "{stats:?}");
    rig.engine.close();
}

/// Returns the settings of an engine with room for two texts of `length` tokens on the device, or for more.
fn args(file: &TempFile, length: usize, texts: u64, folder: Option<&Path>) -> EngineArgs {
    let spec = ModelSpec::from_gguf(&GgufFile::open(&file.0).unwrap(), Some(length)).unwrap();
    let of_block: u64 = spec.kv_groups.iter().map(|group| group.block_bytes(16, KvCacheDtype::F16).unwrap()).sum();
    EngineArgs {
        device: DeviceKind::Cpu,
        num_threads: Some(1),
        max_num_seqs: Some(2),
        max_num_batched_tokens: Some(32),
        max_model_len: Some(length),
        kv_cache_memory: Some(texts * (length as u64 / 16 * of_block + 6 * spec.state_bytes())),
        kv_offload_dir: folder.map(|folder| folder.join("kv")),
        ..EngineArgs::new(&file.0)
    }
}

fn text(which: u32, length: usize) -> Draft {
    let prompt: Vec<u32> = (0..length as u32 - 20 + which).map(|i| 5 + (i * i + which * 11) % 40).collect();
    request(&prompt, SamplingParams { logprobs: Some(3), ignore_eos: true, ..greedy(8) })
}

/// Texts of a model have the same bits whether they are computed, or continued from host memory or from files.
fn check(file: &TempFile, length: usize, gpu: Option<&(Device, GpuOptions)>) {
    const TEXTS: u32 = 6;
    let folder = tempfile::tempdir().unwrap();
    let load = |args: EngineArgs| {
        let Some((device, options)) = gpu else { return Engine::load(args, &mut |_| true).unwrap() };
        let gpu = GpuOptions { batch_invariant: true, ..options.clone() };
        let args = EngineArgs { device: DeviceKind::Gpu, gpu, ..args };
        let loaded = load_on(&args, || Ok(OpenDevice::Gpu(device.clone())), &mut |_| true).unwrap();
        Engine::start(LoadedModel::new(loaded.executor, loaded.config)).unwrap()
    };
    let run = |engine: &Engine, which: u32| {
        let done = submit(engine, text(which, length)).unwrap().wait();
        assert_eq!(done[&0].reason, Some(FinishReason::Length));
        (done[&0].tokens.clone(), done[&0].logprobs.clone())
    };
    let plain = load(EngineArgs { enable_prefix_caching: false, ..args(file, length, 4, None) });
    let expected: Vec<_> = (0..TEXTS).map(|which| run(&plain, which)).collect();
    plain.close();
    let name = file.0.display();
    for round in 0..2 {
        let engine = load(args(file, length, 2, Some(folder.path())));
        for which in (0..TEXTS).chain(0..TEXTS) {
            assert_eq!(run(&engine, which), expected[which as usize], "{name} {which}");
        }
        let stats = offload_stats(&engine);
        assert!(stats.index.memory_hit_tokens > 0 && stats.index.lost == 0, "{name} {stats:?}");
        assert_eq!((stats.index.disk_hit_tokens > 0, stats.disk_unreadable), (round == 1, 0), "{name} {stats:?}");
        let allocations = engine.stats().device_allocations;
        assert_nothing_left_of(&engine, allocations);
        engine.close();
    }
}

/// Checks a golden model on the CPU or on a simulated device.
pub(in crate::tests) fn check_model(name: &str, gpu: Option<&(Device, GpuOptions)>) {
    check(&testdata::file(&format!("arch/{name}.gguf")), 96, gpu);
}

/// Full attention, sliding windows, latent rows, gated delta nets, and Mamba-2 next to attention.
#[test]
fn families_continue_from_lower_tiers_exactly() {
    ["llama_tied", "gemma3", "deepseek2", "qwen35", "granitehybrid"]
        .into_iter()
        .for_each(|name| check_model(name, None));
}

/// A GPU copies beside its steps, on a stream of its own.
#[test]
fn a_gpu_continues_from_lower_tiers_exactly() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    check(&tiny::model(), 64, Some(&device));
}
