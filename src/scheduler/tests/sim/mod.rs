//! The real scheduler and KV cache with a simulated device that only shadows its memory.
//!
//! For each slot of each group, the shadow holds the name of the token prefix whose keys and values would be there. A
//! step writes through `slot_mapping` and reads everything that attention would read through the block tables. Each
//! name that is read must be that of the sequence's own prefix. So sharing, copy-on-write, preemption, windows and
//! deferred frees are proven by what a sequence reads, and not by inspecting the bookkeeping.
//!
//! Some requests have drafts, either from a commit or when their step is launched. A step then writes names of prefixes
//! that include those drafts. So a position with a rejected draft holds a foreign name until it is written again.
//!
//! Recurrent states are shadowed as well: a slot holds the name of the prefix of its state, and a step begins with the
//! slots that it reads. An interrupted step leaves garbage in everything that it would have written.

mod device;
mod draft_model;
mod request;
mod slots;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::RwLock;

use super::harness::num_queued;
use crate::batch::{GroupKind, TO_DRAFT};
use crate::config::{GroupConfig, StateConfig};
use crate::kv_cache::{KvCache, KvCacheConfig};
use crate::sequence::Sequence;
use crate::{Accepted, BesideDecodes, NewSequence, Scheduler, SchedulerConfig, SeqId, Step};

use device::Sampled;
use request::Live;
pub(crate) use request::{Drafter, Request, extras, mix};

#[derive(Debug, Clone)]
pub(crate) struct SimConfig {
    pub(crate) block_size: usize,
    pub(crate) groups: Vec<GroupConfig>,
    pub(crate) states: Option<StateConfig>,
    pub(crate) prefix_caching: bool,
    /// True if requests keep their clients; otherwise all belong to one.
    pub(crate) many_clients: bool,
    pub(crate) max_num_seqs: usize,
    pub(crate) max_num_batched_tokens: usize,
    pub(crate) max_model_len: usize,
    /// `max_num_partial_prefills`, `max_long_partial_prefills`, `long_prefill_token_threshold`.
    pub(crate) partial_prefills: (usize, usize, usize),
    /// Steps that are scheduled before the oldest is committed. All but the oldest have tokens that are not known yet.
    pub(crate) depth: usize,
    /// True if the drafting model has its own keys and values, which no step computes.
    pub(crate) draft_lags: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            block_size: 4,
            groups: vec![GroupConfig { kind: GroupKind::Full, num_blocks: 32 }],
            states: None,
            prefix_caching: true,
            many_clients: true,
            max_num_seqs: 8,
            max_num_batched_tokens: 16,
            max_model_len: 64,
            partial_prefills: (4, 1, 8),
            depth: 1,
            draft_lags: false,
        }
    }
}

pub(crate) struct Sim {
    pub(crate) config: SimConfig,
    pub(crate) kv_cache: Arc<RwLock<KvCache>>,
    pub(crate) scheduler: Scheduler,
    live: BTreeMap<SeqId, Live>,
    /// `[group][slot]`
    shadow: Vec<Vec<u64>>,
    /// The shadow of a draft model's memory, in full-attention groups.
    draft_shadow: Vec<Vec<u64>>,
    /// `[slot]` of states
    slots: Vec<u64>,
    /// The oldest has been launched; the others wait for it.
    in_flight: VecDeque<Step>,
    pub(crate) finished: HashMap<SeqId, Vec<u32>>,
    next_id: u64,
    pub(crate) now: u64,
    pub(crate) num_steps: u64,
    /// `num_accepted[n]` counts the commits that gave a sequence `n` tokens.
    pub(crate) num_accepted: [u64; 9],
    /// Drafts that were wrong, or after an end.
    pub(crate) num_rejected: u64,
    /// Drafts that were computed when their step was launched.
    pub(crate) num_at_launch: u64,
    /// Hit tokens that a draft model had computed, and had not. Then the tokens that it lacked when it drafted, and
    /// those that it computed without draft tokens.
    pub(crate) num_drafted_hits: [u64; 2],
    pub(crate) num_behind: u64,
    pub(crate) num_caught_up: u64,
}

