//! The real scheduler and KV cache with a device that is only a shadow of its memory.
//!
//! The shadow holds, for each slot of each group, the name of the token prefix whose K and V would be there. A step
//! writes through `slot_mapping` and reads through the block tables, everything that attention would read, and what is
//! read must be the name of the sequence's own prefix. So sharing, copy-on-write, preemption, windows and deferred
//! frees are proven by what a sequence reads, not by looking at the bookkeeping.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::RwLock;

use crate::batch::{Batch, GroupKind, NULL_BLOCK};
use crate::config::GroupConfig;
use crate::kv_cache::{KvCache, KvCacheConfig};
use crate::scheduler::{NewSequence, Scheduler, SchedulerConfig, SeqId, Step};

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(b).wrapping_add(0xD1B5_4A32_D192_ED03);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A request as the simulator's user sees it.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_tokens: usize,
    pub(crate) priority: i32,
    pub(crate) salt: Option<u8>,
    pub(crate) all_logits: bool,
    pub(crate) n: usize,
    /// Stands for the sampler's seed.
    pub(crate) seed: u64,
}

impl Request {
    pub(crate) fn new(prompt: Vec<u32>, max_tokens: usize) -> Self {
        Self { prompt, max_tokens, priority: 0, salt: None, all_logits: false, n: 1, seed: 7 }
    }

    fn seed_of(&self, index: usize) -> u64 {
        mix(self.seed, index as u64)
    }

    /// What sequence `index` of it generates: the definition, without any cache or batch.
    pub(crate) fn alone(&self, index: usize, max_model_len: usize) -> Vec<u32> {
        let mut tokens = self.prompt.clone();
        let mut name = self.prompt.iter().fold(root_name(self.salt), |name, token| mix(name, u64::from(*token)));
        loop {
            let token = next_token(name, self.seed_of(index));
            tokens.push(token);
            name = mix(name, u64::from(token));
            if is_end(&tokens, self.prompt.len(), self.max_tokens, max_model_len) {
                return tokens;
            }
        }
    }
}

fn root_name(salt: Option<u8>) -> u64 {
    salt.map_or(1, |salt| mix(2, u64::from(salt)))
}

/// The device's model: the next token depends on the whole prefix and on the sampler's seed. Few tokens, so that
/// sequences fall together and share.
fn next_token(prefix_name: u64, seed: u64) -> u32 {
    (mix(prefix_name, seed) % 31) as u32
}

fn is_end(tokens: &[u32], prompt_len: usize, max_tokens: usize, max_model_len: usize) -> bool {
    tokens.last() == Some(&0) || tokens.len() >= (prompt_len + max_tokens).min(max_model_len)
}

/// A live sequence, as the engine would know it.
#[derive(Debug, Clone)]
struct Live {
    request: Request,
    index: usize,
    tokens: Vec<u32>,
    /// Name of the prefix that ends with each token.
    names: Vec<u64>,
    /// Prompt positions whose logits came.
    logits_seen: usize,
}

impl Live {
    fn push(&mut self, token: u32) {
        let before = self.names.last().copied().unwrap_or_else(|| root_name(self.request.salt));
        self.tokens.push(token);
        self.names.push(mix(before, u64::from(token)));
    }
}

#[derive(Debug, Clone)]
pub(crate) struct SimConfig {
    pub(crate) block_size: usize,
    pub(crate) groups: Vec<GroupConfig>,
    pub(crate) prefix_caching: bool,
    pub(crate) max_num_seqs: usize,
    pub(crate) max_num_batched_tokens: usize,
    pub(crate) max_model_len: usize,
    /// `max_num_partial_prefills`, `max_long_partial_prefills`, `long_prefill_token_threshold`.
    pub(crate) partial_prefills: (usize, usize, usize),
    /// Steps that are scheduled before the oldest is committed; all but the oldest with tokens that are not known yet.
    pub(crate) depth: usize,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            block_size: 4,
            groups: vec![GroupConfig { kind: GroupKind::Full, num_blocks: 32 }],
            prefix_caching: true,
            max_num_seqs: 8,
            max_num_batched_tokens: 16,
            max_model_len: 64,
            partial_prefills: (4, 1, 8),
            depth: 1,
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
    /// The oldest has been launched, the others wait for it.
    in_flight: VecDeque<Step>,
    pub(crate) finished: HashMap<SeqId, Vec<u32>>,
    next_id: u64,
    pub(crate) now: u64,
    pub(crate) num_steps: u64,
}

