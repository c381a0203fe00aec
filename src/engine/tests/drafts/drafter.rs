//! Whole engines with models whose files have a block that proposes draft tokens (MTP).

use crate::config::{DeviceKind, EngineArgs, GpuOptions, SamplingParams, SpeculativeConfig, SpeculativeMethod};
use crate::devices::OpenDevice;
use crate::gpu::Device;
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::load::load_on;
use crate::testdata::{self, TempFile};
use crate::testmodels::right_drafts;
use crate::tests::support::*;
use crate::{Engine, FinishReason, LoadedModel, SpeculationStats};
use crate::{Error, Result};

/// The bytes of a KV cache that holds all prompts of a test.
pub(super) const ROOMY: u64 = 1 << 20;

fn drafting(num_speculative_tokens: usize) -> Option<SpeculativeConfig> {
    let method = SpeculativeMethod::Mtp;
    Some(SpeculativeConfig { method, num_speculative_tokens, ..SpeculativeConfig::default() })
}

pub(in crate::tests) fn args(file: &TempFile, speculative_config: Option<SpeculativeConfig>) -> EngineArgs {
    EngineArgs {
        device: DeviceKind::Cpu,
        num_threads: Some(1),
        max_model_len: Some(128),
        max_num_seqs: Some(4),
        max_num_batched_tokens: Some(24),
        kv_cache_memory: Some(ROOMY),
        speculative_config,
        ..EngineArgs::new(&file.0)
    }
}

/// Returns requests of several kinds, whose prompts share prefixes and are longer than a step.
fn requests(sampled: bool) -> Vec<Draft> {
    (0..6u32)
        .map(|seq| {
            let prompt: Vec<u32> = (0..11 + 9 * seq).map(|i| 7 + i * i % 31).collect();
            let temperature = if sampled && seq % 2 == 1 { 2.0 } else { 0.0 };
            let n = if seq == 3 { 2 } else { 1 };
            let params = SamplingParams { temperature, n, seed: Some(3), ignore_eos: true, ..greedy(40) };
            request(&prompt, SamplingParams { logprobs: (seq < 3).then_some(2), ..params })
        })
        .collect()
}

/// Runs the requests together, twice. The second time the prefix cache has content, and some requests are aborted.
pub(in crate::tests) fn run(engine: &Engine, sampled: bool) -> Vec<Finished> {
    let mut all = Vec::new();
    for round in 0..2 {
        let leaving = (round == 1).then(|| submit(engine, request(&[9; 30], greedy(60))).unwrap());
        let clients: Vec<Client> = requests(sampled).into_iter().map(|draft| submit(engine, draft).unwrap()).collect();
        if let Some(client) = leaving {
            engine.abort_id(client.accepted.id).unwrap();
            let reason = client.wait()[&0].reason;
            assert!(matches!(reason, Some(FinishReason::Abort | FinishReason::Length)), "{reason:?}");
        }
        all.extend(clients.into_iter().map(Client::wait));
    }
    all
}

pub(in crate::tests) fn assert_same(with: &[Finished], without: &[Finished]) {
    assert_eq!(with.len(), without.len());
    for (with, without) in with.iter().flatten().zip(without.iter().flatten()) {
        assert_eq!((with.0, &with.1.tokens, with.1.reason), (without.0, &without.1.tokens, without.1.reason));
        assert_eq!(with.1.logprobs, without.1.logprobs);
    }
}

/// Ends an engine in which nothing is left, and returns its counts.
pub(in crate::tests) fn end(engine: &Engine) -> SpeculationStats {
    let (counts, allocations) = (engine.stats().speculation, engine.stats().device_allocations);
    assert_nothing_left_of(engine, allocations);
    engine.close();
    counts
}