impl Sim {
    pub(crate) fn new(config: SimConfig) -> Self {
        let kv_cache = KvCache::new(KvCacheConfig {
            block_size: config.block_size,
            groups: config.groups.clone(),
            states: config.states,
            enable_prefix_caching: config.prefix_caching,
            hash_key: [3; 32],
        });
        let kv_cache = Arc::new(RwLock::new(kv_cache.unwrap()));
        let (max_num_partial_prefills, max_long_partial_prefills, long_prefill_token_threshold) =
            config.partial_prefills;
        let limits = SchedulerConfig {
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            max_model_len: config.max_model_len,
            context_length: config.max_model_len,
            max_drafts: 1 + config.max_num_batched_tokens / 3,
            max_queue_size: 1000,
            max_num_partial_prefills,
            max_long_partial_prefills,
            long_prefill_token_threshold,
            max_prefill_beside_newcomers: match config.many_clients {
                true => 1 + config.max_num_batched_tokens / 2,
                false => config.max_num_batched_tokens,
            },
            beside_decodes: config
                .many_clients
                .then_some(BesideDecodes { step_micros: 1, min_prefill: 1 + config.max_num_batched_tokens / 2 }),
            draft_lags: config.draft_lags,
        };
        let shadow: Vec<_> = config.groups.iter().map(|group| vec![0; group.num_blocks * config.block_size]).collect();
        Self {
            scheduler: Scheduler::new(limits, Arc::clone(&kv_cache)).unwrap(),
            kv_cache,
            live: BTreeMap::new(),
            draft_shadow: shadow.clone(),
            shadow,
            slots: vec![0; config.states.map_or(0, |states| states.num_slots)],
            in_flight: VecDeque::new(),
            finished: HashMap::new(),
            next_id: 0,
            now: 0,
            num_steps: 0,
            num_accepted: [0; 9],
            num_rejected: 0,
            num_at_launch: 0,
            num_drafted_hits: [0; 2],
            num_behind: 0,
            num_caught_up: 0,
            config,
        }
    }

    fn new_id(&mut self) -> SeqId {
        self.next_id += 1;
        SeqId(self.next_id)
    }

    /// Adds a request; `None` if the scheduler rejects it.
    pub(crate) fn add(&mut self, request: &Request) -> Option<SeqId> {
        let id = self.new_id();
        let new = NewSequence {
            id,
            prompt: request.prompt.as_slice().into(),
            max_tokens: request.max_tokens,
            priority: request.priority,
            client: request.client.filter(|_| self.config.many_clients).map(|client| client.to_string().into()),
            all_logits: request.all_logits,
            cache_salt: request.salt.map(|salt| salt.to_string()),
            will_fork: request.n > 1,
            extras: request.extras.clone(),
        };
        let limits = &self.scheduler.config;
        limits.check_length(new.prompt.len(), new.max_tokens, &self.kv_cache.read()).ok()?;
        limits.check_queue(num_queued(&self.scheduler)).ok()?;
        new.extras.images.as_ref().map_or(Ok(()), |images| limits.check_images(images)).ok()?;
        self.scheduler.add(new, self.now).unwrap();
        self.live.insert(id, Live::new(request.clone()));
        Some(id)
    }

    /// Ends the `k`-th live sequence, if any.
    pub(crate) fn cancel(&mut self, k: usize) {
        if let Some(id) = self.live.keys().nth(k % self.live.len().max(1)).copied() {
            self.live.remove(&id);
            assert!(self.scheduler.finish(id, self.now));
            assert!(!self.scheduler.finish(id, self.now), "a second end is nothing");
        }
    }

    /// Schedules a step. Commits the oldest once `depth` steps are in flight or nothing more can be scheduled.
    pub(crate) fn step(&mut self) {
        self.now += 1000;
        let (first, preemptions) = (self.first_prompt(), self.scheduler.num_preemptions);
        let is_waiting = |id: &&SeqId| self.scheduler.sequences[self.scheduler.slots[*id]].blocks.is_empty();
        let waiting: Vec<SeqId> = self.live.keys().filter(is_waiting).copied().collect();
        let step = self.scheduler.schedule(self.now).unwrap();
        self.count_drafted_hits(&step, &waiting);
        if self.in_flight.is_empty() {
            let preempted = (self.scheduler.num_preemptions - preemptions) as usize;
            // A preempted sequence's tokens are refunded to its client, which changes the order if there are several.
            let first = first.filter(|_| preempted == 0 || !self.config.many_clients);
            self.check_shares(&step, first, preempted);
        }
        let is_empty = step.seqs.is_empty();
        if !is_empty {
            self.num_steps += 1;
            self.check_shape(&step);
            self.in_flight.push_back(step);
            if self.in_flight.len() == 1 {
                self.launch();
            }
        }
        assert!(
            !is_empty || !self.in_flight.is_empty() || !self.scheduler.has_work(),
            "nothing runs although there is work"
        );
        if self.in_flight.len() >= self.config.depth || is_empty {
            self.complete_oldest();
        }
    }

