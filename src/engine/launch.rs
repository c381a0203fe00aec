//! Launches of steps, some of them before the tokens that they begin with are known.
//!
//! While a device computes a step, the host knows what the next one will hold but for the tokens. Where the device
//! chooses all of these (greedily, of rows that nothing else is wanted of), the next step is launched at once and the
//! device puts them in: it does not rest while the host takes the tokens, looks for ends and prepares the step after.
//! The host learns of the tokens a step later. A sequence that ends with one of them has a part in the step behind it
//! all the same. What that computes of it is passed over, and its blocks go back with that step's commit.

use std::collections::HashMap;

use super::core::{Core, Launched};
use super::ids::{RequestId, request_of};
use super::panics::{forward_panicked, guarded};
use super::request::Request;
use super::speculation::CATCH_UP_TOKENS;
use crate::Result;
use crate::batch::{ChosenToken, TO_GUESS};
use crate::scheduler::{ScheduledSeq, SeqId, Step};
use crate::selection::{Needs, Wanted, Wish};

impl Core {
    /// Hands a step to the executor, unless it is empty; the requests of one that fails there end.
    pub(super) fn launch(&mut self, mut step: Step) -> Result<Option<Launched>> {
        if step.seqs.is_empty() {
            return Ok(None);
        }
        let since = self.collected_at.take();
        match self.begin(&mut step) {
            Ok(true) => self.settle(step, since),
            Ok(false) => Ok(Some(Launched { step, selected: false, chooses: false, since })),
            Err(error) => self.give_up(&step, error).map(|()| None),
        }
    }

    /// Launches a step. Whether all masks of its rows are there.
    fn begin(&mut self, step: &mut Step) -> Result<bool> {
        self.note_started(step, self.shared.clock.now());
        self.counters.engine_steps += 1;
        self.publish();
        let requests = step.seqs.iter().filter_map(|scheduled| {
            let request = self.requests.get(&request_of(scheduled.id).0)?;
            Some((request.id, request.deadline.and_then(|deadline| self.shared.clock.instant_of(deadline))))
        });
        self.shared.watch.begin(requests, || self.scheduler.yields(step));
        let (mut needs, mut settled) = (Needs::default(), true);
        for scheduled in &step.seqs {
            if let Some(request) = self.requests.get_mut(&request_of(scheduled.id).0) {
                settled &= !request.prepare(scheduled);
                let of_request = request.needs();
                needs.logits |= of_request.logits;
                needs.hidden |= of_request.hidden;
            }
        }
        self.draft(step)?;
        let (executor, panics) = (&mut self.executor, &mut self.panics);
        let launched = guarded(|| executor.launch(&step.batch, needs));
        launched.unwrap_or_else(|payload| Err(forward_panicked(panics, payload.as_ref())))?;
        Ok(settled)
    }

    /// Tells the executor what is wanted of the step's rows; the requests of one that fails there end.
    fn settle(&mut self, step: Step, since: Option<u64>) -> Result<Option<Launched>> {
        match self.select(&step) {
            Ok(chooses) => Ok(Some(Launched { step, selected: true, chooses, since })),
            Err(error) => self.give_up(&step, error).map(|()| None),
        }
    }

    /// Has the model guess those drafts of a step that are its own to guess, and a draft model compute what it lacks.
    fn draft(&mut self, step: &mut Step) -> Result<()> {
        let Some(speculator) = &self.speculator else { return Ok(()) };
        let first = self.scheduler.plan_drafts(step, speculator.catching_up(), CATCH_UP_TOKENS);
        if first.num_tokens() == 0 {
            return Ok(());
        }
        let is_gap = |scheduled: &ScheduledSeq| step.drafts(scheduled).contains(&TO_GUESS);
        let gaps: Vec<ScheduledSeq> = step.seqs.iter().filter(|scheduled| is_gap(scheduled)).cloned().collect();
        let (executor, panics) = (&mut self.executor, &mut self.panics);
        let drafted = guarded(|| executor.draft(&mut step.batch, &first));
        drafted.unwrap_or_else(|payload| Err(forward_panicked(panics, payload.as_ref())))?;
        self.scheduler.note_drafts(step);
        let behind_first = gaps.iter().map(|scheduled| scheduled.num_drafts() - 1).sum::<usize>();
        self.counters.speculation.num_drafter_tokens += (first.num_tokens() + behind_first) as u64;
        for scheduled in gaps {
            let drafts = step.drafts(&scheduled);
            self.counters.speculation.num_proposed_tokens += drafts.len() as u64;
            if let Some(request) = self.requests.get_mut(&request_of(scheduled.id).0) {
                request.guessed(scheduled.id, drafts);
            }
        }
        Ok(())
    }

