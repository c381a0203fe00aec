//! A small user of the cache for the tests. It does what the scheduler does for one sequence, step by step.

mod allocation;
mod config;
mod drafted;
mod events;
mod forks;
mod free_list;
mod metrics;
mod offload;
mod prefix;
mod prop;
mod states;
mod truncation;
mod windows;

use super::*;
use crate::batch::{BlockCopy, GroupKind, SeqExtras};
use rocmforge_core::config::{GroupConfig, StateConfig};

fn cache_of(groups: &[GroupConfig], block_size: usize) -> KvCache {
    cache_with(groups, None, block_size)
}

fn cache_with(groups: &[GroupConfig], states: Option<StateConfig>, block_size: usize) -> KvCache {
    let (groups, hash_key) = (groups.to_vec(), [9; 32]);
    KvCache::new(KvCacheConfig { block_size, groups, states, enable_prefix_caching: true, hash_key }).unwrap()
}

fn full(num_blocks: usize) -> GroupConfig {
    GroupConfig { kind: GroupKind::Full, num_blocks }
}

fn sliding(window: u32, num_blocks: usize) -> GroupConfig {
    GroupConfig { kind: GroupKind::Sliding { window }, num_blocks }
}

/// Returns a cache of one full-attention group with blocks of 4 tokens.
fn cache(num_blocks: usize) -> KvCache {
    cache_of(&[full(num_blocks)], 4)
}

/// Returns `n` tokens that no other `text` shares.
fn text(text: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| text * 1000 + i).collect()
}

#[derive(Debug)]
struct Seq {
    blocks: SeqBlocks,
    chain: HashChain,
    tokens: Vec<u32>,
    num_computed: usize,
    num_hit: usize,
    num_held: usize,
    /// Tokens that a draft model has computed; initially those of the prefix hit.
    num_drafted: usize,
    /// The number of tokens that it began with.
    prompt_len: usize,
    /// The state that its last step read, and those that it wrote: positions and slots.
    read: Option<(usize, u32)>,
    wrote: Vec<(usize, u32)>,
}

impl Seq {
    /// Allocates blocks for all of `tokens`, after the cached prefix; `None` if there are not enough.
    fn start_salted(kv: &mut KvCache, tokens: &[u32], salt: Option<&str>) -> Option<Self> {
        let mut blocks = kv.new_sequence();
        let mut chain = kv.new_chain(salt, SeqExtras::default());
        kv.extend_chain(&mut chain, &Tokens::new(tokens.into()));
        let hit = kv.find_on_device(&chain, tokens.len());
        let (num_hit, num_held, num_drafted) = (hit.num_tokens, hit.num_held, hit.num_drafted);
        let demand = Demand { write: num_hit..tokens.len(), reserve: tokens.len(), ..Demand::default() };
        let plan = kv.plan(&blocks, hit, &demand)?;
        let mut copies = Vec::new();
        kv.commit(plan, &mut blocks, &mut copies).unwrap();
        assert!(copies.is_empty(), "a new sequence writes into no shared block");
        kv.check_integrity().unwrap();
        let tokens = tokens.to_vec();
        let prompt_len = tokens.len();
        let (num_computed, read, wrote) = (num_hit, None, Vec::new());
        Some(Self { blocks, chain, tokens, num_computed, num_hit, num_held, num_drafted, prompt_len, read, wrote })
    }

    /// Begins to load what the prefix of `tokens` has in host memory, if a sequence could begin with all of it.
    fn load(kv: &mut KvCache, tokens: &[u32], salt: Option<&str>) {
        let mut chain = kv.new_chain(salt, SeqExtras::default());
        kv.extend_chain(&mut chain, &Tokens::new(tokens.into()));
        let hit = kv.find_prefix(&chain, tokens.len());
        if !kv.may_begin_loads(&hit, usize::MAX) {
            return;
        }
        let demand = Demand { write: hit.num_tokens..tokens.len(), reserve: tokens.len(), ..Demand::default() };
        if let Some(plan) = kv.plan(&kv.new_sequence(), hit, &demand) {
            kv.begin_loads(plan, &chain, &Tokens::new(tokens.into()), usize::MAX).unwrap();
            kv.check_integrity().unwrap();
        }
    }

    fn start(kv: &mut KvCache, tokens: &[u32]) -> Option<Self> {
        Self::start_salted(kv, tokens, None)
    }