    /// Returns the first running prompt in the order, and its number of tokens to compute.
    fn first_prompt(&self) -> Option<(SeqId, usize)> {
        let running = self.scheduler.running.iter().map(|&(_, slot)| &self.scheduler.sequences[slot]);
        let decodes = |flow| running.clone().filter(|seq| seq.flow == flow && seq.num_pending() == 1).count() as u64;
        let prompts = running.clone().filter(|seq| seq.num_pending() > 1);
        let served = |seq: &Sequence| self.scheduler.flows.get(seq.flow).served + decodes(seq.flow);
        let prompt = prompts.min_by_key(|seq| (seq.key.priority, served(seq), seq.key));
        prompt.map(|seq| (seq.id, seq.num_pending()))
    }

    /// Asserts that nothing starves. The first prompt gets half of what earlier decodes and prompts leave of the step,
    /// or all that it needs. (The token of a decode that is preempted for its blocks is freed only after that.) Asserts
    /// the limits of partial prefills, too.
    fn check_shares(&self, step: &Step, first: Option<(SeqId, usize)>, preempted: usize) {
        let (max_partial, max_long, threshold) = self.config.partial_prefills;
        let (mut partial, mut long) = (0, 0);
        let mut left = self.config.max_num_batched_tokens;
        // Prompts of one token look like decodes, so this is the least that prompts may still get.
        let config = &self.scheduler.config;
        let is_quiet = self.now >= self.scheduler.newcomers_until;
        let beside_newcomers = if is_quiet { usize::MAX } else { config.max_prefill_beside_newcomers };
        let beside_decodes = config.beside_decodes.map_or(usize::MAX, |beside| beside.min_prefill);
        let mut left_beside_others = beside_newcomers.min(beside_decodes);
        for scheduled in &step.seqs {
            let seq = &self.scheduler.sequences[self.scheduler.slots[&scheduled.id]];
            if first.is_some_and(|(id, _)| id == scheduled.id) {
                let pending = first.map_or(0, |(_, pending)| pending);
                let of_prompts = left.min(left_beside_others).saturating_sub(preempted);
                // A step may end before an image.
                let least = seq.uncut(scheduled.start, pending.min(of_prompts.div_ceil(2)));
                assert!(
                    scheduled.num_tokens >= least,
                    "{scheduled:?} of {pending}, {left} left, {preempted} preempted"
                );
            }
            // Drafts only get what is left.
            let taken = scheduled.num_tokens - scheduled.num_drafts();
            left -= taken;
            left_beside_others = left_beside_others.saturating_sub(taken);
            let pending = seq.tokens.len().saturating_sub(seq.num_scheduled);
            if pending > 0 {
                partial += 1;
                long += usize::from(pending + scheduled.num_tokens > threshold);
            }
        }
        assert!(partial <= max_partial && long <= max_long, "{partial} prompts are left half-way, {long} long ones");
    }

    fn complete_oldest(&mut self) {
        let Some(step) = self.in_flight.pop_front() else { return };
        let sampled = self.forward(&step);
        let drafts: Vec<Vec<u32>> = sampled.iter().map(|s| self.live[&s.id].known_drafts(&s.drafts)).collect();
        let accepted = sampled.iter().zip(&drafts).map(|(s, drafts)| (s.id, Accepted { tokens: &s.tokens, drafts }));
        self.scheduler.commit(&step, accepted, self.now).unwrap();
        self.check_computed(&step, &sampled);
        for sampled in sampled {
            self.deliver(sampled);
        }
        self.launch_next();
    }

    /// Checks that everything that the step computed counts, except rejected drafts, which no longer hold blocks.
    fn check_computed(&self, step: &Step, sampled: &[Sampled]) {
        for scheduled in &step.seqs {
            let Some(live) = self.live.get(&scheduled.id) else { continue };
            let accepted = sampled.iter().find(|sampled| sampled.id == scheduled.id);
            let end = scheduled.start + scheduled.num_tokens;
            let computed = accepted.map_or(end, |accepted| live.tokens.len() + accepted.tokens.len() - 1);
            let seq = &self.scheduler.sequences[self.scheduler.slots[&scheduled.id]];
            assert_eq!(seq.num_computed, computed, "{scheduled:?}");
            if end > live.tokens.len() {
                for g in 0..self.config.groups.len() {
                    assert_eq!(seq.blocks.table(g).len(), computed.div_ceil(self.config.block_size), "{scheduled:?}");
                }
            }
        }
    }