impl Sim {
    pub(crate) fn new(config: SimConfig) -> Self {
        let kv_cache = KvCache::new(KvCacheConfig {
            block_size: config.block_size,
            groups: config.groups.clone(),
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
            max_prompt_logits: 1 + config.max_num_batched_tokens / 3,
            max_queue_size: 1000,
            max_num_partial_prefills,
            max_long_partial_prefills,
            long_prefill_token_threshold,
        };
        Self {
            scheduler: Scheduler::new(limits, Arc::clone(&kv_cache)).unwrap(),
            kv_cache,
            live: BTreeMap::new(),
            shadow: config.groups.iter().map(|group| vec![0; group.num_blocks * config.block_size]).collect(),
            in_flight: VecDeque::new(),
            finished: HashMap::new(),
            next_id: 0,
            now: 0,
            num_steps: 0,
            config,
        }
    }

    fn new_id(&mut self) -> SeqId {
        self.next_id += 1;
        SeqId(self.next_id)
    }

    /// `None` when the scheduler refuses it.
    pub(crate) fn add(&mut self, request: &Request) -> Option<SeqId> {
        let id = self.new_id();
        let new = NewSequence {
            id,
            prompt: request.prompt.as_slice().into(),
            max_tokens: request.max_tokens,
            priority: request.priority,
            all_logits: request.all_logits,
            cache_salt: request.salt.map(|salt| salt.to_string()),
            will_fork: request.n > 1,
        };
        let limits = &self.scheduler.config;
        limits.check_length(new.prompt.len(), new.max_tokens, &self.kv_cache.read()).ok()?;
        limits.check_queue(self.scheduler.num_never_ran).ok()?;
        self.scheduler.add(new, self.now).unwrap();
        let mut live = Live { request: request.clone(), index: 0, tokens: vec![], names: vec![], logits_seen: 0 };
        request.prompt.iter().for_each(|token| live.push(*token));
        self.live.insert(id, live);
        Some(id)
    }

    /// Ends the `k`-th live sequence, if there is any.
    pub(crate) fn cancel(&mut self, k: usize) {
        if let Some(id) = self.live.keys().nth(k % self.live.len().max(1)).copied() {
            self.live.remove(&id);
            assert!(self.scheduler.finish(id, self.now));
            assert!(!self.scheduler.finish(id, self.now), "a second end is nothing");
        }
    }

    /// Schedules a step; commits the oldest when as many as `depth` are in flight or nothing more can be scheduled.
    pub(crate) fn step(&mut self) {
        self.now += 1000;
        let (first, preemptions) = (self.first_prompt(), self.scheduler.num_preemptions);
        let step = self.scheduler.schedule(self.now).unwrap();
        if self.in_flight.is_empty() {
            self.check_shares(&step, first, (self.scheduler.num_preemptions - preemptions) as usize);
        }
        let is_empty = step.seqs.is_empty();
        if !is_empty {
            self.num_steps += 1;
            self.check_shape(&step);
            self.in_flight.push_back(step);
        }
        assert!(
            !is_empty || !self.in_flight.is_empty() || !self.scheduler.has_work(),
            "nothing runs although there is work"
        );
        if self.in_flight.len() >= self.config.depth || is_empty {
            self.complete_oldest();
        }
    }

    /// The first in the order of the prompts under way, and the tokens that it has to compute.
    fn first_prompt(&self) -> Option<(SeqId, usize)> {
        let running = self.scheduler.running.iter().map(|&(_, slot)| &self.scheduler.sequences[slot]);
        let prompt = running.filter(|seq| !seq.wants_prompt_logits()).find(|seq| seq.num_pending() > 1);
        prompt.map(|seq| (seq.id, seq.num_pending()))
    }

    /// Nothing starves: the first prompt gets half of what decodes and those before it leave of the step, or all that
    /// it needs; the one token of a decode that is preempted for the sake of its blocks comes back after that was
    /// shared out. And the limits of partial prefills hold.
    fn check_shares(&self, step: &Step, first: Option<(SeqId, usize)>, preempted: usize) {
        let (max_partial, max_long, threshold) = self.config.partial_prefills;
        let (mut partial, mut long) = (0, 0);
        let mut left = self.config.max_num_batched_tokens;
        for scheduled in &step.seqs {
            let seq = &self.scheduler.sequences[self.scheduler.slots[&scheduled.id]];
            if first.is_some_and(|(id, _)| id == scheduled.id) {
                let pending = first.map_or(0, |(_, pending)| pending);
                assert!(
                    scheduled.num_tokens >= pending.min(left.saturating_sub(preempted).div_ceil(2)),
                    "{scheduled:?} of {pending}, {left} left, {preempted} preempted"
                );
            }
            left -= scheduled.num_tokens;
            let pending = seq.tokens.len() - seq.num_scheduled;
            if pending > 0 && !seq.wants_prompt_logits() {
                partial += 1;
                long += usize::from(pending + scheduled.num_tokens > threshold);
            }
        }
        assert!(partial <= max_partial && long <= max_long, "{partial} prompts are left half-way, {long} long ones");
    }

    fn complete_oldest(&mut self) {
        let Some(step) = self.in_flight.pop_front() else { return };
        let sampled = self.forward(&step);
        self.scheduler.commit(&step, &sampled, self.now).unwrap();
        for (id, token) in sampled {
            self.deliver(id, token);
        }
        self.launch_next();
    }

    fn launch_next(&mut self) {
        while let Some(step) = self.in_flight.pop_front() {
            let step = self.scheduler.complete(step, self.now).unwrap();
            if !step.seqs.is_empty() {
                self.check_shape(&step);
                return self.in_flight.push_front(step);
            }
        }
    }

    /// The newest step is taken back, unless it runs.
    pub(crate) fn withdraw_newest(&mut self) {
        if self.in_flight.len() > 1
            && let Some(step) = self.in_flight.pop_back()
        {
            self.scheduler.withdraw(&step).unwrap();
        }
    }

    /// The newest step fails: its sequences end.
    pub(crate) fn fail_newest(&mut self) {
        let Some(step) = self.in_flight.pop_back() else { return };
        self.scheduler.discard(&step, self.now).unwrap();
        for seq in &step.seqs {
            self.live.remove(&seq.id);
            assert!(self.scheduler.info(seq.id).is_none());
        }
    }

    /// Gives a sequence its token; its first one makes the forks, whose first tokens come from the same logits.
    fn deliver(&mut self, id: SeqId, token: u32) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let parent = live.clone();
        live.push(token);
        let mut due = vec![(id, live.clone())];
        if parent.tokens.len() == parent.request.prompt.len() {
            for index in 1..parent.request.n {
                let child = self.new_id();
                let mut live = Live { index, ..parent.clone() };
                let name = *parent.names.last().unwrap();
                live.push(next_token(name, parent.request.seed_of(index)));
                self.scheduler.fork(id, child, *live.tokens.last().unwrap(), self.now).unwrap();
                self.live.insert(child, live.clone());
                due.push((child, live));
            }
        }
        for (id, live) in due {
            let request = &live.request;
            if is_end(&live.tokens, request.prompt.len(), request.max_tokens, self.config.max_model_len) {
                assert_eq!(live.tokens, request.alone(live.index, self.config.max_model_len), "{id:?} of {request:?}");
                assert_eq!(live.logits_seen, if request.all_logits { request.prompt.len() } else { 0 });
                self.live.remove(&id);
                self.finished.insert(id, live.tokens);
                assert!(self.scheduler.finish(id, self.now));
            }
        }
    }

