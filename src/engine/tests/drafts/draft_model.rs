//! Whole engines that draft with a draft model.

use super::drafter::{ROOMY, args, assert_same, end, run, same_on_a_gpu};
use crate::config::{EngineArgs, SpeculativeConfig, SpeculativeMethod};
use crate::devices::OpenDevice;
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::load::load_on;
use crate::testdata::{self, TempFile};
use crate::testmodels::of_vocabulary;
use crate::{Engine, SpeculationStats};
use crate::{Error, Result};

fn drafting(draft: &TempFile, num_speculative_tokens: usize) -> Option<SpeculativeConfig> {
    let (method, model) = (SpeculativeMethod::DraftModel, Some(draft.0.clone()));
    Some(SpeculativeConfig { method, model, num_speculative_tokens, ..SpeculativeConfig::default() })
}

/// Texts and log-probabilities have the same bits with and without a draft model, greedy and sampled. The draft model
/// is the model itself, one with other heads, one with windows, or one for a model with recurrent states. There is room
/// for all sequences, or for so few that some are preempted.
#[test]
fn a_model_says_the_same_with_a_draft_model() {
    let cases = [
        ("quant_models/Q4_0", "quant_models/Q4_0"),
        ("arch/qwen3", "arch/qwen2"),
        ("arch/gemma2", "arch/gemma3"),
        ("arch/qwen35", "arch/glm4"),
    ];
    for (place, (name, draft)) in cases.into_iter().enumerate() {
        let file = testdata::file(&format!("{name}.gguf"));
        let draft = of_vocabulary(&testdata::file(&format!("{draft}.gguf")), &file);
        let load = |kv_cache_memory: u64, speculative_config| {
            let args = EngineArgs { kv_cache_memory: Some(kv_cache_memory), ..args(&file, speculative_config) };
            Engine::load(args, &mut |_| true)
        };
        // Little more than the longest sequence needs.
        let scarce = match load(1, drafting(&draft, 2)).map(drop) {
            Err(Error::OutOfMemory { requested, .. }) => requested + requested / 8,
            other => panic!("{other:?}"),
        };
        for (kv_cache_memory, count) in [(2 * ROOMY, 4), (scarce, 2)] {
            let engines = [None, drafting(&draft, count)].map(|config| load(kv_cache_memory, config).unwrap());
            let sampled = place > 0;
            let [without, with] = [0, 1].map(|which| run(&engines[which], sampled));
            assert_same(&with, &without);
            let stats = engines[1].stats();
            println!("{name}, {kv_cache_memory}: {} preemptions, {:?}", stats.num_preemptions, stats.speculation);
            match kv_cache_memory == 2 * ROOMY {
                true => assert!(stats.kv_cache.prefix_cache_hits > 0, "{stats:?}"),
                // Next to the windows of one sequence there is hardly room for those of another.
                false => assert!(stats.num_preemptions > 0 || name == "arch/gemma2", "{stats:?}"),
            }
            // A draft model uses no state slots, and adds none to a model without states.
            let slots = engines.each_ref().map(|engine| engine.stats().kv_cache.state_slots_total);
            assert_eq!(slots.map(|slots| slots > 0), [name == "arch/qwen35"; 2]);
            let counts = end(&engines[1]);
            // It may not pay if sequences are preempted all the time.
            assert!(counts.num_draft_tokens > 0 || kv_cache_memory == scarce, "{counts:?}");
            assert_eq!(counts.num_draft_tokens, counts.num_proposed_tokens, "{counts:?}");
            let right = counts.num_accepted_tokens as f64 / counts.num_draft_tokens as f64;
            match place {
                // The most likely token of the same weights does not depend on the batch.
                0 => assert_eq!(counts.num_accepted_tokens, counts.num_draft_tokens, "{counts:?}"),
                _ => assert!(counts.num_draft_tokens == 0 || right < 0.5, "{name}: {counts:?}"),
            }
            assert_eq!(end(&engines[0]), SpeculationStats::default());
        }
    }
}

/// The memory plan counts the model and the draft model: both weights, and both keys and values in each block.
#[test]
fn memory_counts_the_draft_model() {
    let file = testdata::file("arch/qwen3.gguf");
    let draft = of_vocabulary(&testdata::file("arch/qwen2.gguf"), &file);
    let [with, plain, alone] = [(&file, drafting(&draft, 4)), (&file, None), (&draft, None)].map(|(file, config)| {
        let engine = Engine::load(args(file, config), &mut |_| true).unwrap();
        let (memory, blocks) = (engine.memory(), engine.stats().kv_cache.blocks_total as u64);
        end(&engine);
        assert!(memory.kv_cache <= ROOMY);
        (memory.weights, memory.kv_cache / blocks)
    });
    assert_eq!(with, (plain.0 + alone.0, plain.1 + alone.1));
}

/// A GPU with captured graphs also produces the same text in batch-invariant mode.
#[test]
fn a_gpu_says_the_same_with_a_draft_model() {
    a_gpu_says_the_same_with_a_draft_model_on(CPU_TARGETS[0]);
}

pub(in crate::tests) fn a_gpu_says_the_same_with_a_draft_model_on(target: &str) {
    let Some(opened) = devices::open(target) else { return };
    // The first draft model is the model itself. The second has fewer tokens, and its model has recurrent states.
    for (name, draft) in [("quant_models/Q4_0", "quant_models/Q4_0"), ("arch/qwen35", "arch/glm4")] {
        let file = testdata::file(&format!("{name}.gguf"));
        let draft = of_vocabulary(&testdata::file(&format!("{draft}.gguf")), &file);
        let counts = same_on_a_gpu(&opened, &file, drafting(&draft, 3), 2 * ROOMY, [5, 30, 60]);
        println!("{name}: {counts:?}");
        assert!(counts.num_draft_tokens > 0, "{counts:?}");
        assert!(name != "quant_models/Q4_0" || counts.num_accepted_tokens > 0, "{counts:?}");
    }
}

/// A missing, broken or unusable draft model is an error of the load, before a device is opened.
#[test]
fn draft_models_of_no_use_are_refused() {
    let file = testdata::file("arch/qwen3.gguf");
    let load = |draft: &TempFile| -> Result<()> {
        let open = || -> Result<OpenDevice> { panic!("the device was opened") };
        load_on(&args(&file, drafting(draft, 2)), open, &mut |_| true).map(drop)
    };
    let other = testdata::file("arch/glm4.gguf");
    match load(&other) {
        Err(Error::InvalidRequest { what, .. }) => assert_eq!(what, "speculative_config.model"),
        other => panic!("{other:?}"),
    }
    let whole = std::fs::read(&testdata::file("arch/qwen2.gguf").0).unwrap();
    let broken = testdata::temp_file("broken.gguf", &whole[..whole.len() / 2]);
    match load(&broken) {
        Err(Error::ModelFile { path, .. }) => assert_eq!(path, broken.0),
        other => panic!("{other:?}"),
    }
    let missing = TempFile(std::env::temp_dir().join("rocmforge-no-such-draft.gguf"));
    match load(&missing) {
        Err(Error::FileNotFound { path }) => assert_eq!(path, missing.0),
        other => panic!("{other:?}"),
    }
}
