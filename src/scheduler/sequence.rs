//! The scheduler's record of one sequence.

use super::reason::WaitingReason;
use super::{NewSequence, SeqId};
use crate::batch::SeqExtras;
use crate::kv_cache::{HashChain, PrefixMiss, SeqBlocks, Tokens};

/// The order in which the sequences of one client are served. The last one is the first to be preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Sequences with lower values are served earlier.
    pub(super) priority: i32,
    /// The number of the request, in order of arrival; its forks share it.
    pub(super) arrival: u64,
    /// The number of the sequence, which makes the key unique.
    pub(super) serial: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It has no blocks and is in the waiting queue.
    Waiting,
    Running,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SeqId,
    pub(super) key: Key,
    /// The flow that it belongs to.
    pub(super) flow: usize,
    pub(super) state: State,
    /// The prompt and the generated tokens. They are kept during a preemption and then recomputed.
    pub(super) tokens: Tokens,
    /// The draft tokens to follow. The next step computes them with the last token, and its commit says how many are
    /// right. Each commit of tokens replaces them.
    pub(super) drafts: Vec<u32>,
    /// Maximum tokens that it may ever have.
    pub(super) max_len: usize,
    pub(super) all_logits: bool,
    /// Prompt positions whose logits were delivered (`all_logits` only).
    pub(super) logits_done: usize,
    pub(super) will_fork: bool,
    pub(super) extras: SeqExtras,
    /// Tokens that the prefix cache did not hold at the last lookup.
    pub(super) uncached: usize,
    pub(super) blocks: SeqBlocks,
    pub(super) chain: HashChain,
    /// Tokens whose keys and values exist, from committed steps.
    pub(super) num_computed: usize,
    /// The number of those tokens whose draft model's keys and values exist; all of them if no draft model lags.
    pub(super) num_draft_computed: usize,
    /// `num_computed` plus the tokens of the steps in flight, including drafts.
    pub(super) num_scheduled: usize,
    /// The number of uncommitted steps that hold it.
    pub(super) in_flight: usize,
    /// Tokens that those steps sample and that must be computed next: their number is known, their values are not.
    pub(super) num_expected: usize,
    /// The last step issued before it was added: older steps cannot refer to it.
    pub(super) born_after: u64,
    /// The last step in which it let later sequences pass, and why.
    pub(super) passed: Option<(u64, WaitingReason)>,
    /// The contents that may be loaded for it before it starts; `None` before the first of them.
    pub(super) loads_left: Option<usize>,
    pub(super) created_at: u64,
    pub(super) last_access: u64,
    pub(super) access_count: u64,
    pub(super) scheduled_at: Option<u64>,
    pub(super) num_cached_tokens: usize,
    pub(super) prefix_miss: Option<PrefixMiss>,
    pub(super) num_preemptions: usize,
    /// The end of the last whole block before its last token, as of its start.
    pub(super) last_end: usize,
    /// Tokens whose keys and values were in the prefix cache at its start.
    pub(super) shared_end: usize,
}

impl Sequence {
    pub(super) fn new(
        new: NewSequence,
        key: Key,
        flow: usize,
        max_len: usize,
        (blocks, chain): (SeqBlocks, HashChain),
        born_after: u64,
        now: u64,
    ) -> Self {
        Self {
            id: new.id,
            key,
            flow,
            state: State::Waiting,
            uncached: new.prompt.len(),
            tokens: Tokens::new(new.prompt),
            drafts: Vec::new(),
            max_len,
            all_logits: new.all_logits,
            logits_done: 0,
            will_fork: new.will_fork,
            extras: new.extras,
            blocks,
            chain,
            num_computed: 0,
            num_draft_computed: 0,
            num_scheduled: 0,
            in_flight: 0,
            num_expected: 0,
            born_after,
            passed: None,
            loads_left: None,
            created_at: now,
            last_access: now,
            access_count: 0,
            scheduled_at: None,
            num_cached_tokens: 0,
            prefix_miss: None,
            num_preemptions: 0,
            last_end: 0,
            shared_end: 0,
        }
    }

    /// Returns the tokens that could be computed now, or once the steps in flight have sampled them. A sequence with
    /// drafts waits for its steps in flight: only then is it known which tokens the drafts follow, and how many are
    /// right.
    pub(super) fn num_pending(&self) -> usize {
        if self.in_flight > 0 && !self.drafts.is_empty() {
            return 0;
        }
        self.tokens.len() + self.num_expected - self.num_scheduled
    }

    /// Returns how many of `num_tokens` tokens from position `start` on a step may compute without cutting an image
    /// that may not be cut.
    pub(super) fn uncut(&self, start: usize, num_tokens: usize) -> usize {
        let images = self.extras.images.as_ref();
        images.map_or(num_tokens, |images| images.uncut_end(start, start + num_tokens) - start)
    }

    /// Returns the tokens that steps in flight compute.
    pub(super) fn num_in_flight(&self) -> usize {
        self.num_scheduled - self.num_computed
    }

    /// Counts a step that computes its tokens up to `end`, including drafts. Returns the number of logits rows that the
    /// step samples for it: that of its last token, and one per draft.
    pub(super) fn schedule_up_to(&mut self, end: usize) -> usize {
        let len = self.tokens.len() + self.num_expected;
        self.in_flight += 1;
        // Drafts without room in the step are dropped.
        self.drafts.truncate(end.saturating_sub(len));
        // A sequence about to fork waits for its first token, and the very last token is never computed.
        let forks_here = self.will_fork && len == self.tokens.prompt_len();
        if end == len && !forks_here && len + 1 < self.max_len {
            self.num_expected += 1;
        }
        (end + 1).saturating_sub(len)
    }

    /// True if logits of its prompt are still needed, which a prefix-cache hit would not give.
    pub(super) fn wants_prompt_logits(&self) -> bool {
        self.all_logits && self.logits_done < self.tokens.prompt_len()
    }

    pub(super) fn touch(&mut self, now: u64) {
        self.last_access = self.last_access.max(now);
        self.access_count += 1;
        self.scheduled_at.get_or_insert(now);
    }

    pub(super) fn info(&self) -> SeqInfo {
        SeqInfo {
            created_at: self.created_at,
            last_access: self.last_access,
            access_count: self.access_count,
            num_cached_tokens: self.num_cached_tokens,
            prefix_miss: self.prefix_miss,
            num_preemptions: self.num_preemptions,
            num_tokens: self.tokens.len(),
            num_computed_tokens: self.num_computed,
            scheduled_at: self.scheduled_at,
        }
    }
}

/// Lifetime data of one sequence. Times are in microseconds of the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqInfo {
    pub created_at: u64,
    /// The time of its last step, in microseconds.
    pub last_access: u64,
    /// The number of steps that it was part of.
    pub access_count: u64,
    /// Prompt tokens that came from the prefix cache when it first ran.
    pub num_cached_tokens: usize,
    /// The reason why no more of them did; `None` if it has never run.
    pub prefix_miss: Option<PrefixMiss>,
    pub num_preemptions: usize,
    pub num_tokens: usize,
    pub num_computed_tokens: usize,
    /// The time at which its first token was scheduled, in microseconds; `None` if it has never run.
    pub scheduled_at: Option<u64>,
}