    /// Issues a step that computes the rest of its tokens, with a snapshot at the end of each block.
    fn begin(&mut self, kv: &mut KvCache) {
        let (start, end) = (self.num_computed, self.tokens.len());
        let block_size = kv.config().block_size;
        let ends = (start / block_size + 1..=end / block_size).map(|end| end * block_size);
        let all = ends.map(|position| Snapshot { position, is_rolling: position > self.prompt_len });
        kv.begin_step(&mut self.blocks, &self.chain, start..end, &all.collect::<Vec<_>>(), 0).unwrap();
        self.read = self.blocks.state_at(start).map(|slot| (start, slot.0));
        let others = self.blocks.states_in(start..end).map(|(n, slot)| (start + n, slot.0));
        self.wrote = others.chain(self.blocks.state_at(end).map(|slot| (end, slot.0))).collect();
        kv.check_integrity().unwrap();
    }

    /// Commits the step that computes all its tokens, and issues it first if necessary.
    fn compute(&mut self, kv: &mut KvCache) {
        if self.num_computed < self.tokens.len() && self.blocks.state_at(self.tokens.len()).is_none() {
            self.begin(kv);
        }
        self.settle(kv);
    }

    /// Commits the issued step with all its tokens.
    fn settle(&mut self, kv: &mut KvCache) {
        self.num_computed = self.tokens.len();
        let tokens = Tokens::new(self.tokens.as_slice().into());
        kv.extend_chain(&mut self.chain, &tokens);
        kv.mark_computed(&mut self.blocks, &self.chain, &tokens, self.num_computed).unwrap();
        kv.check_integrity().unwrap();
    }

    /// Notes that a draft model has computed it up to `num_tokens` tokens.
    fn catch_up(&mut self, kv: &mut KvCache, num_tokens: usize) {
        self.num_drafted = num_tokens;
        kv.mark_drafted(&mut self.blocks, num_tokens).unwrap();
        kv.check_integrity().unwrap();
    }

    /// Starts and computes a sequence.
    fn run(kv: &mut KvCache, tokens: &[u32]) -> Self {
        let mut seq = Self::start(kv, tokens).unwrap();
        seq.compute(kv);
        seq
    }

    /// Allocates a slot for one more token and computes it. Returns the copies to make before it is written.
    fn append(&mut self, kv: &mut KvCache, token: u32) -> Option<Vec<BlockCopy>> {
        let copies = self.grow(kv, token)?;
        self.compute(kv);
        Some(copies)
    }

    /// Allocates a slot for one more token. Returns the copies to make before it is written.
    fn grow(&mut self, kv: &mut KvCache, token: u32) -> Option<Vec<BlockCopy>> {
        let end = self.tokens.len() + 1;
        let demand = Demand { write: end - 1..end, reserve: end, ..Demand::default() };
        let plan = kv.plan(&self.blocks, PrefixHit::default(), &demand)?;
        let mut copies = Vec::new();
        kv.commit(plan, &mut self.blocks, &mut copies).unwrap();
        self.tokens.push(token);
        Some(copies)
    }

    /// Allocates slots for a token and the drafts after it, and issues their step. Returns the copies to make before
    /// they are written.
    fn draft(&mut self, kv: &mut KvCache, drafts: &[u32]) -> Option<Vec<BlockCopy>> {
        let (start, end) = (self.tokens.len(), self.tokens.len() + drafts.len());
        let demand = Demand { write: start..end, reserve: end, keep_states: start + 1..end, ..Demand::default() };
        let plan = kv.plan(&self.blocks, PrefixHit::default(), &demand)?;
        let mut copies = Vec::new();
        kv.commit(plan, &mut self.blocks, &mut copies).unwrap();
        self.tokens.extend(drafts);
        self.begin(kv);
        Some(copies)
    }

    /// Commits the step that computed its drafts; those after its first `num_tokens` tokens were wrong.
    fn keep(&mut self, kv: &mut KvCache, num_tokens: usize) {
        self.tokens.truncate(num_tokens);
        self.settle(kv);
        kv.truncate(&mut self.blocks, num_tokens).unwrap();
        kv.check_integrity().unwrap();
    }

    fn fork(&mut self, kv: &mut KvCache) -> Self {
        let blocks = kv.fork(&mut self.blocks).unwrap();
        Self { blocks, chain: self.chain.clone(), tokens: self.tokens.clone(), wrote: Vec::new(), ..*self }
    }

    fn table(&self) -> Vec<u32> {
        self.blocks.table(0).iter().map(|id| id.0).collect()
    }

    /// Ends it; its blocks are free when this returns.
    fn end(self, kv: &mut KvCache) {
        drop(self);
        kv.tick(0);
        kv.check_integrity().unwrap();
    }
}

fn owners(kv: &KvCache, block: u32) -> u32 {
    kv.block_map(0)[block as usize].owners
}

/// (free, cached, owned)
fn counts(kv: &KvCache) -> (usize, usize, usize) {
    let stats = kv.stats();
    (stats.blocks_free, stats.blocks_cached, stats.blocks_owned)
}
