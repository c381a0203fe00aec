//! Decides which tokens run in the next step, with integers only. The caller supplies the time as a `u64` of
//! microseconds, so that millions of steps can run under a virtual clock.
//!
//! Scheduling is by tokens, not by phase: a step gives each sequence up to its share of `max_num_batched_tokens`. A
//! sequence waits (without blocks) or runs (with blocks).
//!
//! - `pick` and `prompts` choose the sequences that run.
//! - `flows` decides whose turn it is among clients.
//! - `yields` decides which steps new requests need not wait for.
//! - `places` decides which sequence gives up its slot.
//! - `step` builds the batch and `commit` takes the results.
//! - `fork` makes several sequences of one.
//! - `snapshots` decides which recurrent states are saved.
//! - `draft_model` tracks the tokens that a drafting model has yet to compute.
//!
//! Start with `Scheduler` here, then `pick`. Of the workspace, this crate knows the KV cache and the integers of
//! `rocmforge_core`: no tensor, no device, no clock.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr))]

mod admission;
mod flows;
mod fork;
mod integrity;
mod pick;
mod places;
mod prompts;
mod reason;
mod sequence;
mod snapshots;
mod step;
#[cfg(test)]
mod tests;
mod yields;

// The crates below, by the names that the files of this one use.
#[cfg(test)]
use rocmforge_core::config;
use rocmforge_core::{Error, Result, batch, images};
use rocmforge_kv_cache as kv_cache;

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::RwLock;
use slab::Slab;

pub use reason::WaitingReason;
pub use sequence::SeqInfo;
pub use step::commit::Accepted;
pub use step::{ScheduledSeq, Step};
pub use yields::{BesideDecodes, Yields};

use flows::Flows;
use prompts::Refusal;
use sequence::{Key, Sequence, State};
use step::commit::InFlight;
use yields::StepTime;

use crate::batch::SeqExtras;
use crate::kv_cache::KvCache;

/// The number of steps whose tokens an occasional client may get ahead of clients that always have requests.
const CREDIT_STEPS: u64 = 2;

/// Identifies one sequence (a request with `n > 1` has several); unique over the life of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfig {
    pub max_num_seqs: usize,
    /// At least `max_num_seqs`, so that every running sequence advances in every step.
    pub max_num_batched_tokens: usize,
    /// The most drafts of a step. Each needs a row of logits besides the one of its sequence.
    pub max_drafts: usize,
    pub max_model_len: usize,
    /// The length that the model was made for, up to which `max_model_len` could be raised.
    pub context_length: usize,
    /// The most waiting sequences; preempted ones and forks do not count.
    pub max_queue_size: usize,
    /// The most prompts that a step may leave partially computed.
    pub max_num_partial_prefills: usize,
    /// The most long prompts among the `max_num_partial_prefills`.
    pub max_long_partial_prefills: usize,
    /// A prompt is long while it has more than this number of tokens to compute.
    pub long_prefill_token_threshold: usize,
    /// The most prompt tokens per step of clients without credit, while occasional clients arrive (`yields`).
    pub max_prefill_beside_newcomers: usize,
    /// Limits of a step with prompts in which other clients decode. `None` if steps are short anyway.
    pub beside_decodes: Option<BesideDecodes>,
    /// True if a draft model proposes the draft tokens. The steps do not compute it, so it may lack tokens.
    pub draft_lags: bool,
}

/// A sequence to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSequence {
    pub id: SeqId,
    pub prompt: Arc<[u32]>,
    /// Maximum tokens that it may generate; the model's length is a limit as well.
    pub max_tokens: usize,
    /// Sequences with lower values run earlier.
    pub priority: i32,
    /// Clients of one priority share the steps. Sequences without a client form one client of their own.
    pub client: Option<Arc<str>>,
    /// True if logits of every prompt position are needed (`prompt_logprobs`). Such a sequence takes no prefix-cache
    /// hits.
    pub all_logits: bool,
    /// Sequences share blocks only with those of the same salt.
    pub cache_salt: Option<String>,
    /// True if it will fork with its first token, so that no later token is scheduled ahead.
    pub will_fork: bool,
    pub extras: SeqExtras,
}

