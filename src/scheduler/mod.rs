//! Which tokens run in the next step; integers only. Time is a `u64` of microseconds that the caller supplies, so
//! that millions of steps run under a virtual clock.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::Result;
use crate::batch::Batch;
use crate::kv_cache::KvCache;

/// One sequence (a request with `n > 1` has several), unique over the life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfig {
    pub max_num_seqs: usize,
    pub max_num_batched_tokens: usize,
    pub max_model_len: usize,
    /// Sequences that may wait; preempted ones do not count.
    pub max_queue_size: usize,
}

/// A sequence as it is handed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSequence {
    pub id: SeqId,
    pub prompt: Vec<u32>,
    /// Lower runs earlier.
    pub priority: i32,
    /// Logits of every prompt position are wanted (`prompt_logprobs`); such a sequence takes no prefix-cache hits.
    pub all_logits: bool,
    /// Keeps this sequence's blocks from being shared with those of another salt.
    pub cache_salt: Option<String>,
    /// How many sequences it will be forked into after its prompt (`n`); needs `n` places among `max_num_seqs`.
    pub num_forks: usize,
}

/// One step: what to compute and whose it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    pub batch: Batch,
    /// In the order of the batch's sequences.
    pub seqs: Vec<ScheduledSeq>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledSeq {
    pub id: SeqId,
    /// Tokens of it in this step.
    pub num_tokens: usize,
    /// Position of the first of them.
    pub start: usize,
    /// Rows of the step's logits that belong to it (empty for a prefill chunk that is not the last).
    pub logits: std::ops::Range<usize>,
    /// The last logits row predicts a new token: the engine samples it.
    pub samples: bool,
}

/// Queues, token budget, admission, preemption.
#[derive(Debug)]
pub struct Scheduler {}

impl Scheduler {
    pub fn new(config: SchedulerConfig, kv_cache: Arc<RwLock<KvCache>>) -> Result<Self> {
        let _ = (config, kv_cache);
        todo!("scheduler")
    }
    /// # Errors
    /// `QueueFull`; `InvalidRequest` for an empty prompt, one that the model length or the whole KV pool cannot hold,
    /// or an id in use.
    pub fn add(&mut self, seq: NewSequence, now: u64) -> Result<()> {
        let _ = (seq, now);
        todo!("scheduler")
    }
    /// Picks the next step's tokens and gives them blocks (preempting where none is left). Empty when nothing can run.
    pub fn schedule(&mut self, now: u64) -> Step {
        let _ = now;
        todo!("scheduler")
    }
    /// The step has run: its tokens are computed, and each sampling sequence is given its token. Sequences finished
    /// meanwhile are passed over.
    pub fn commit(&mut self, step: &Step, sampled: &[(SeqId, u32)], now: u64) -> Result<()> {
        let _ = (step, sampled, now);
        todo!("scheduler")
    }
    /// Makes `child` a copy of `parent` that shares all its blocks and ends in `token` where the parent's first
    /// sampled token stands; called right after the commit of the parent's first sampled token.
    pub fn fork(&mut self, parent: SeqId, child: SeqId, token: u32, now: u64) -> Result<()> {
        let _ = (parent, child, token, now);
        todo!("scheduler")
    }
    /// Ends a sequence in whatever state it is and frees its blocks; `false` when there is none of that id.
    pub fn finish(&mut self, id: SeqId, now: u64) -> bool {
        let _ = (id, now);
        todo!("scheduler")
    }
    pub fn num_waiting(&self) -> usize {
        todo!("scheduler")
    }
    pub fn num_running(&self) -> usize {
        todo!("scheduler")
    }
    pub fn num_preemptions(&self) -> u64 {
        todo!("scheduler")
    }
    pub fn has_work(&self) -> bool {
        todo!("scheduler")
    }
    /// Tokens of a sequence that came from the prefix cache, and how often it was preempted.
    pub fn info(&self, id: SeqId) -> Option<SeqInfo> {
        let _ = id;
        todo!("scheduler")
    }
    /// # Errors
    /// `Error::Internal` naming the broken invariant (of the queues or of the KV cache).
    pub fn check_integrity(&self) -> Result<()> {
        todo!("scheduler")
    }
}

/// Lifetime data of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqInfo {
    pub created_at: u64,
    pub last_access: u64,
    pub access_count: u64,
    pub num_cached_tokens: usize,
    pub num_preemptions: usize,
    pub num_tokens: usize,
    pub num_computed_tokens: usize,
    /// When its first token was scheduled; `None` while it has never run.
    pub scheduled_at: Option<u64>,
}