    fn forward(&mut self, step: &Step) -> Vec<(SeqId, u32)> {
        let (batch, bs) = (&step.batch, self.config.block_size);
        for copy in &batch.block_copies {
            let src = copy.src as usize * bs;
            self.shadow[copy.group as usize].copy_within(src..src + bs, copy.dst as usize * bs);
        }
        // All writes, then all reads: the order in which sequences are computed must not matter.
        for (g, tables) in batch.groups.iter().enumerate() {
            for (s, seq) in step.seqs.iter().enumerate() {
                for t in batch.tokens_of(s) {
                    let position = batch.positions[t] as usize;
                    let Some(live) = self.live.get(&seq.id) else { continue };
                    assert_eq!(batch.token_ids[t], live.tokens[position], "input token of {:?}", seq.id);
                    self.shadow[g][tables.slot_mapping[t] as usize] = live.names[position];
                }
            }
        }
        let mut sampled = Vec::new();
        for (s, seq) in step.seqs.iter().enumerate() {
            // Sequences that ended meanwhile are computed for nothing.
            let Some(live) = self.live.get_mut(&seq.id) else { continue };
            for g in 0..batch.groups.len() {
                let read = attend(batch, g, s, self.config.groups[g].kind, &self.shadow[g], bs);
                for (position, name) in read {
                    assert_eq!(name, live.names[position], "{:?} read foreign K/V at {position}, group {g}", seq.id);
                }
            }
            if live.request.all_logits && live.logits_seen < live.request.prompt.len() {
                // A preempted prompt is computed again, but each position's logits come once and without a gap.
                let end = seq.start + seq.num_tokens;
                assert!(live.logits_seen >= seq.start);
                assert_eq!(seq.logits.len(), end.saturating_sub(live.logits_seen), "{seq:?}");
                live.logits_seen = live.logits_seen.max(end);
            }
            if seq.samples {
                sampled.push((seq.id, next_token(*live.names.last().unwrap(), live.request.seed_of(live.index))));
            }
        }
        sampled
    }

