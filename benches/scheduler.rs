//! Measures one step of scheduler and KV cache (schedule + commit), without a device: all sequences decode, at 512 to
//! 1024 tokens of context each.

use std::hint::black_box;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use parking_lot::RwLock;
use rocmforge::Result;
use rocmforge::batch::{GroupKind, SeqExtras};
use rocmforge::config::GroupConfig;
use rocmforge::kv_cache::{KvCache, KvCacheConfig};
use rocmforge::scheduler::{Accepted, NewSequence, Scheduler, SchedulerConfig, SeqId};

const PROMPT: usize = 512;
const GENERATED: usize = 512;

struct World {
    scheduler: Scheduler,
    num_seqs: usize,
    next_id: u64,
    steps_left: usize,
    now: u64,
}

impl World {
    fn new(num_seqs: usize) -> Result<Self> {
        let block_size = 16;
        let num_blocks = (num_seqs + 1) * (PROMPT + GENERATED).div_ceil(block_size) * 102 / 100 + 1;
        let kv_cache = KvCache::new(KvCacheConfig {
            block_size,
            groups: vec![GroupConfig { kind: GroupKind::Full, num_blocks }],
            states: None,
            enable_prefix_caching: true,
            hash_key: [7; 32],
        })?;
        let limits = SchedulerConfig {
            max_num_seqs: num_seqs,
            max_num_batched_tokens: num_seqs * PROMPT,
            max_drafts: PROMPT,
            max_model_len: PROMPT + GENERATED,
            context_length: PROMPT + GENERATED,
            max_queue_size: num_seqs,
            max_num_partial_prefills: 4,
            max_long_partial_prefills: 1,
            long_prefill_token_threshold: (PROMPT + GENERATED) / 25,
            max_prefill_beside_newcomers: 160,
            beside_decodes: None,
            draft_lags: false,
        };
        let scheduler = Scheduler::new(limits, Arc::new(RwLock::new(kv_cache)))?;
        Ok(Self { scheduler, num_seqs, next_id: 0, steps_left: 0, now: 0 })
    }

    /// All sequences anew, their prompts computed.
    fn refill(&mut self) -> Result<()> {
        for id in self.next_id.saturating_sub(self.num_seqs as u64)..self.next_id {
            self.scheduler.finish(SeqId(id), self.now);
        }
        for _ in 0..self.num_seqs {
            let id = self.next_id;
            self.next_id += 1;
            let prompt = (0..PROMPT as u32).map(|i| id as u32 * 7 + i).collect();
            let new = NewSequence {
                id: SeqId(id),
                prompt,
                max_tokens: GENERATED,
                priority: 0,
                client: None,
                all_logits: false,
                cache_salt: None,
                will_fork: false,
                extras: SeqExtras::default(),
            };
            self.scheduler.add(new, self.now)?;
        }
        self.steps_left = GENERATED - 1;
        self.step()
    }

    fn step(&mut self) -> Result<()> {
        self.now += 1000;
        let step = black_box(self.scheduler.schedule(self.now)?);
        let sampled: Vec<(SeqId, u32)> = step.seqs.iter().map(|seq| (seq.id, seq.start as u32)).collect();
        let accepted = sampled.iter().map(|(id, token)| (*id, Accepted { tokens: from_ref(token), drafts: &[] }));
        self.scheduler.commit(&step, accepted, self.now)
    }

    fn time_steps(&mut self, steps: u64) -> Result<Duration> {
        let mut elapsed = Duration::ZERO;
        let mut left = steps;
        while left > 0 {
            if self.steps_left == 0 {
                self.refill()?;
            }
            let now = left.min(self.steps_left as u64);
            let start = Instant::now();
            for _ in 0..now {
                self.step()?;
            }
            elapsed += start.elapsed();
            self.steps_left -= now as usize;
            left -= now;
        }
        Ok(elapsed)
    }
}

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("scheduler_step");
    for num_seqs in [1, 64, 256, 1000] {
        group.bench_function(BenchmarkId::from_parameter(num_seqs), |bencher| match World::new(num_seqs) {
            Ok(mut world) => bencher.iter_custom(|steps| match world.time_steps(steps) {
                Ok(elapsed) => elapsed,
                Err(error) => panic!("a step failed: {error}"),
            }),
            Err(error) => panic!("the world could not be made: {error}"),
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
