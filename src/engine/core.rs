//! The engine's state and its step. Everything here runs on the engine thread, which owns it.

mod device;
mod launch;
mod lifecycle;
mod parked;
mod publish;
mod requests;
pub(crate) mod thread;
mod tiers;
mod unsent;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use device::Device;
use requests::Requests;
use unsent::Unsent;

use super::delivery::Outbox;
use super::executor::Executor;
use super::ids::{RequestId, request_of};
use super::images::Pending;
use super::offload::Offload;
use super::output::FinishReason;
use super::request::{Parked, Pick, Taken};
use super::shared::Shared;
use super::shared::watch::StepEnd;
use super::speculation::Speculator;
use super::stats::Stats;
use super::threads::panics::{guarded, panicked};
use crate::batch::TO_DRAFT;
use crate::config::EngineConfig;
use crate::sampler::Sampler;
use crate::scheduler::{Accepted, Scheduler, SeqId, Step};
use crate::selection::Selection;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// The fewest forced tokens for which a sequence skips the step that is already scheduled ahead.
const MIN_DRAFTS_AHEAD: usize = 3;

pub(super) struct Core {
    shared: Arc<Shared>,
    config: EngineConfig,
    device: Device,
    scheduler: Scheduler,
    vocab_size: usize,
    sampler: Sampler,
    /// Decides about draft tokens; `None` without speculative decoding.
    speculator: Option<Speculator>,
    tokenizer: Option<Arc<Tokenizer>>,
    requests: Requests,
    /// Sequences that skip steps until their grammars have computed the allowed tokens.
    parked: Vec<(SeqId, Parked)>,
    images: Pending,
    /// The tiers below the device, if there are any.
    offload: Option<Offload>,
    /// True if nothing can be computed until grammars, images or copies to the device are ready.
    waits_for_others: bool,
    unsent: Unsent,
    counters: Stats,
    /// Aborted requests whose blocks a step in flight may still use: the newest such step, and the time of the abort.
    cancelled: Vec<(Option<u64>, u64)>,
    /// The time at which the last step's results arrived; `None` after the engine has been idle.
    collected_at: Option<u64>,
}

/// A step on the executor. `launch` creates it and `Core::collect` waits for it.
pub(super) struct Launched {
    pub(super) step: Step,
    /// True if the executor has the sampling requests of all rows. It gets them once all masks are computed.
    pub(super) selected: bool,
    /// True if the device picks every token of the step and the host needs nothing else of the rows.
    pub(super) chooses: bool,
    /// The time since which the engine has worked on this step alone, which is the end of the previous step.
    pub(super) since: Option<u64>,
}

