//! Whole engines with ranking encoders.

use crate::config::{DeviceKind, EngineArgs, GpuOptions, Pooling, PoolingParams, RequestParams};
use crate::devices::OpenDevice;
use crate::gpu::testing::devices::{self, CPU_TARGETS};
use crate::load::load_on;
use crate::testdata::TempFile;
use crate::testmodels::{RANKERS, golden, ranker};
use crate::tests::support::*;
use crate::{ChannelSink, Engine, FinishReason, LoadedModel, NewRequest};

fn args(file: &TempFile) -> EngineArgs {
    EngineArgs {
        device: DeviceKind::Cpu,
        num_threads: Some(1),
        max_model_len: Some(64),
        max_num_seqs: Some(4),
        max_num_batched_tokens: Some(64),
        kv_cache_memory: Some(1 << 20),
        ..EngineArgs::new(&file.0)
    }
}

/// Returns the scores of prompts that arrive at once.
fn scores(engine: &Engine, prompts: &[&[u32]]) -> Vec<f32> {
    let params = RequestParams::Pooling(PoolingParams { pooling: Some(Pooling::Rank), normalize: false });
    let clients = prompts.iter().map(|prompt| {
        let (sink, outputs) = ChannelSink::new();
        let request = NewRequest { params: params.clone(), ..request(prompt, greedy(1)).with_sink(sink) };
        engine.add_request(request, |_| {}).unwrap();
        outputs
    });
    let clients: Vec<_> = clients.collect();
    let scores = clients.into_iter().map(|outputs| {
        let output = outputs.recv_timeout(HANG).unwrap().remove(0);
        assert_eq!(output.finish_reason, Some(FinishReason::Stop), "{:?}", output.error);
        let vector = output.embedding.unwrap();
        assert_eq!(vector.len(), 1);
        vector[0]
    });
    scores.collect()
}

/// Scores pairs twice at once, which is more than a step holds, and each alone.
fn check(engine: Engine, name: &str, bound: f64) {
    let pairs = golden(name);
    let prompts: Vec<&[u32]> = pairs.iter().map(|(ids, _)| &ids[..]).collect();
    let together = scores(&engine, &prompts.repeat(2));
    for ((prompt, (_, expected)), got) in prompts.iter().zip(&pairs).zip(&together) {
        assert!((f64::from(*got) - expected).abs() < bound, "{name}: {got}, expected {expected}");
        let alone = scores(&engine, &[prompt])[0];
        assert_eq!(alone, *got, "{name}");
    }
    let stats = engine.stats();
    assert_eq!((stats.kv_cache.blocks_cached, stats.num_finished_stop), (0, 3 * pairs.len() as u64));
    let allocations = stats.device_allocations;
    assert_nothing_left_of(&engine, allocations);
    engine.close();
}

/// S12: a score does not depend on its batch, and nothing of it stays.
#[test]
fn scores_of_pairs() {
    for name in RANKERS {
        let file = ranker(name);
        check(Engine::load(args(&file), &mut |_| true).unwrap(), name, 3e-3);
    }
}

/// A GPU rounds the inputs of products to 16 bits.
#[test]
fn scores_of_pairs_on_a_gpu() {
    for name in RANKERS {
        let file = ranker(name);
        let Some((device, options)) = devices::open(CPU_TARGETS[0]) else { return };
        let gpu = GpuOptions { batch_invariant: true, ..options };
        let args = EngineArgs { device: DeviceKind::Gpu, gpu, ..args(&file) };
        let open = || Ok(OpenDevice::Gpu(device.clone()));
        let LoadedModel { executor, config, .. } = load_on(&args, open, &mut |_| true).unwrap();
        check(Engine::start(LoadedModel::new(executor, config)).unwrap(), name, 1e-2);
    }
}
