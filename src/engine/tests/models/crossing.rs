//! Model families in engines on a simulated device, in all kinds of steps next to each other: prompts longer and
//! shorter than a step, few and many sequences, logits of whole prompts, and generated texts. The results are compared
//! with the CPU's logits with an f32 cache.

use crate::config::{
    DeviceKind, EngineArgs, GpuOptions, KvCacheDtype, SamplingParams, SpeculativeConfig, SpeculativeMethod,
};
use crate::devices::OpenDevice;
use crate::gguf::GgufFile;
use crate::gpu::Device;
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::load::load_on;
use crate::testdata::{self, TempFile};
use crate::tests::drafts::drafter::args;
use crate::tests::support::*;
use crate::{Engine, LoadedModel};

/// The settings with which an engine is loaded.
#[derive(Debug, Clone, Copy)]
pub(in crate::tests) struct Setting {
    dtype: KvCacheDtype,
    batch_invariant: bool,
    /// The tokens of a step.
    tokens: usize,
    proposed: bool,
}

const fn setting(dtype: KvCacheDtype, batch_invariant: bool, tokens: usize, proposed: bool) -> Setting {
    Setting { dtype, batch_invariant, tokens, proposed }
}

/// Any two values of different fields occur together in one of these.
pub(in crate::tests) const ALL: [Setting; 6] = [
    setting(KvCacheDtype::F16, false, 160, false),
    setting(KvCacheDtype::F16, true, 40, true),
    setting(KvCacheDtype::F32, false, 40, true),
    setting(KvCacheDtype::F32, true, 160, false),
    setting(KvCacheDtype::Int8, false, 160, true),
    setting(KvCacheDtype::Int8, true, 40, false),
];

fn method_of(name: &str) -> SpeculativeConfig {
    match name.ends_with("_mtp") {
        true => SpeculativeConfig { method: SpeculativeMethod::Mtp, num_speculative_tokens: 3, ..Default::default() },
        false => SpeculativeConfig::default(),
    }
}

/// Returns the context of a model, which the golden files of some families keep short.
fn context_of(file: &TempFile) -> usize {
    let file = GgufFile::open(&file.0).unwrap();
    let architecture = file.metadata().str("general.architecture").unwrap();
    256.min(file.metadata().u32(&format!("{architecture}.context_length")).unwrap() as usize)
}

fn args_of(file: &TempFile, tokens: usize) -> EngineArgs {
    EngineArgs {
        max_model_len: Some(context_of(file)),
        max_num_seqs: Some(16),
        max_num_batched_tokens: Some(tokens),
        kv_cache_memory: Some(64 << 20),
        ..args(file, None)
    }
}

/// Returns how far a token's logit is below the largest one of its row.
fn shortfall(row: &[f32], token: u32) -> f32 {
    row.iter().fold(f32::MIN, |most, logit| most.max(*logit)) - row[token as usize]
}