/// The tokens picked from a step's logits.
pub(super) struct Sampled {
    pub(super) taken: Taken,
    /// Requests that sample nothing and have all their results.
    complete: Vec<RequestId>,
    /// Requests whose results could not be read.
    failed: Vec<(RequestId, Error)>,
}

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
        config: EngineConfig,
        executor: Box<dyn Executor>,
        scheduler: Scheduler,
        tokenizer: Option<Arc<Tokenizer>>,
        images: Pending,
        outputs: Outbox,
    ) -> Self {
        let vocab_size = executor.vocab_size();
        let speculative = config.speculative_config.clone();
        let speculator = speculative.map(|settings| Speculator::new(settings, config.max_drafts));
        Self {
            shared,
            config,
            device: Device::new(executor),
            scheduler,
            vocab_size,
            sampler: Sampler::new(vocab_size),
            speculator,
            tokenizer,
            requests: Requests::default(),
            parked: Vec::new(),
            images,
            offload: None,
            waits_for_others: false,
            unsent: Unsent::new(outputs),
            counters: Stats::default(),
            cancelled: Vec::new(),
            collected_at: None,
        }
    }

    /// Adds the tiers below the device.
    pub(super) fn with_offload(self, offload: Option<Offload>) -> Self {
        Self { offload, ..self }
    }

    pub(super) fn now(&self) -> u64 {
        self.shared.clock.now()
    }

    /// Notes that the engine is idle.
    pub(super) fn rest(&mut self) {
        self.collected_at = None;
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Runs one step: schedule, compute, sample, commit, output. Takes the step in flight and returns the next one in
    /// flight. On an asynchronous device that is the next step, scheduled while the first one ran. Outputs are
    /// delivered and commands taken while it runs. On other devices nothing runs between two calls.
    ///
    /// # Errors
    /// Only errors that the engine cannot survive.
    pub(super) fn step(&mut self, running: Option<Launched>) -> Result<Option<Launched>> {
        let now = self.shared.clock.now();
        self.expire(now);
        // Deliver finished outputs now; their requests are not part of the next step.
        if !self.unsent.is_empty() {
            self.flush();
        }
        self.resume_parked()?;
        let running = match running {
            Some(running) => Some(running),
            None => self.launch_first(now)?,
        };
        let Some(running) = running else { return Ok(None) };
        let ahead = self.schedule_ahead(now)?;
        if self.can_feed(&running, &ahead) {
            return self.feed(running, ahead);
        }
        let mut sampled = match self.collect(&running) {
            Ok(sampled) => sampled,
            Err(error) => {
                self.scheduler.withdraw(&ahead)?;
                self.give_up(&running.step, error)?;
                return Ok(None);
            }
        };
        self.park_late(&mut sampled);
        let drafts = self.propose(&running.step, &sampled, &ahead);
        // The step ahead was scheduled as if the parked sequences had their next tokens.
        let ahead = if self.holds_parked(&ahead) || !drafts.is_empty() || self.gives_way(&ahead) {
            self.scheduler.withdraw(&ahead)?;
            Step::default()
        } else {
            ahead
        };
        self.commit(&running, sampled, &drafts, &ahead)?;
        let next = self.scheduler.complete(ahead, self.shared.clock.now())?;
        self.note_freed();
        self.launch(next)
    }

    /// Launches a step when none is in flight.
    fn launch_first(&mut self, now: u64) -> Result<Option<Launched>> {
        let step = self.scheduler.schedule(now)?;
        self.move_contents()?;
        let is_awaited = !self.parked.is_empty() || self.num_held() > 0 || self.is_loading();
        self.waits_for_others = step.seqs.is_empty() && is_awaited;
        if step.seqs.is_empty() && !is_awaited {
            self.stalled()?;
        }
        self.launch(step)
    }

    /// Schedules the step after the one in flight, on an asynchronous device. Some of its tokens are not known yet.
    fn schedule_ahead(&mut self, now: u64) -> Result<Step> {
        if !self.device.executor().is_asynchronous() {
            return Ok(Step::default());
        }
        let step = self.scheduler.schedule(now)?;
        self.move_contents()?;
        if !step.seqs.is_empty() {
            self.publish();
        }
        Ok(step)
    }

    /// Returns the draft tokens of the next step by sequence. The step ahead was scheduled without them and has to be
    /// withdrawn. A step ahead that copies blocks is kept without drafts, since its sequences would start over.
    fn propose(&mut self, step: &Step, sampled: &Sampled, ahead: &Step) -> HashMap<SeqId, Vec<u32>> {
        let Some(speculator) = &mut self.speculator else { return HashMap::new() };
        let mut offers = Vec::new();
        let mut of_step = step.seqs.iter();
        for picks in sampled.taken.picks.chunk_by(|pick, next| pick.seq == next.seq) {
            let (seq, tokens) = (picks[0].seq, picks.iter().map(|pick| pick.token).collect::<Vec<u32>>());
            let request = self.requests.of_mut(seq);
            let proposal = request.and_then(|request| request.propose(seq, &tokens));
            // A fork starts without drafts.
            if let Some(mut proposal) = proposal.filter(|_| picks[0].fork_of.is_none()) {
                let scheduled = of_step.find(|scheduled| scheduled.id == seq);
                let lag = scheduled.map(|scheduled| self.scheduler.draft_lag_after(step, scheduled, tokens.len()));
                proposal.missing = lag.unwrap_or(0);
                // Draft tokens of an MTP block or a draft model count once they are computed.
                let num_made = proposal.tokens.iter().filter(|&&token| token != TO_DRAFT).count();
                self.counters.speculation.num_proposed_tokens += num_made as u64;
                offers.push((seq, proposal));
            }
        }
        if !ahead.batch.block_copies.is_empty() {
            offers.clear();
        }
        speculator.choose(offers, self.scheduler.num_running())
    }

    /// True if a request that arrived after the step ahead was scheduled takes precedence over it.
    fn gives_way(&self, ahead: &Step) -> bool {
        self.shared.watch.expects_any()
            && self.scheduler.yields(ahead).is_some_and(|yields| self.shared.watch.expects(&yields))
    }

    /// Waits for the step's logits, piece by piece, and samples from them.
    pub(super) fn collect(&mut self, Launched { step, selected, since, .. }: &Launched) -> Result<Sampled> {
        let taken = Taken { picks: Vec::with_capacity(step.seqs.len()), rows: Vec::new() };
        let mut sampled = Sampled { taken, complete: Vec::new(), failed: Vec::new() };
        for (i, rows) in step.pieces(self.device.executor().rows_at_once()).into_iter().enumerate() {
            if i > 0 || !selected {
                self.select(step, rows.clone())?;
            }
            self.collect_rows(step, &rows, &mut sampled)?;
        }
        self.shared.watch.end(StepEnd::Computed);
        let now = self.shared.clock.now();
        if let (Some(speculator), Some(since)) = (&mut self.speculator, since) {
            speculator.record(step, now.saturating_sub(*since), sampled.taken.picks.len());
        }
        self.collected_at = Some(now);
        Ok(sampled)
    }

    /// Waits for these rows of the step and samples from them.
    fn collect_rows(&mut self, step: &Step, rows: &Range<usize>, sampled: &mut Sampled) -> Result<()> {
        let mut logits = self.device.collect()?;
        check_shape(&logits, rows.len(), self.vocab_size)?;
        for (whole, part) in step.parts(rows) {
            let (id, _) = request_of(part.id);
            if sampled.failed.iter().any(|(failed, _)| *failed == id) {
                continue;
            }
            let Some(request) = self.requests.get_mut(id) else { continue };
            let (sampler, taken) = (&mut self.sampler, &mut sampled.taken);
            let drafts = if part.samples.is_empty() { &[] } else { step.drafts(whole) };
            let picked = taken.picks.len();
            let read = guarded(|| request.read_logits(&part, drafts, &mut logits, sampler, taken));
            match read.unwrap_or_else(|payload| Err(panicked("sampling", payload.as_ref()))) {
                // Forced tokens do not count as draft tokens, since all of them are right.
                Ok(false) if !drafts.is_empty() && request.forced(part.id).is_empty() => {
                    let num_accepted = (sampled.taken.picks.len() - picked).saturating_sub(1);
                    self.counters.speculation.note_verified(drafts.len(), num_accepted);
                    if let Some(speculator) = &mut self.speculator {
                        speculator.note_verified(drafts.len(), num_accepted);
                    }
                }
                Ok(false) => {}
                Ok(true) => sampled.complete.push(id),
                Err(error @ Error::EngineDead { .. }) => return Err(error),
                Err(error) => {
                    sampled.taken.picks.truncate(picked);
                    sampled.failed.push((id, of_request(&request.name, error)));
                }
            }
        }
        self.counters.logits_rows_fetched += logits.num_fetched();
        Ok(())
    }

    /// Gives the sequences of a step their tokens and their next drafts. `ahead` was scheduled while the step ran.
    pub(super) fn commit(
        &mut self,
        Launched { step, .. }: &Launched,
        sampled: Sampled,
        proposed: &HashMap<SeqId, Vec<u32>>,
        ahead: &Step,
    ) -> Result<()> {
        let now = self.shared.clock.now();
        let Sampled { taken: Taken { mut picks, .. }, complete, failed } = sampled;
        // Failed requests end before the commit, so that their keys and values never enter the prefix cache.
        for (id, error) in failed {
            self.end_request(id, FinishReason::Error, Some(error), now);
        }
        picks.retain(|pick| self.requests.of(pick.seq).is_some());
        let tokens: Vec<u32> = picks.iter().map(|pick| pick.token).collect();
        let mut accepted = Vec::with_capacity(picks.len());
        let mut start = 0;
        for picks in picks.chunk_by(|pick, next| pick.seq == next.seq) {
            let range = start..start + picks.len();
            start = range.end;
            if picks[0].fork_of.is_none() {
                let forced = || forced_behind(&self.requests, picks, ahead);
                let drafts = proposed.get(&picks[0].seq).map_or_else(forced, Vec::as_slice);
                let drafts = &drafts[..drafts.len().min(self.config.most_drafts())];
                accepted.push((picks[0].seq, Accepted { tokens: &tokens[range], drafts }));
            }
        }
        self.scheduler.commit(step, accepted, now)?;
        for id in complete {
            self.complete(id, now);
        }
        self.give(picks, now)
    }

    /// Gives sequences the tokens that the scheduler has accepted, and gives their forks their first tokens.
    pub(super) fn give(&mut self, picks: Vec<Pick>, now: u64) -> Result<()> {
        for pick in picks.iter().filter(|pick| pick.fork_of.is_some()) {
            self.fork(pick, now)?;
        }
        let seqs: Vec<SeqId> = picks.iter().map(|pick| pick.seq).collect();
        for pick in picks {
            self.accept(pick, now);
        }
        self.pass_turns(seqs.into_iter());
        Ok(())
    }

    fn fork(&mut self, pick: &Pick, now: u64) -> Result<()> {
        let Some(parent) = pick.fork_of else { return Ok(()) };
        self.scheduler.fork(parent, pick.seq, pick.token, now)?;
        if let Some(sequence) = self.requests.sequence_mut(pick.seq) {
            sequence.forked();
        }
        Ok(())
    }

    /// Handles a step that failed or was stopped. The requests of a stopped step continue, unless they have ended.
    ///
    /// # Errors
    /// The error itself, if the engine cannot survive it.
    pub(super) fn give_up(&mut self, step: &Step, error: Error) -> Result<()> {
        if matches!(error, Error::Interrupted) {
            self.shared.watch.end(StepEnd::Stopped);
            self.scheduler.withdraw(step)?;
            self.note_freed();
            return Ok(());
        }
        self.shared.watch.end(StepEnd::Failed);
        self.scheduler.discard(step, self.shared.clock.now())?;
        self.note_freed();
        if matches!(error, Error::EngineDead { .. }) {
            return Err(error);
        }
        self.fail_step(step, error);
        Ok(())
    }

    /// Ends the requests of a failed step with its error. All other requests continue.
    fn fail_step(&mut self, step: &Step, error: Error) {
        let now = self.shared.clock.now();
        let problem = message_of(error);
        tracing::error!(requests = step.seqs.len(), "step failed: {problem}");
        for scheduled in &step.seqs {
            let (id, _) = request_of(scheduled.id);
            self.end_request(id, FinishReason::Error, Some(Error::StepFailed { problem: problem.clone() }), now);
        }
    }

    /// Ends the engine if requests wait and no step can be made: nothing would ever free a block for them.
    fn stalled(&mut self) -> Result<()> {
        if !self.has_requests() {
            return Ok(());
        }
        let error = Error::internal(format!(
            "{} requests, and no step can be made for {} waiting and {} running sequences",
            self.requests.len(),
            self.scheduler.num_waiting(),
            self.scheduler.num_running()
        ));
        Err(Error::EngineDead { reason: error.to_string() })
    }
}

