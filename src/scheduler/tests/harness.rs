//! A scheduler driven manually, for tests of single behaviours.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::Result;
use crate::batch::{GroupKind, SeqExtras};
use crate::config::{GroupConfig, StateConfig};
use crate::kv_cache::{KvCache, KvCacheConfig};
use crate::{Accepted, NewSequence, Scheduler, SchedulerConfig, SeqId, Step};

pub(crate) struct Harness {
    pub(crate) scheduler: Scheduler,
    pub(crate) kv_cache: Arc<RwLock<KvCache>>,
    pub(crate) now: u64,
}

pub(crate) fn limits() -> SchedulerConfig {
    SchedulerConfig {
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        max_drafts: 16,
        max_model_len: 64,
        context_length: 64,
        max_queue_size: 8,
        max_num_partial_prefills: 4,
        max_long_partial_prefills: 1,
        long_prefill_token_threshold: 64,
        max_prefill_beside_newcomers: usize::MAX,
        beside_decodes: None,
        draft_lags: false,
    }
}

pub(crate) fn full(num_blocks: usize) -> GroupConfig {
    GroupConfig { kind: GroupKind::Full, num_blocks }
}

pub(crate) fn sliding(window: u32, num_blocks: usize) -> GroupConfig {
    GroupConfig { kind: GroupKind::Sliding { window }, num_blocks }
}

pub(crate) fn kv_config(groups: Vec<GroupConfig>) -> KvCacheConfig {
    KvCacheConfig { block_size: 4, groups, states: None, enable_prefix_caching: true, hash_key: [1; 32] }
}

/// Returns a sequence whose prompt of `n` tokens no other id shares.
pub(crate) fn sequence(id: u64, n: usize) -> NewSequence {
    NewSequence {
        id: SeqId(id),
        prompt: (0..n as u32).map(|i| id as u32 * 1000 + i).collect(),
        max_tokens: 16,
        priority: 0,
        client: None,
        all_logits: false,
        cache_salt: None,
        will_fork: false,
        extras: SeqExtras::default(),
    }
}

/// Returns a sequence of a client, with a prompt of `n` tokens and one token to generate.
pub(crate) fn from(client: &str, id: u64, n: usize) -> NewSequence {
    NewSequence { client: Some(client.into()), max_tokens: 1, ..sequence(id, n) }
}

impl Harness {
    /// Returns a harness whose cache has one full-attention group.
    pub(crate) fn new(num_blocks: usize, limits: SchedulerConfig) -> Self {
        Self::with_groups(vec![full(num_blocks)], limits)
    }

    pub(crate) fn with_groups(groups: Vec<GroupConfig>, limits: SchedulerConfig) -> Self {
        Self::with_cache(kv_config(groups), limits)
    }

    /// Returns a harness for a model with recurrent states.
    pub(crate) fn with_states(num_blocks: usize, states: StateConfig, limits: SchedulerConfig) -> Self {
        Self::with_cache(KvCacheConfig { states: Some(states), ..kv_config(vec![full(num_blocks)]) }, limits)
    }

    pub(crate) fn with_cache(config: KvCacheConfig, limits: SchedulerConfig) -> Self {
        let kv_cache = Arc::new(RwLock::new(KvCache::new(config).unwrap()));
        Self { scheduler: Scheduler::new(limits, Arc::clone(&kv_cache)).unwrap(), kv_cache, now: 0 }
    }

    /// Checks before it adds, as the engine does.
    pub(crate) fn add(&mut self, seq: NewSequence) -> Result<()> {
        let limits = &self.scheduler.config;
        limits.check_length(seq.prompt.len(), seq.max_tokens, &self.kv_cache.read())?;
        limits.check_queue(num_queued(&self.scheduler))?;
        self.scheduler.add(seq, self.now)
    }

    pub(crate) fn schedule(&mut self) -> Step {
        self.now += 10;
        let step = self.scheduler.schedule(self.now).unwrap();
        self.scheduler.check_integrity().unwrap();
        step
    }

    /// Commits with token 500 + id for each sampling sequence.
    pub(crate) fn commit(&mut self, step: &Step) {
        let sampling = step.seqs.iter().filter(|seq| !seq.samples.is_empty());
        let sampled: Vec<_> = sampling.map(|seq| (seq.id, token_of(seq.id))).collect();
        self.give(step, &sampled).unwrap();
    }

    /// Commits with one token for each of these sequences.
    pub(crate) fn give(&mut self, step: &Step, sampled: &[(SeqId, u32)]) -> Result<()> {
        let accepted =
            sampled.iter().map(|(id, token)| (*id, Accepted { tokens: std::slice::from_ref(token), drafts: &[] }));
        let committed = self.scheduler.commit(step, accepted, self.now);
        self.scheduler.check_integrity().unwrap();
        committed
    }

    /// Commits with tokens and drafts for each of these sequences.
    pub(crate) fn accept(&mut self, step: &Step, accepted: &[(u64, &[u32], &[u32])]) -> Result<()> {
        let accepted = accepted.iter().map(|&(id, tokens, drafts)| (SeqId(id), Accepted { tokens, drafts }));
        let committed = self.scheduler.commit(step, accepted, self.now);
        self.scheduler.check_integrity().unwrap();
        committed
    }

    pub(crate) fn step(&mut self) -> Step {
        let step = self.schedule();
        self.commit(&step);
        step
    }

    /// Runs a step, and ends the sequences that have all their tokens.
    pub(crate) fn run(&mut self) -> Step {
        let step = self.step();
        for id in step.seqs.iter().map(|seq| seq.id) {
            let seq = &self.scheduler.sequences[self.scheduler.slots[&id]];
            if seq.tokens.len() == seq.max_len {
                self.finish(id.0);
            }
        }
        step
    }

    pub(crate) fn finish(&mut self, id: u64) -> bool {
        let found = self.scheduler.finish(SeqId(id), self.now);
        self.scheduler.check_integrity().unwrap();
        found
    }

    pub(crate) fn blocks_owned(&self) -> usize {
        self.kv_cache.read().stats().blocks_owned
    }
}

pub(crate) fn token_of(id: SeqId) -> u32 {
    500 + id.0 as u32
}

/// Returns `(id, tokens)` of a step, in its order.
pub(crate) fn shares(step: &Step) -> Vec<(u64, usize)> {
    step.seqs.iter().map(|seq| (seq.id.0, seq.num_tokens)).collect()
}

/// Returns the number of waiting sequences that have never run, which the queue's limit counts.
pub(super) fn num_queued(scheduler: &Scheduler) -> usize {
    scheduler.sequences.iter().filter(|(_, seq)| seq.scheduled_at.is_none()).count()
}
