//! Keeps occasional clients from waiting behind other clients' long steps.
//!
//! A newcomer is a sequence of a client with credit (`flows`) while others have none. It is first in the next step, and
//! has that step to itself. So it only waits for the step in flight. The engine interrupts that step for it. On a
//! device whose steps cannot be interrupted, it withdraws the step after. `Yields` says which sequences these are. On
//! such devices steps are also shorter while newcomers arrive: they have at most `max_prefill_beside_newcomers` prompt
//! tokens.
//!
//! A client whose sequences decode waits for the prompts of others in the same step. On slow devices such a step has as
//! many prompt tokens as should take a given time (`BesideDecodes`).

use std::sync::Arc;

use super::pick::Picks;
use super::{Scheduler, Step};

/// How long after a newcomer the next one is expected, in microseconds: people read an answer before they write again.
const NEWCOMER_RETURNS: u64 = 60_000_000;

/// Limits of a step with prompts in which other clients decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BesideDecodes {
    /// The time that the step should take, in microseconds.
    pub step_micros: u64,
    /// The fewest tokens that its prompts may have together, however long these take.
    pub min_prefill: usize,
}

/// The duration of a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepTime {
    micros: u64,
    num_tokens: usize,
}

/// The newcomers that take precedence over a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Yields {
    /// The last priority of the step's sequences whose clients have no credit.
    priority: i32,
    /// Clients that are not newcomers, with the priority at which they have used their credit.
    without_credit: Vec<(i32, Option<Arc<str>>)>,
}

impl Yields {
    pub fn new(priority: i32, without_credit: Vec<(i32, Option<Arc<str>>)>) -> Self {
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
        Some(Yields::new(priority, without_credit))
    }

    /// Notes that a sequence of this flow has arrived.
    pub(super) fn note_newcomer(&mut self, flow: usize, now: u64) {
        if self.flows.is_in_credit(flow) && self.flows.differ() {
            self.newcomers_until = now.saturating_add(NEWCOMER_RETURNS);
        }
    }

    /// Returns the tokens left after the decodes of a step that prompts do not get, to keep steps short for others.
    pub(super) fn kept_from_prompts(&self, picks: &Picks, now: u64) -> usize {
        let is_quiet = now >= self.newcomers_until;
        let beside_newcomers = if is_quiet { usize::MAX } else { self.config.max_prefill_beside_newcomers };
        picks.budget.saturating_sub(beside_newcomers.min(self.prefill_beside_decodes(picks)))
    }

    /// Returns the most prompt tokens beside the decodes of other clients. A token takes the longer the more context it
    /// attends to, so the last step with prompts says how many fit.
    fn prefill_beside_decodes(&self, picks: &Picks) -> usize {
        match (self.config.beside_decodes, self.prefill_time) {
            (Some(limits), Some(last)) if self.others_decode(picks) => {
                let num_tokens = limits.step_micros.saturating_mul(last.num_tokens as u64) / last.micros.max(1);
                let num_tokens = usize::try_from(num_tokens).unwrap_or(usize::MAX);
                num_tokens.saturating_sub(picks.entries.len()).max(limits.min_prefill)
            }
            _ => usize::MAX,
        }
    }

    /// True if the decodes of one client are in a step that prompts of another one may join.
    fn others_decode(&self, decodes: &Picks) -> bool {
        let mut flows = decodes.entries.iter().map(|pick| self.sequences[pick.slot].flow);
        let Some(first) = flows.next() else { return false };
        let differ = flows.any(|flow| flow != first);
        let running = self.running.iter().map(|(_, slot)| &self.sequences[*slot]);
        let prompts = running.filter(|seq| seq.num_pending() > 1).map(|seq| seq.flow);
        prompts.chain(self.flows.with_waiting().map(|(flow, _)| flow)).any(|flow| differ || flow != first)
    }

    /// Notes the time of a step with prompts that has run. It began when it was scheduled, or with the end of the step
    /// before it.
    pub(super) fn note_time(&mut self, step: &Step, scheduled: u64, now: u64) {
        let began = scheduled.max(std::mem::replace(&mut self.last_end, now));
        if step.seqs.iter().any(|seq| seq.num_tokens - seq.num_drafts() > 1) {
            let num_tokens = step.batch.num_tokens();
            self.prefill_time = Some(StepTime { micros: now.saturating_sub(began), num_tokens });
        }
    }
}