/// Queues, token budget, admission, fair shares, preemption.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    kv_cache: Arc<RwLock<KvCache>>,
    sequences: Slab<Sequence>,
    slots: HashMap<SeqId, usize>,
    /// Keys and slots of the running sequences, in scheduling order.
    running: Vec<(Key, usize)>,
    /// The waiting sequences by client, and the service of each client.
    flows: Flows,
    in_flight: VecDeque<InFlight>,
    num_preemptions: u64,
    /// Blocks of each group that must stay free when a sequence is admitted next to others.
    watermark: Vec<usize>,
    /// The last admission that failed for lack of blocks.
    refused: Option<Refusal>,
    /// The reason why the first waiting sequence was not admitted in the last step.
    held_back: WaitingReason,
    /// The time until which another occasional client is expected.
    newcomers_until: u64,
    /// The last step with prompts, and the time at which the last step ended.
    prefill_time: Option<StepTime>,
    last_end: u64,
    next_serial: u64,
    last_step: u64,
}

impl Scheduler {
    /// # Errors
    /// `InvalidRequest` for limits of zero or limits that contradict each other.
    pub fn new(config: SchedulerConfig, kv_cache: Arc<RwLock<KvCache>>) -> Result<Self> {
        for (name, value) in [
            ("max_num_seqs", config.max_num_seqs),
            ("max_drafts", config.max_drafts),
            ("max_model_len", config.max_model_len),
            ("max_queue_size", config.max_queue_size),
            ("max_num_partial_prefills", config.max_num_partial_prefills),
            ("max_long_partial_prefills", config.max_long_partial_prefills),
            ("long_prefill_token_threshold", config.long_prefill_token_threshold),
            ("max_prefill_beside_newcomers", config.max_prefill_beside_newcomers),
        ] {
            if value == 0 {
                return Err(Error::invalid(name, 0, "at least 1"));
            }
        }
        if config.max_num_batched_tokens < config.max_num_seqs {
            let expected = format!("at least max_num_seqs, which is {}", config.max_num_seqs);
            return Err(Error::invalid("max_num_batched_tokens", config.max_num_batched_tokens, expected));
        }
        if u32::try_from(config.max_model_len).is_err() {
            return Err(Error::invalid("max_model_len", config.max_model_len, "less than 2^32"));
        }
        let watermark = kv_cache.read().config().groups.iter().map(|group| group.num_blocks.div_ceil(100)).collect();
        let credit = CREDIT_STEPS.saturating_mul(config.max_num_batched_tokens as u64);
        Ok(Self {
            config,
            kv_cache,
            sequences: Slab::new(),
            slots: HashMap::new(),
            running: Vec::new(),
            flows: Flows::new(credit),
            in_flight: VecDeque::new(),
            num_preemptions: 0,
            watermark,
            refused: None,
            held_back: WaitingReason::default(),
            newcomers_until: 0,
            prefill_time: None,
            last_end: 0,
            next_serial: 0,
            last_step: 0,
        })
    }

    /// Adds a sequence that has passed `SchedulerConfig::check_length`. The caller counts the queue and calls
    /// `check_queue`.
    ///
    /// # Errors
    /// `Internal` for a length that could never run, or an id in use.
    pub fn add(&mut self, seq: NewSequence, now: u64) -> Result<()> {
        if self.slots.contains_key(&seq.id) {
            return Err(Error::internal(format!("{:?} is added a second time", seq.id)));
        }
        let unchecked = |error: Error| Error::internal(format!("{:?} was not checked: {error}", seq.id));
        let kv = self.kv_cache.read();
        let max_len = self.config.check_length(seq.prompt.len(), seq.max_tokens, &kv).map_err(unchecked)?;
        let cached = (kv.new_sequence(), kv.new_chain(seq.cache_salt.as_deref(), seq.extras.clone()));
        drop(kv);
        let serial = self.take_serial();
        let key = Key { priority: seq.priority, arrival: serial, serial };
        let id = seq.id;
        let flow = self.flows.join(seq.priority, seq.client.clone());
        let slot = self.sequences.insert(Sequence::new(seq, key, flow, max_len, cached, self.last_step, now));
        self.slots.insert(id, slot);
        self.flows.wait(flow, key, slot);
        self.note_newcomer(flow, now);
        Ok(())
    }

