//! The scheduler's record of one sequence.

use super::reason::WaitingReason;
use super::{NewSequence, SeqId};
use crate::batch::SeqExtras;
use crate::kv_cache::{HashChain, PrefixMiss, SeqBlocks, Tokens};

/// Order in which the sequences of one client are served; the last of all is the first to be preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// Sequences with lower values are served earlier.
    pub(super) priority: i32,
    /// Number of the request, in the order of arrival; its forks share it.
    pub(super) arrival: u64,
    /// Number of the sequence: makes the key unique.
    pub(super) serial: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It has no blocks and stands in the waiting queue.
    Waiting,
    Running,
}

#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SeqId,
    pub(super) key: Key,
    /// The flow that it is part of.
    pub(super) flow: usize,
    pub(super) state: State,
    /// Prompt and generated tokens; kept over a preemption and then computed again.
    pub(super) tokens: Tokens,
    /// Guesses of the tokens that follow. The next step computes them with the last token, and its commit says how many
    /// are right. They replace each other with each commit of tokens.
    pub(super) drafts: Vec<u32>,
    /// Most tokens that it may ever have.
    pub(super) max_len: usize,
    pub(super) all_logits: bool,
    /// Prompt positions whose logits were handed out (`all_logits` only).
    pub(super) logits_done: usize,
    pub(super) will_fork: bool,
    pub(super) extras: SeqExtras,
    /// Tokens that the prefix cache did not hold when it was last looked for there.
    pub(super) uncached: usize,
    pub(super) blocks: SeqBlocks,
    pub(super) chain: HashChain,
    /// Tokens whose K and V exist: steps that were committed.
    pub(super) num_computed: usize,
    /// Tokens, of those, up to which the draft model's keys and values exist; all of them where none lags.
    pub(super) num_draft_computed: usize,
    /// `num_computed` with the tokens of the steps in flight and the drafts that these compute.
    pub(super) num_scheduled: usize,
    /// Steps that hold it and were not committed yet.
    pub(super) in_flight: usize,
    /// Tokens that those steps sample and that it is to compute after them: known to be there, not yet known which.
    pub(super) num_expected: usize,
    /// The last step given out before it was added: older ones cannot speak of it.
    pub(super) born_after: u64,
    /// The last step that let those behind it pass, and why.
    pub(super) passed: Option<(u64, WaitingReason)>,
    pub(super) created_at: u64,
    pub(super) last_access: u64,
    pub(super) access_count: u64,
    pub(super) scheduled_at: Option<u64>,
    pub(super) num_cached_tokens: usize,
    pub(super) prefix_miss: Option<PrefixMiss>,
    pub(super) num_preemptions: usize,
    /// The end of the last block before the last token that it began to run with.
    pub(super) last_end: usize,
    /// Tokens whose keys and values were in the prefix cache when it began to run.
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

    /// Tokens that could be computed now, or once the steps in flight have sampled them. A sequence with drafts waits
    /// for its steps in flight: how many drafts are right, or which tokens they follow, is known only then.
    pub(super) fn num_pending(&self) -> usize {
        if self.in_flight > 0 && !self.drafts.is_empty() {
            return 0;
        }
        self.tokens.len() + self.num_expected - self.num_scheduled
    }

    /// Tokens that steps in flight compute.
    pub(super) fn num_in_flight(&self) -> usize {
        self.num_scheduled - self.num_computed
    }

    /// Counts a step that computes its tokens up to `end`, drafts included; answers how many rows of logits that step
    /// samples for it: that of its last token, and one for each draft.
    pub(super) fn schedule_up_to(&mut self, end: usize) -> usize {
        let len = self.tokens.len() + self.num_expected;
        self.in_flight += 1;
        // Drafts for which there was no room are given up.
        self.drafts.truncate(end.saturating_sub(len));
        // A sequence that is to be forked waits for its first token, and the last token of all is never computed.
        let forks_here = self.will_fork && len == self.tokens.prompt_len();
        if end == len && !forks_here && len + 1 < self.max_len {
            self.num_expected += 1;
        }
        (end + 1).saturating_sub(len)
    }

    /// Whether its prompt's logits are still wanted, which a prefix-cache hit would not give.
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

/// Lifetime data of one sequence; times in microseconds of the caller's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqInfo {
    pub created_at: u64,
    /// The time at which it was last part of a step, in microseconds.
    pub last_access: u64,
    /// Steps that it was part of.
    pub access_count: u64,
    /// Prompt tokens that came from the prefix cache when it first ran.
    pub num_cached_tokens: usize,
    /// The reason why not more of them did; `None` while it has never run.
    pub prefix_miss: Option<PrefixMiss>,
    pub num_preemptions: usize,
    pub num_tokens: usize,
    pub num_computed_tokens: usize,
    /// The time at which its first token was scheduled, in microseconds; `None` while it has never run.
    pub scheduled_at: Option<u64>,
}
