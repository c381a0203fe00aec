//! Keeps occasional clients from waiting behind other clients' long steps.
//!
//! A newcomer is a sequence of a client with credit (`flows`) while others have none. It is first in the next step, and
//! has that step to itself. So it only waits for the step in flight. The engine interrupts that step for it. On a
//! device whose steps cannot be interrupted, it withdraws the step after. `Yields` says which sequences these are. On
//! such devices steps are also shorter while newcomers arrive: they have at most `max_prefill_beside_newcomers` prompt
//! tokens.

use std::sync::Arc;

use super::pick::Picks;
use super::{Scheduler, Step};

/// How long after a newcomer the next one is expected, in microseconds: people read an answer before they write again.
const NEWCOMER_RETURNS: u64 = 60_000_000;

/// The newcomers that take precedence over a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Yields {
    /// The last priority of the step's sequences whose clients have no credit.
    priority: i32,
    /// Clients that are not newcomers, with the priority at which they have used their credit.
    without_credit: Vec<(i32, Option<Arc<str>>)>,
}

impl Yields {
    #[cfg(test)]
    pub(crate) fn new(priority: i32, without_credit: Vec<(i32, Option<Arc<str>>)>) -> Self {
        Self { priority, without_credit }
    }

    /// True if the step gives way to a sequence of this client that starts now.
    pub fn to(&self, priority: i32, client: Option<&str>) -> bool {
        let is_same = |(at, other): &(i32, Option<Arc<str>>)| *at == priority && other.as_deref() == client;
        priority <= self.priority && !self.without_credit.iter().any(is_same)
    }
}

impl Scheduler {
    /// Returns the newcomers that take precedence over a step, as long as no other step is scheduled. `None` if the
    /// step has no sequence that would wait for them.
    pub fn yields(&self, step: &Step) -> Option<Yields> {
        let slots = step.seqs.iter().filter_map(|scheduled| self.slots.get(&scheduled.id));
        let seqs = slots.map(|slot| &self.sequences[*slot]).filter(|seq| !self.flows.is_in_credit(seq.flow));
        let priority = seqs.map(|seq| seq.key.priority).max()?;
        let without_credit = self.flows.without_credit().map(|flow| (flow.priority, flow.client.clone())).collect();
        Some(Yields { priority, without_credit })
    }

    /// Notes that a sequence of this flow has arrived.
    pub(super) fn note_newcomer(&mut self, flow: usize, now: u64) {
        if self.flows.is_in_credit(flow) && self.flows.differ() {
            self.newcomers_until = now.saturating_add(NEWCOMER_RETURNS);
        }
    }

    /// Returns the tokens left after the decodes of a step that prompts do not get, to keep steps short for newcomers.
    pub(super) fn kept_from_prompts(&self, picks: &Picks, now: u64) -> usize {
        let is_quiet = now >= self.newcomers_until;
        if is_quiet { 0 } else { picks.budget.saturating_sub(self.config.max_prefill_beside_newcomers) }
    }
}