    /// Tells the executor what is wanted of each row of the step that was launched last, once all masks are known.
    /// Whether it is no more than the most likely token of each, whatever the row turns out to hold.
    pub(super) fn select(&mut self, step: &Step) -> Result<bool> {
        let mut chooses = true;
        for scheduled in &step.seqs {
            if let Some(request) = self.requests.get_mut(&request_of(scheduled.id).0) {
                request.settle(scheduled);
                // An infinite logit leaves its logarithm to the whole row.
                chooses &= !request.wants_logprobs();
            }
        }
        let wishes = want_logits(&self.requests, step, self.vocab_size);
        chooses &= wishes.iter().all(|wish| *wish == Wanted::Argmax.into());
        let (executor, panics) = (&mut self.executor, &mut self.panics);
        let selected = guarded(|| executor.select(&wishes));
        selected.unwrap_or_else(|payload| Err(forward_panicked(panics, payload.as_ref())))?;
        Ok(chooses)
    }

    /// Whether the device can put in all tokens that the step ahead lacks, while `running` runs. Newcomers need not
    /// wait for a step that has not begun, and steps with prompts are so long that a rest between them is nothing.
    pub(super) fn can_feed(&self, running: &Launched, ahead: &Step) -> bool {
        let decodes = |scheduled: &ScheduledSeq| {
            let request = self.requests.get(&request_of(scheduled.id).0);
            scheduled.is_decode() && request.is_some_and(|request| !request.is_guided())
        };
        running.chooses
            && self.speculator.is_none()
            && !ahead.seqs.is_empty()
            && ahead.batch.block_copies.is_empty()
            && ahead.seqs.iter().all(decodes)
            && !self.shared.watch.expects_any()
    }

    /// Launches the step ahead behind the one that runs, then takes the results of that one. Returns the step ahead.
    pub(super) fn feed(&mut self, running: Launched, mut ahead: Step) -> Result<Option<Launched>> {
        ahead.batch.chosen = chosen_tokens(&running.step, &ahead);
        let begun = self.begin(&mut ahead);
        let sampled = match self.collect(&running) {
            Ok(sampled) => sampled,
            Err(error) => {
                // It begins with tokens of the step that failed.
                self.give_up(&ahead, error.clone())?;
                self.give_up(&running.step, error)?;
                return Ok(None);
            }
        };
        self.commit(&running, sampled, &HashMap::new(), &Step::default())?;
        self.note_freed();
        ahead.seqs.retain(|scheduled| self.scheduler.info(scheduled.id).is_some());
        match begun {
            Ok(_) => self.settle(ahead, None),
            Err(error) => self.give_up(&ahead, error).map(|()| None),
        }
    }
}

/// The tokens that `running` chooses for the step behind it, which has one row of each sequence.
fn chosen_tokens(running: &Step, ahead: &Step) -> Vec<ChosenToken> {
    let rows = running.seqs.iter().filter_map(|scheduled| Some((scheduled.id, scheduled.samples.clone().next_back()?)));
    let rows: HashMap<SeqId, usize> = rows.collect();
    let chosen = (0u32..).zip(&ahead.seqs).filter_map(|(index, scheduled)| {
        let row = *rows.get(&scheduled.id)? as u32;
        Some(ChosenToken { index, row })
    });
    chosen.collect()
}

/// Lists, for each row of logits, what its sequence needs of it: by default the most likely token alone.
fn want_logits<'a>(requests: &'a HashMap<RequestId, Request>, step: &Step, vocab_size: usize) -> Vec<Wish<'a>> {
    let mut wishes = vec![Wanted::Argmax.into(); step.batch.logits_indices.len()];
    for scheduled in &step.seqs {
        if let Some(request) = requests.get(&request_of(scheduled.id).0) {
            request.want_logits(scheduled, vocab_size, &mut wishes);
        }
    }
    wishes
}