    /// Launches the oldest step, with the drafts that are computed only for it.
    fn launch(&mut self) {
        self.plan_drafts();
        let Some(step) = self.in_flight.front_mut() else { return };
        for (s, scheduled) in step.seqs.iter().enumerate() {
            let (end, count) = (step.batch.tokens_of(s).end, scheduled.num_drafts());
            let known = self.live.get(&scheduled.id).map_or(&[][..], |live| &live.drafts);
            for (place, token) in step.batch.token_ids[end - count..end].iter_mut().enumerate() {
                if *token == TO_DRAFT {
                    *token = known.get(place).copied().unwrap_or(0);
                    self.num_at_launch += 1;
                }
            }
        }
        self.scheduler.note_drafts(step);
        self.write_drafts();
    }

    fn launch_next(&mut self) {
        while let Some(step) = self.in_flight.pop_front() {
            let step = self.scheduler.complete(step, self.now).unwrap();
            if !step.seqs.is_empty() {
                self.check_shape(&step);
                self.in_flight.push_front(step);
                return self.launch();
            }
        }
    }

    /// Withdraws the newest step, unless it runs.
    pub(crate) fn withdraw_newest(&mut self) {
        if self.in_flight.len() > 1
            && let Some(step) = self.in_flight.pop_back()
        {
            self.scheduler.withdraw(&step).unwrap();
        }
    }

    /// Interrupts the running step, and withdraws those that wait for it.
    pub(crate) fn interrupt(&mut self) {
        while let Some(step) = self.in_flight.pop_back() {
            if self.in_flight.is_empty() {
                self.spoil(&step);
            }
            self.scheduler.withdraw(&step).unwrap();
        }
    }

    /// Fails the newest step, so its sequences end.
    pub(crate) fn fail_newest(&mut self) {
        let Some(step) = self.in_flight.pop_back() else { return };
        self.scheduler.discard(&step, self.now).unwrap();
        for seq in &step.seqs {
            self.live.remove(&seq.id);
            assert!(self.scheduler.info(seq.id).is_none());
        }
    }

    /// Gives a sequence its tokens. Its first token creates the forks, whose first tokens come from the same logits.
    fn deliver(&mut self, Sampled { id, tokens, drafts }: Sampled) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let parent = live.clone();
        tokens.into_iter().for_each(|token| live.push(token));
        live.drafts = drafts;
        let mut due = vec![(id, live.clone())];
        if parent.tokens.len() == parent.request.prompt.len() {
            for index in 1..parent.request.n {
                let child = self.new_id();
                let mut live = Live { index, ..parent.clone() };
                live.push(live.next_token());
                self.scheduler.fork(id, child, *live.tokens.last().unwrap(), self.now).unwrap();
                self.live.insert(child, live.clone());
                due.push((child, live));
            }
        }
        for (id, live) in due {
            let request = &live.request;
            if live.is_end(self.config.max_model_len) {
                assert_eq!(live.tokens, request.alone(live.index, self.config.max_model_len), "{id:?} of {request:?}");
                assert_eq!(live.logits_seen, if request.all_logits { request.prompt.len() } else { 0 });
                self.live.remove(&id);
                self.finished.insert(id, live.tokens);
                assert!(self.scheduler.finish(id, self.now));
            }
        }
    }

    pub(crate) fn check(&self) {
        self.scheduler.check_integrity().unwrap();
        self.check_contents();
    }

    /// Runs until nothing is left, and checks that.
    pub(crate) fn drain(&mut self) {
        let mut steps_left = 100_000;
        while self.scheduler.has_work() || !self.in_flight.is_empty() {
            self.step();
            steps_left -= 1;
            assert!(steps_left > 0, "it does not come to an end");
        }
        self.check();
        assert!(self.live.is_empty());
        let stats = self.kv_cache.read().stats();
        assert_eq!(stats.blocks_owned, 0);
        assert_eq!(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
        assert_eq!(stats.state_slots_free + stats.state_slots_cached, stats.state_slots_total);
    }

    pub(crate) fn num_live(&self) -> usize {
        self.live.len()
    }
}