/// Texts and log-probabilities have the same bits with and without draft tokens, be they nearly all wrong or all right.
/// There is room for all sequences, or for so few that some are preempted.
#[test]
fn a_model_says_the_same_with_its_own_drafts() {
    let files = [testdata::file("arch/qwen35_mtp.gguf"), right_drafts("qwen35_mtp"), right_drafts("glm4moe")];
    for (place, file) in files.iter().enumerate() {
        // Little more than the longest sequence needs.
        let scarce = if place == 2 { 140 << 10 } else { 120 << 10 };
        for (kv_cache_memory, count) in [(ROOMY, 4), (scarce, 2)] {
            let engines = [None, drafting(count)].map(|speculative_config| {
                let args = EngineArgs { kv_cache_memory: Some(kv_cache_memory), ..args(file, speculative_config) };
                Engine::load(args, &mut |_| true).unwrap()
            });
            let sampled = place == 0;
            let [without, with] = [0, 1].map(|which| run(&engines[which], sampled));
            assert_same(&with, &without);
            let stats = engines[1].stats();
            println!("{place}, {kv_cache_memory}: {} preemptions, {:?}", stats.num_preemptions, stats.speculation);
            match kv_cache_memory == ROOMY {
                true => assert!(stats.kv_cache.prefix_cache_hits > 0, "{stats:?}"),
                false => assert!(stats.num_preemptions > 0, "{stats:?}"),
            }
            let counts = end(&engines[1]);
            assert!(counts.num_draft_tokens > 0 && counts.num_draft_tokens == counts.num_proposed_tokens, "{counts:?}");
            let right = counts.num_accepted_tokens as f64 / counts.num_draft_tokens as f64;
            assert!(if place == 0 { right < 0.5 } else { right > 0.8 }, "{place}: {counts:?}");
            assert_eq!(end(&engines[0]), SpeculationStats::default());
        }
    }
}

/// Checks that a GPU with captured graphs produces the same with and without draft tokens. It uses prompts of these
/// lengths in batch-invariant mode. Both engines must leave nothing. Returns the counts of drafts.
pub(super) fn same_on_a_gpu(
    (device, options): &(Device, GpuOptions),
    file: &TempFile,
    drafting: Option<SpeculativeConfig>,
    kv_cache_memory: u64,
    prompts: [u32; 3],
) -> SpeculationStats {
    let gpu = GpuOptions { batch_invariant: true, graphs: Some(true), ..options.clone() };
    let engines = [None, drafting].map(|speculative_config| {
        let args = EngineArgs {
            device: DeviceKind::Gpu,
            gpu: gpu.clone(),
            max_model_len: Some(256),
            max_num_batched_tokens: Some(256),
            kv_cache_memory: Some(kv_cache_memory),
            ..args(file, speculative_config)
        };
        let open = || Ok(OpenDevice::Gpu(device.clone()));
        let LoadedModel { executor, config, .. } = load_on(&args, open, &mut |_| true).unwrap();
        Engine::start(LoadedModel::new(executor, config)).unwrap()
    });
    let texts = engines.each_ref().map(|engine| {
        let client = |count: u32| {
            let prompt: Vec<u32> = (0..count).map(|i| 7 + i * i % 31).collect();
            submit(engine, request(&prompt, SamplingParams { ignore_eos: true, ..greedy(12) })).unwrap()
        };
        let clients = prompts.map(client);
        clients.map(|client| client.wait()[&0].tokens.clone())
    });
    assert_eq!(texts[0], texts[1]);
    let counts = end(&engines[1]);
    assert_eq!(end(&engines[0]), SpeculationStats::default());
    drop(engines);
    assert_eq!(device.allocated_bytes(), 0);
    counts
}

#[test]
fn a_gpu_says_the_same_with_drafts() {
    a_gpu_says_the_same_with_drafts_on(CPU_TARGETS[0]);
}

pub(in crate::tests) fn a_gpu_says_the_same_with_drafts_on(target: &str) {
    let Some(opened) = devices::open(target) else { return };
    // A step with the longest prompt has more rows than can be converted at once, for rows of logits.
    let counts = same_on_a_gpu(&opened, &right_drafts("qwen35_mtp"), drafting(3), ROOMY, [5, 30, 200]);
    assert!(counts.num_accepted_tokens > 0, "{counts:?}");
}

/// A file without such a block is rejected before any of it is loaded.
#[test]
fn a_file_without_a_block_is_refused() {
    let load = |name: &str| -> Result<Engine> {
        let file = testdata::file(name);
        Engine::load(args(&file, drafting(2)), &mut |_| true)
    };
    for name in ["arch/qwen3.gguf", "arch/qwen35.gguf"] {
        match load(name).map(|_| ()) {
            Err(Error::InvalidRequest { what, .. }) => assert_eq!(what, "speculative_config.method"),
            other => panic!("{other:?}"),
        }
    }
}
