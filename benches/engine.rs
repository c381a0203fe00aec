//! Measures the engine itself per step: everything but the forward pass (scheduler, KV cache, sampler, stop conditions,
//! delivery), over an executor that does nothing. The time of an iteration is that of one step of all sequences.
#![allow(clippy::unwrap_used, missing_docs)]

use std::ops::Range;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rocmforge::Result;
use rocmforge::backend::MemoryLedger;
use rocmforge::batch::{Batch, GroupKind};
use rocmforge::config::{EngineConfig, GroupConfig, KvCacheDtype, Pooling, SamplingDefaults, SamplingParams};
use rocmforge::engine::{ChannelSink, Engine, Executor, LoadedModel, NewRequest, Prompt};
use rocmforge::model::vision::Images;
use rocmforge::selection::{Needs, SamplingRequest, Selection};

const VOCAB: usize = 512;
const STEPS: usize = 512;

struct NoForward {
    logits: Vec<f32>,
    num_rows: usize,
}

impl Executor for NoForward {
    fn draft(&mut self, _: &mut Batch, _: &Batch) -> Result<()> {
        Ok(())
    }
    fn launch(&mut self, _: &Batch, _: &Images, _: Needs) -> Result<()> {
        Ok(())
    }
    fn rows_at_once(&self) -> usize {
        usize::MAX
    }
    fn select(&mut self, rows: Range<usize>, _: &[SamplingRequest<'_>]) -> Result<()> {
        self.num_rows = rows.len();
        Ok(())
    }
    fn collect(&mut self) -> Result<Selection<'_>> {
        Ok(Selection::of_rows(&self.logits[..self.num_rows * VOCAB], VOCAB))
    }
    fn is_asynchronous(&self) -> bool {
        false
    }
    fn vocab_size(&self) -> usize {
        VOCAB
    }
    fn memory(&self) -> MemoryLedger {
        MemoryLedger::default()
    }
    fn device_allocations(&self) -> u64 {
        0
    }
    fn describe(&self) -> String {
        "no forward pass".to_owned()
    }
}

fn engine(max_num_seqs: usize) -> Engine {
    let config = EngineConfig {
        num_threads: 1,
        max_model_len: 2 * STEPS,
        context_length: 2 * STEPS,
        max_num_seqs,
        max_num_batched_tokens: 1024,
        max_drafts: 1,
        block_size: 16,
        kv_groups: vec![GroupConfig { kind: GroupKind::Full, num_blocks: max_num_seqs * 2 * STEPS / 16 }],
        states: None,
        kv_cache_dtype: KvCacheDtype::F16,
        enable_prefix_caching: true,
        kv_offload: None,
        max_queue_size: 1024,
        max_num_partial_prefills: 4,
        max_long_partial_prefills: 1,
        long_prefill_token_threshold: 2 * STEPS / 25,
        speculative_config: None,
        retention: Duration::from_secs(1),
        seed: Some(0),
        embedding_size: 1,
        pooling: Pooling::Last,
        sampling_defaults: SamplingDefaults::default(),
    };
    let logits: Vec<f32> = (0..max_num_seqs * VOCAB).map(|i| (i % 97) as f32).collect();
    Engine::start(LoadedModel::new(Box::new(NoForward { logits, num_rows: 0 }), config)).unwrap()
}

/// Runs `sequences` requests of `STEPS` tokens to their end.
fn generate(engine: &Engine, sequences: usize) -> Duration {
    let (sink, outputs) = ChannelSink::new();
    let start = Instant::now();
    for i in 0..sequences {
        let params = SamplingParams { max_tokens: STEPS, temperature: 0.0, ..SamplingParams::default() }.into();
        let prompt = Prompt::TokenIds((0..32).map(|t| (t + i as u32) % VOCAB as u32).collect());
        let sink = sink.clone();
        let request = NewRequest {
            name: None,
            prompt,
            images: Vec::new(),
            params,
            priority: 0,
            timeout: None,
            cache_salt: None,
            client: None,
            sink,
        };
        engine.add_request(request, |_| {}).unwrap();
    }
    let mut finished = 0;
    while finished < sequences {
        finished += outputs.recv().unwrap().iter().filter(|output| output.finish_reason.is_some()).count();
    }
    start.elapsed()
}

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("engine_step");
    for sequences in [1, 16, 64, 256] {
        let engine = engine(sequences);
        group.bench_function(BenchmarkId::from_parameter(sequences), |b| {
            b.iter_custom(|iterations| {
                let runs = iterations.div_ceil(STEPS as u64);
                let total: Duration = (0..runs).map(|_| generate(&engine, sequences)).sum();
                total.mul_f64(iterations as f64 / (runs * STEPS as u64) as f64)
            });
        });
        engine.close();
    }
    group.finish();
}

criterion_group!(benches, step);
criterion_main!(benches);