/// Loads a golden model with each setting, and compares its results with the CPU's.
pub(in crate::tests) fn check((device, options): &(Device, GpuOptions), name: &str, settings: &[Setting]) {
    let file = testdata::file(&format!("arch/{name}.gguf"));
    let golden: Vec<u32> = testdata::npz(&format!("arch/{name}")).i32("tokens").iter().map(|&id| id as u32).collect();
    let text = |first: usize, len: usize| golden.iter().copied().cycle().skip(first).take(len).collect::<Vec<u32>>();
    let mut prompts = vec![text(0, 150.min(context_of(&file) - 10)), text(3, 48), text(5, 1), text(7, 20)];
    prompts.extend((0..9).map(|i| text(i, 2 + i % 3)));
    let cpu = EngineArgs { kv_cache_dtype: KvCacheDtype::F32, ..args_of(&file, 256) };
    let cpu = Engine::load(cpu, &mut |_| true).unwrap();
    let expected = prompt_logits(&cpu, prompts[0].clone()).unwrap();
    let vocab = expected.len() / prompts[0].len();
    let largest = expected.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
    for setting in settings {
        let &Setting { dtype, batch_invariant, tokens, proposed } = setting;
        let args = EngineArgs {
            device: DeviceKind::Gpu,
            gpu: GpuOptions { batch_invariant, ..options.clone() },
            kv_cache_dtype: dtype,
            speculative_config: proposed.then(|| method_of(name)),
            ..args_of(&file, tokens)
        };
        let loaded = match load_on(&args, || Ok(OpenDevice::Gpu(device.clone())), &mut |_| true) {
            // Latent rows are only stored as floats.
            Err(error) if dtype == KvCacheDtype::Int8 && error.to_string().contains("latent") => continue,
            loaded => loaded.unwrap(),
        };
        let LoadedModel { executor, config, .. } = loaded;
        let engine = Engine::start(LoadedModel::new(executor, config)).unwrap();

        let got = prompt_logits(&engine, prompts[0].clone()).unwrap();
        let errors = got.iter().zip(&expected).map(|(got, expected)| (got - expected).abs());
        let mean = errors.sum::<f32>() / expected.len() as f32 / largest;
        println!("{name}, {setting:?}: {mean:.2e} of the largest logit on average");
        assert!(mean < 3e-2, "{name}, {setting:?}: {mean:.2e} of the largest logit on average");

        let params = |i: usize| SamplingParams {
            ignore_eos: true,
            prompt_logprobs: (i == 1).then_some(1),
            ..greedy(if i < 4 { 8 } else { 2 })
        };
        let clients: Vec<Client> = prompts
            .iter()
            .enumerate()
            .map(|(i, prompt)| submit(&engine, request(prompt, params(i))).unwrap())
            .collect();
        let done: Vec<Finished> = clients.into_iter().map(Client::wait).collect();
        for (i, (prompt, done)) in prompts.iter().zip(done).enumerate() {
            let one = &done[&0];
            assert!(one.error.is_none(), "{name}, {setting:?}: {:?}", one.error);
            assert_eq!(one.tokens.len(), params(i).max_tokens, "{name}, {setting:?}");
            assert_eq!(one.prompt_logprobs.as_ref().map(Vec::len), (i == 1).then_some(prompt.len()));
            let whole = [&prompt[..], &one.tokens[..]].concat();
            let rows = prompt_logits(&cpu, whole).unwrap();
            for (ahead, &token) in one.tokens.iter().enumerate() {
                let below = shortfall(&rows[(prompt.len() - 1 + ahead) * vocab..][..vocab], token);
                assert!(below < 0.3 * largest, "{name}, {setting:?}: token {ahead} of text {i} is {below} too low");
            }
        }
        engine.check_integrity().unwrap();
        engine.close();
    }
    cpu.close();
    assert_eq!(device.allocated_bytes(), 0);
}

/// F2: prompts that fill a step and need only their last logits, in two models. One has layers that run on few rows and
/// read them without a norm. The other has a block that proposes draft tokens.
#[test]
fn steps_of_every_kind_find_room() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    check(&device, "gemma4_e", &ALL[..1]);
    check(&device, "qwen35_mtp", &ALL[4..5]);
}

/// Experts that the CPU computes, with draft tokens. The load measures which steps copy them instead.
#[test]
fn experts_of_the_cpu_serve_steps_of_every_kind() {
    let Some(device) = devices::open(CPU_TARGETS[0]) else { return };
    check_on_cpu(device, "qwen3moe", &[setting(KvCacheDtype::F16, false, 160, true)]);
}

/// Checks a mixture whose experts all lie in the host's memory.
pub(in crate::tests) fn check_on_cpu((device, options): (Device, GpuOptions), name: &str, settings: &[Setting]) {
    check(&(device, GpuOptions { cpu_experts: Some(usize::MAX), self_test: true, ..options }), name, settings);
}
