//! Keeps who comes now and then from waiting for long steps of others.
//!
//! A newcomer, a sequence of a client that has credit (`flows`) where others have none, is first in the next step, and
//! has it to itself. So it waits for the step under way alone. The engine stops that step for its sake or, where the
//! device cannot stop one, takes back the step that was to follow; `Yields` says for whom. For such devices steps are
//! shorter as well while newcomers come: they have at most `max_prefill_beside_newcomers` prompt tokens.

use std::sync::Arc;

use super::pick::Picks;
use super::{Scheduler, Step};

/// A newcomer is expected for so long after the last one (us): people read an answer before they write again.
const NEWCOMER_RETURNS: u64 = 60_000_000;

/// The newcomers that a step gives way to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Yields {
    /// The last priority of the sequences in it whose clients have no credit.
    priority: i32,
    /// Clients that are no newcomers, with the priority at which they have used their credit.
    without_credit: Vec<(i32, Option<Arc<str>>)>,
}

impl Yields {
    #[cfg(test)]
    pub(crate) fn new(priority: i32, without_credit: Vec<(i32, Option<Arc<str>>)>) -> Self {
        Self { priority, without_credit }
    }

    /// Whether it gives way to a sequence of this client that begins now.
    pub fn to(&self, priority: i32, client: Option<&str>) -> bool {
        let is_same = |(at, other): &(i32, Option<Arc<str>>)| *at == priority && other.as_deref() == client;
        priority <= self.priority && !self.without_credit.iter().any(is_same)
    }
}

impl Scheduler {
    /// The newcomers that a step gives way to, as long as no other step is scheduled; `None` where it has nothing that
    /// would wait for them.
    pub fn yields(&self, step: &Step) -> Option<Yields> {
        let slots = step.seqs.iter().filter_map(|scheduled| self.slots.get(&scheduled.id));
        let seqs = slots.map(|slot| &self.sequences[*slot]).filter(|seq| !self.flows.is_in_credit(seq.flow));
        let priority = seqs.map(|seq| seq.key.priority).max()?;
        let without_credit = self.flows.without_credit().map(|flow| (flow.priority, flow.client.clone())).collect();
        Some(Yields { priority, without_credit })
    }

    /// Notes that a sequence of this flow has come.
    pub(super) fn note_newcomer(&mut self, flow: usize, now: u64) {
        if self.flows.is_in_credit(flow) && self.flows.differ() {
            self.newcomers_until = now.saturating_add(NEWCOMER_RETURNS);
        }
    }

    /// Tokens of a step that are left once it has its decodes, and that prompts do not get for the sake of newcomers.
    pub(super) fn kept_from_prompts(&self, picks: &Picks, now: u64) -> usize {
        let is_quiet = now >= self.newcomers_until;
        if is_quiet { 0 } else { picks.budget.saturating_sub(self.config.max_prefill_beside_newcomers) }
    }
}
