//! Launches steps, some of them before their first tokens are known.
//!
//! While a device computes a step, the host knows everything about the next one except its tokens. If the device picks
//! all of them greedily and the host needs nothing else of the rows, the next step is launched at once. The device
//! fills the tokens in, so it is not idle while the host takes them, checks for ends and prepares the following step.
//!
//! The host learns the tokens one step later. A sequence that ends with one of them is therefore still part of the next
//! step. Its results there are ignored, and its blocks are freed with that step's commit.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use super::parked::PATIENCE;
use super::requests::Requests;
use super::{Core, Launched};
use crate::Result;
use crate::batch::{ChosenToken, TO_DRAFT};
use crate::scheduler::{ScheduledSeq, SeqId, Step};
use crate::selection::{Needs, SamplingRequest, Wanted};
use crate::speculation::CATCH_UP_TOKENS;

impl Core {
    /// Hands a step to the executor, unless it is empty. If the launch fails, the step's requests end.
    pub(crate) fn launch(&mut self, mut step: Step) -> Result<Option<Launched>> {
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

    /// Launches a step. Returns true if all masks of its rows are ready.
    fn begin(&mut self, step: &mut Step) -> Result<bool> {
        self.note_started(step, self.shared.clock.now());
        self.counters.engine_steps += 1;
        self.publish();
        let requests = step.seqs.iter().filter_map(|scheduled| {
            let request = self.requests.of(scheduled.id)?;
            Some((request.id, request.deadline.and_then(|deadline| self.shared.clock.instant_of(deadline))))
        });
        self.shared.watch.begin(requests, || self.scheduler.yields(step));
        let (mut needs, mut settled) = (Needs::default(), true);
        for scheduled in &step.seqs {
            if let Some(request) = self.requests.of_mut(scheduled.id) {
                settled &= !request.prepare(scheduled);
                let of_request = request.needs();
                needs.logits |= of_request.logits;
                needs.hidden |= of_request.hidden;
            }
        }
        self.draft(step)?;
        self.device.launch(&step.batch, self.images.rows(), needs)?;
        Ok(settled)
    }

    /// Sends the executor the sampling requests of the step's rows, or of its first piece. If that fails, the step's
    /// requests end.
    fn settle(&mut self, step: Step, since: Option<u64>) -> Result<Option<Launched>> {
        let pieces = step.pieces(self.device.executor().rows_at_once());
        match self.select(&step, pieces[0].clone()) {
            Ok(chooses) => {
                let chooses = chooses && pieces.len() == 1;
                Ok(Some(Launched { step, selected: true, chooses, since }))
            }
            Err(error) => self.give_up(&step, error).map(|()| None),
        }
    }

    /// Has the model's own drafter compute the step's draft tokens, and a draft model the tokens that it lacks.
    fn draft(&mut self, step: &mut Step) -> Result<()> {
        let Some(speculator) = &self.speculator else { return Ok(()) };
        let first = self.scheduler.plan_drafts(step, speculator.catching_up(), CATCH_UP_TOKENS);
        if first.num_tokens() == 0 {
            return Ok(());
        }
        let is_gap = |scheduled: &ScheduledSeq| step.drafts(scheduled).contains(&TO_DRAFT);
        let gaps: Vec<ScheduledSeq> = step.seqs.iter().filter(|scheduled| is_gap(scheduled)).cloned().collect();
        self.device.draft(&mut step.batch, &first)?;
        self.scheduler.note_drafts(step);
        let behind_first = gaps.iter().map(|scheduled| scheduled.num_drafts() - 1).sum::<usize>();
        self.counters.speculation.num_drafter_tokens += (first.num_tokens() + behind_first) as u64;
        for scheduled in gaps {
            let drafts = step.drafts(&scheduled);
            self.counters.speculation.num_proposed_tokens += drafts.len() as u64;
            if let Some(request) = self.requests.of_mut(scheduled.id) {
                request.drafted(scheduled.id, drafts);
            }
        }
        Ok(())
    }

    /// Sends the executor the sampling requests of these rows of the last launched step. Returns true if only the most
    /// likely token of each row is needed, whatever the row contains. Rows whose masks are late are requested whole.
    pub(crate) fn select(&mut self, step: &Step, rows: Range<usize>) -> Result<bool> {
        let (mut chooses, deadline) = (true, Instant::now() + PATIENCE);
        for (_, part) in step.parts(&rows) {
            if let Some(request) = self.requests.of_mut(part.id) {
                request.settle_by(&part, deadline);
                // For an infinite logit, the log-probability needs the whole row.
                chooses &= !request.wants_logprobs();
            }
        }
        let sampling_requests = want_logits(&self.requests, step, &rows, self.vocab_size);
        chooses &= sampling_requests.iter().all(|request| *request == Wanted::Argmax.into());
        self.device.select(rows, &sampling_requests)?;
        Ok(chooses)
    }

    /// True if the device can fill in all tokens that the step ahead lacks while `running` runs. New requests need not
    /// wait for a step that has not begun. Steps with prompts are so long that a gap between them does not matter.
    pub(super) fn can_feed(&self, running: &Launched, ahead: &Step) -> bool {
        let decodes = |scheduled: &ScheduledSeq| {
            let request = self.requests.of(scheduled.id);
            scheduled.is_decode() && request.is_some_and(|request| !request.is_guided())
        };
        running.chooses
            && self.speculator.is_none()
            && !ahead.seqs.is_empty()
            && ahead.batch.block_copies.is_empty()
            && ahead.seqs.iter().all(decodes)
            && !self.shared.watch.expects_any()
    }

    /// Launches the step ahead after the one in flight, then takes the results of the latter. Returns the step ahead.
    pub(crate) fn feed(&mut self, running: Launched, mut ahead: Step) -> Result<Option<Launched>> {
        ahead.batch.chosen = chosen_tokens(&running.step, &ahead);
        let begun = self.begin(&mut ahead);
        let mut sampled = match self.collect(&running) {
            Ok(sampled) => sampled,
            Err(error) => {
                // The step ahead begins with tokens of the step that failed.
                self.give_up(&ahead, error.clone())?;
                self.give_up(&running.step, error)?;
                return Ok(None);
            }
        };
        // The step ahead contains no constrained sequences.
        self.park_late(&mut sampled);
        self.commit(&running, sampled, &HashMap::new(), &Step::default())?;
        self.note_freed();
        ahead.seqs.retain(|scheduled| self.scheduler.info(scheduled.id).is_some());
        match begun {
            Ok(_) => self.settle(ahead, None),
            Err(error) => self.give_up(&ahead, error).map(|()| None),
        }
    }
}

/// Returns the tokens that `running` picks for the step after it, which has one row per sequence.
fn chosen_tokens(running: &Step, ahead: &Step) -> Vec<ChosenToken> {
    let rows = running.seqs.iter().filter_map(|scheduled| Some((scheduled.id, scheduled.samples.clone().next_back()?)));
    let rows: HashMap<SeqId, usize> = rows.collect();
    let chosen = (0u32..).zip(&ahead.seqs).filter_map(|(index, scheduled)| {
        let row = *rows.get(&scheduled.id)? as u32;
        Some(ChosenToken { index, row })
    });
    chosen.collect()
}

/// Returns the sampling request of each of these rows of logits. The default is the most likely token only.
fn want_logits<'a>(
    requests: &'a Requests,
    step: &Step,
    rows: &Range<usize>,
    vocab_size: usize,
) -> Vec<SamplingRequest<'a>> {
    let mut sampling_requests = vec![Wanted::Argmax.into(); rows.len()];
    for (_, part) in step.parts(rows) {
        if let Some(request) = requests.of(part.id) {
            request.want_logits(&part, vocab_size, &mut sampling_requests);
        }
    }
    sampling_requests
}