    /// Picks the next step's tokens and gives them blocks, preempting sequences if no block is left. The step is empty
    /// if nothing can run.
    ///
    /// Every non-empty step must be returned to `commit`, `discard` or `withdraw`. Until then no block that it writes
    /// is reused, not even those of sequences that end meanwhile.
    ///
    /// While other steps are in flight, sequences continue with the tokens that those will sample. Such a step must be
    /// `complete`d before it runs. It is empty if a sequence might have to be preempted for it.
    ///
    /// # Errors
    /// `Internal` if an invariant is broken.
    pub fn schedule(&mut self, now: u64) -> Result<Step> {
        let kv = Arc::clone(&self.kv_cache);
        let mut kv = kv.write();
        kv.tick(now);
        let has_room =
            || kv.has_available(&self.most_blocks(kv.config(), 1)) && kv.slots_available() >= self.slots_lacking(&kv);
        if !self.in_flight.is_empty() && (!has_room() || self.wants_place()) {
            return Ok(Step::default());
        }
        let picks = self.pick(&mut kv, now)?;
        if picks.entries.is_empty() {
            return Ok(Step::default());
        }
        self.last_step += 1;
        self.in_flight.push_back(InFlight { id: self.last_step, scheduled: now, held: Vec::new() });
        self.build_step(self.last_step, picks, &mut kv)
    }

    /// Ends a sequence in any state and frees its blocks; `false` if the id is unknown. Blocks that a step in flight
    /// may still write to are freed when that step is committed or discarded.
    pub fn finish(&mut self, id: SeqId, now: u64) -> bool {
        let Some(slot) = self.slots.remove(&id) else { return false };
        let seq = self.sequences.remove(slot);
        match seq.state {
            State::Waiting => self.flows.stop_waiting(seq.flow, seq.key),
            State::Running => self.remove_running(seq.key),
        }
        self.flows.leave(seq.flow);
        match self.in_flight.back_mut() {
            Some(newest) if seq.in_flight > 0 => newest.held.push(seq.blocks),
            _ => drop(seq.blocks),
        }
        self.kv_cache.write().tick(now);
        true
    }

    /// Forgets the steps in flight and frees the blocks that they held. The caller runs no further step.
    pub fn abandon_steps(&mut self, now: u64) {
        self.in_flight.clear();
        self.kv_cache.write().tick(now);
    }

    pub fn num_waiting(&self) -> usize {
        self.flows.num_waiting()
    }

    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    pub fn num_preemptions(&self) -> u64 {
        self.num_preemptions
    }

    /// Returns the oldest step in flight.
    pub fn oldest_step(&self) -> Option<u64> {
        self.in_flight.front().map(|step| step.id)
    }

    /// Returns the newest step in flight. The blocks of sequences that end now are free at the latest when this step
    /// has ended.
    pub fn newest_step(&self) -> Option<u64> {
        self.in_flight.back().map(|step| step.id)
    }

    /// True if any sequence waits or runs.
    pub fn has_work(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Returns lifetime data of a sequence that waits or runs.
    pub fn info(&self, id: SeqId) -> Option<SeqInfo> {
        self.slots.get(&id).map(|slot| self.sequences[*slot].info())
    }

    fn take_serial(&mut self) -> u64 {
        self.next_serial += 1;
        self.next_serial
    }

    fn insert_running(&mut self, key: Key, slot: usize) {
        let at = self.running.partition_point(|(other, _)| *other < key);
        self.running.insert(at, (key, slot));
    }

    fn remove_running(&mut self, key: Key) {
        if let Ok(at) = self.running.binary_search_by_key(&key, |(key, _)| *key) {
            self.running.remove(at);
        }
    }
}

impl Drop for Scheduler {
    /// Returns all blocks to the cache, even after a panic, so that readers of the cache see no owned blocks.
    fn drop(&mut self) {
        self.sequences.clear();
        self.in_flight.clear();
        self.kv_cache.write().tick(0);
    }
}