    /// The batch's arrays agree with each other, and nothing is written that is not this sequence's alone.
    fn check_shape(&self, step: &Step) {
        let batch = &step.batch;
        let n = batch.num_tokens();
        assert!(n <= self.config.max_num_batched_tokens);
        assert_eq!(batch.positions.len(), n);
        assert_eq!((batch.cu_seqlens_q.len(), batch.cu_seqlens_q[0]), (step.seqs.len() + 1, 0));
        let rows: Vec<usize> = step.seqs.iter().flat_map(|seq| seq.logits.clone()).collect();
        assert_eq!(rows, (0..batch.logits_indices.len()).collect::<Vec<_>>());
        assert!(batch.logits_indices.is_sorted_by(|a, b| a < b));
        for (s, seq) in step.seqs.iter().enumerate() {
            let tokens = batch.tokens_of(s);
            assert_eq!(tokens.len(), seq.num_tokens);
            assert_eq!(batch.context_lens[s] as usize, seq.start + seq.num_tokens);
            let rows = seq.logits.clone().map(|row| batch.logits_indices[row] as usize);
            assert!(rows.eq(tokens.end - seq.logits.len()..tokens.end));
            assert!(!seq.samples || !seq.logits.is_empty());
        }
        for (g, tables) in batch.groups.iter().enumerate() {
            let mut written = HashMap::new();
            for other in &self.in_flight {
                for (s, seq) in other.seqs.iter().enumerate() {
                    for t in other.batch.tokens_of(s) {
                        written.insert(other.batch.groups[g].slot_mapping[t], seq.id);
                    }
                }
            }
            for (s, seq) in step.seqs.iter().enumerate() {
                for t in batch.tokens_of(s) {
                    let before = written.insert(tables.slot_mapping[t], seq.id);
                    assert_eq!(before, None, "slot {} is written twice", tables.slot_mapping[t]);
                }
            }
        }
    }

    pub(crate) fn check(&self) {
        self.scheduler.check_integrity().unwrap();
    }

    /// Runs until nothing is left, and checks that really nothing is.
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
    }

    pub(crate) fn num_live(&self) -> usize {
        self.live.len()
    }
}

/// What attention reads for sequence `s`: positions and the names found there.
fn attend(batch: &Batch, g: usize, s: usize, kind: GroupKind, shadow: &[u64], bs: usize) -> Vec<(usize, u64)> {
    let first_query = batch.positions[batch.tokens_of(s).start] as usize;
    let first_read = match kind {
        GroupKind::Full => 0,
        GroupKind::Sliding { window } => (first_query + 1).saturating_sub(window as usize),
    };
    let table = batch.block_table(g, s);
    let read = first_read..batch.context_lens[s] as usize;
    read.map(|position| {
        let block = table[position / bs];
        assert_ne!(block, NULL_BLOCK, "position {position} is read but its block was given up");
        (position, shadow[block as usize * bs + position % bs])
    })
    .collect()
}