/// Returns the tokens that are forced after the picks of a sequence. The next step computes them together with the last
/// pick, so nothing has to be drafted.
fn forced_behind<'a>(requests: &'a Requests, picks: &[Pick], ahead: &Step) -> &'a [u32] {
    let forced = requests.of(picks[0].seq).map_or(&[][..], |request| request.forced(picks[0].seq));
    let behind = forced.get(picks.len()..).unwrap_or_default();
    // A sequence with drafts that is part of the step ahead skips the step after it, and then gains all drafts but the
    // first. With fewer drafts it would lose time.
    let waits = !behind.is_empty() && ahead.seqs.iter().any(|scheduled| scheduled.id == picks[0].seq);
    if waits && behind.len() < MIN_DRAFTS_AHEAD { &[] } else { behind }
}

fn check_shape(logits: &Selection<'_>, rows: usize, vocab_size: usize) -> Result<()> {
    if logits.cols() == vocab_size && logits.num_rows() == rows {
        return Ok(());
    }
    Err(Error::internal(format!(
        "a step gave {} rows of {} logits, expected {rows} rows of {vocab_size}",
        logits.num_rows(),
        logits.cols()
    )))
}

/// Returns the error that ends one request of a step.
fn of_request(name: &str, error: Error) -> Error {
    match error {
        Error::GrammarFailed { .. } => error,
        other => Error::StepFailed { problem: format!("request {name}: {}", message_of(other)) },
    }
}

/// Returns only the problem of an error that is about to be wrapped in the same variant again.
fn message_of(error: Error) -> String {
    match error {
        Error::StepFailed { problem } => problem,
        other => other.to_string(),
    }
}
