//! The engine's state and its step. Everything here runs on the engine thread, which owns it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::delivery::{Delivery, Outbox};
use super::executor::Executor;
use super::ids::{RequestId, request_of};
use super::output::FinishReason;
use super::panics::{forward_panicked, guarded, panicked};
use super::request::{Pick, Request};
use super::shared::Shared;
use super::speculation::Speculator;
use super::stats::Stats;
use super::watch::StepEnd;
use crate::batch::TO_GUESS;
use crate::config::EngineConfig;
use crate::model::RankHead;
use crate::sampler::Sampler;
use crate::scheduler::{Accepted, Scheduler, SeqId, Step};
use crate::selection::Selection;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Forced tokens for which a sequence sits out a step, where steps are scheduled ahead.
const MIN_DRAFTS_AHEAD: usize = 3;

pub(super) struct Core {
    pub(super) shared: Arc<Shared>,
    pub(super) config: EngineConfig,
    pub(super) executor: Box<dyn Executor>,
    pub(super) scheduler: Scheduler,
    pub(super) vocab_size: usize,
    pub(super) rank_head: Option<Arc<RankHead>>,
    sampler: Sampler,
    /// Decides about guessed tokens; `None` where none are guessed.
    pub(super) speculator: Option<Speculator>,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    pub(super) requests: HashMap<RequestId, Request>,
    pub(super) deadlines: BTreeSet<(u64, RequestId)>,
    /// Outputs that the next flush sends to the output thread.
    pub(super) outbox: Vec<Delivery>,
    pub(super) outputs: Outbox,
    pub(super) counters: Stats,
    /// Aborted requests whose blocks a step in flight may hold: the newest such step, and when the abort was asked for.
    pub(super) cancelled: Vec<(Option<u64>, u64)>,
    /// Requests that were taken in since the counters were published.
    pub(super) num_taken: usize,
    pub(super) panics: u32,
    /// The time at which the results of a step were there, unless there was nothing to do since.
    pub(super) collected_at: Option<u64>,
}

/// A step that the executor computes: `launch` makes it, `Core::collect` waits for it.
pub(super) struct Launched {
    pub(super) step: Step,
    /// Whether the executor knows what is wanted of each row. It is told once all masks are there.
    pub(super) selected: bool,
    /// Whether the device chooses all of its tokens, of rows that nothing else is wanted of.
    pub(super) chooses: bool,
    /// The time from which on the engine worked on this step alone: the end of the one before.
    pub(super) since: Option<u64>,
}

/// The tokens picked from a step's logits.
pub(super) struct Sampled {
    picks: Vec<Pick>,
    /// Requests that sample nothing and have all they wanted.
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
        outputs: Outbox,
    ) -> Self {
        let (vocab_size, rank_head) = (executor.vocab_size(), executor.rank_head());
        let speculative = config.speculative_config.clone();
        let speculator = speculative.map(|settings| Speculator::new(settings, config.max_prompt_logits));
        Self {
            shared,
            config,
            executor,
            scheduler,
            vocab_size,
            rank_head,
            sampler: Sampler::new(vocab_size),
            speculator,
            tokenizer,
            requests: HashMap::new(),
            deadlines: BTreeSet::new(),
            outbox: Vec::new(),
            outputs,
            counters: Stats::default(),
            cancelled: Vec::new(),
            num_taken: 0,
            panics: 0,
            collected_at: None,
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.shared.clock.now()
    }

    /// Notes that there is nothing to do.
    pub(super) fn rest(&mut self) {
        self.collected_at = None;
    }

    pub(super) fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Runs one step: schedule, compute, sample, commit, output. Takes the step that runs and returns the one that runs
    /// then. Where the device computes on its own, that is the next step, scheduled while the first one ran: while it
    /// runs, outputs are delivered and commands taken. Elsewhere nothing runs between two calls.
    ///
    /// # Errors
    /// Only what the engine cannot go on after.
    pub(super) fn step(&mut self, running: Option<Launched>) -> Result<Option<Launched>> {
        let now = self.shared.clock.now();
        self.expire(now);
        // Whoever's request has ended need not wait for a step that it has no part in.
        if !self.outbox.is_empty() {
            self.flush();
        }
        let running = match running {
            Some(running) => Some(running),
            None => self.launch_first(now)?,
        };
        let Some(running) = running else { return Ok(None) };
        let ahead = self.schedule_ahead(now)?;
        if self.can_feed(&running, &ahead) {
            return self.feed(running, ahead);
        }
        let sampled = match self.collect(&running) {
            Ok(sampled) => sampled,
            Err(error) => {
                self.scheduler.withdraw(&ahead)?;
                self.give_up(&running.step, error)?;
                return Ok(None);
            }
        };
        let guesses = self.guess(&running.step, &sampled, &ahead);
        let ahead = if !guesses.is_empty() || self.gives_way(&ahead) {
            self.scheduler.withdraw(&ahead)?;
            Step::default()
        } else {
            ahead
        };
        self.commit(&running, sampled, &guesses, &ahead)?;
        let next = self.scheduler.complete(ahead, self.shared.clock.now())?;
        self.note_freed();
        self.launch(next)
    }

    /// Launches a first step, where none runs.
    fn launch_first(&mut self, now: u64) -> Result<Option<Launched>> {
        let step = self.scheduler.schedule(now)?;
        if step.seqs.is_empty() {
            self.stalled()?;
        }
        self.launch(step)
    }

    /// The step after the one that runs, where the device computes that on its own; its tokens are not all known yet.
    fn schedule_ahead(&mut self, now: u64) -> Result<Step> {
        if !self.executor.is_asynchronous() {
            return Ok(Step::default());
        }
        let step = self.scheduler.schedule(now)?;
        if !step.seqs.is_empty() {
            self.publish();
        }
        Ok(step)
    }

    /// The drafts of the next step, for the sequences that have some. The step ahead was scheduled without them and has
    /// to be taken back; where it copies blocks it stays, since their sequences would begin anew.
    fn guess(&mut self, step: &Step, sampled: &Sampled, ahead: &Step) -> HashMap<SeqId, Vec<u32>> {
        let Some(speculator) = &mut self.speculator else { return HashMap::new() };
        let mut offers = Vec::new();
        let mut of_step = step.seqs.iter();
        for picks in sampled.picks.chunk_by(|pick, next| pick.seq == next.seq) {
            let (seq, tokens) = (picks[0].seq, picks.iter().map(|pick| pick.token).collect::<Vec<u32>>());
            let request = self.requests.get_mut(&request_of(seq).0);
            let guessed = request.and_then(|request| request.guess(seq, &tokens));
            // A fork begins without drafts.
            if let Some(mut guesses) = guessed.filter(|_| picks[0].fork_of.is_none()) {
                let scheduled = of_step.find(|scheduled| scheduled.id == seq);
                let lag = scheduled.map(|scheduled| self.scheduler.draft_lag_after(step, scheduled, tokens.len()));
                guesses.missing = lag.unwrap_or(0);
                // A block's guesses are proposed once they are made.
                let num_made = guesses.tokens.iter().filter(|&&token| token != TO_GUESS).count();
                self.counters.speculation.num_proposed_tokens += num_made as u64;
                offers.push((seq, guesses));
            }
        }
        if !ahead.batch.block_copies.is_empty() {
            offers.clear();
        }
        speculator.choose(offers, self.scheduler.num_running())
    }

    /// Whether a request that has come since the step ahead was scheduled goes before it.
    fn gives_way(&self, ahead: &Step) -> bool {
        self.shared.watch.expects_any()
            && self.scheduler.yields(ahead).is_some_and(|yields| self.shared.watch.expects(&yields))
    }

    /// Waits for the step's logits and samples from them.
    pub(super) fn collect(&mut self, Launched { step, selected, since, .. }: &Launched) -> Result<Sampled> {
        if !selected {
            self.select(step)?;
        }
        let (executor, panics) = (&mut self.executor, &mut self.panics);
        let collected = guarded(|| executor.collect());
        let mut logits = collected.unwrap_or_else(|payload| Err(forward_panicked(panics, payload.as_ref())))?;
        self.panics = 0;
        self.shared.watch.end(StepEnd::Computed);
        check_shape(&logits, step.batch.logits_indices.len(), self.vocab_size)?;
        let picks = Vec::with_capacity(step.seqs.len());
        let mut sampled = Sampled { picks, complete: Vec::new(), failed: Vec::new() };
        for scheduled in &step.seqs {
            let (id, _) = request_of(scheduled.id);
            let Some(request) = self.requests.get_mut(&id) else { continue };
            let (sampler, picks) = (&mut self.sampler, &mut sampled.picks);
            let (picked, drafts) = (picks.len(), step.drafts(scheduled));
            let read = guarded(|| request.read_logits(scheduled, drafts, &mut logits, sampler, picks));
            match read.unwrap_or_else(|payload| Err(panicked("sampling", payload.as_ref()))) {
                // Forced drafts are no guesses: all of them are right.
                Ok(false) if !drafts.is_empty() && request.forced(scheduled.id).is_empty() => {
                    let num_accepted = (sampled.picks.len() - picked).saturating_sub(1);
                    self.counters.speculation.note_verified(drafts.len(), num_accepted);
                    if let Some(speculator) = &mut self.speculator {
                        speculator.note_verified(drafts.len(), num_accepted);
                    }
                }
                Ok(false) => {}
                Ok(true) => sampled.complete.push(id),
                Err(error @ Error::EngineDead { .. }) => return Err(error),
                Err(error) => {
                    sampled.picks.truncate(picked);
                    let problem = format!("request {}: {}", request.name, message_of(error));
                    sampled.failed.push((id, Error::StepFailed { problem }));
                }
            }
        }
        self.counters.logits_rows_fetched += logits.num_fetched();
        let now = self.shared.clock.now();
        if let (Some(speculator), Some(since)) = (&mut self.speculator, since) {
            speculator.record(step, now.saturating_sub(*since), sampled.picks.len());
        }
        self.collected_at = Some(now);
        Ok(sampled)
    }

    /// Gives the sequences of a step their tokens, and their next drafts; `ahead` is the step that was scheduled while
    /// it ran.
    pub(super) fn commit(
        &mut self,
        Launched { step, .. }: &Launched,
        sampled: Sampled,
        guesses: &HashMap<SeqId, Vec<u32>>,
        ahead: &Step,
    ) -> Result<()> {
        let now = self.shared.clock.now();
        let Sampled { mut picks, complete, failed } = sampled;
        // These end before the commit, so that K and V of a request with broken logits never become a cached prefix.
        for (id, error) in failed {
            self.end_request(id, FinishReason::Error, Some(error), now);
        }
        picks.retain(|pick| self.requests.contains_key(&request_of(pick.seq).0));
        let tokens: Vec<u32> = picks.iter().map(|pick| pick.token).collect();
        let mut accepted = Vec::with_capacity(picks.len());
        let mut start = 0;
        for picks in picks.chunk_by(|pick, next| pick.seq == next.seq) {
            let range = start..start + picks.len();
            start = range.end;
            if picks[0].fork_of.is_none() {
                let forced = || forced_behind(&self.requests, picks, ahead);
                let drafts = guesses.get(&picks[0].seq).map_or_else(forced, Vec::as_slice);
                let drafts = &drafts[..drafts.len().min(self.config.most_drafts())];
                accepted.push((picks[0].seq, Accepted { tokens: &tokens[range], drafts }));
            }
        }
        self.scheduler.commit(step, accepted, now)?;
        for id in complete {
            self.complete(id, now);
        }
        for pick in picks.iter().filter(|pick| pick.fork_of.is_some()) {
            self.fork(pick, now)?;
        }
        for pick in picks {
            self.accept(pick, now);
        }
        Ok(())
    }

    fn fork(&mut self, pick: &Pick, now: u64) -> Result<()> {
        let Some(parent) = pick.fork_of else { return Ok(()) };
        self.scheduler.fork(parent, pick.seq, pick.token, now)?;
        let (id, index) = request_of(pick.seq);
        if let Some(generation) = self.requests.get_mut(&id).and_then(Request::generation) {
            generation.sequences[index].forked();
        }
        Ok(())
    }

    /// The step failed, or was stopped: then its requests go on, but for those whose end has come meanwhile.
    ///
    /// # Errors
    /// The error itself, if the engine cannot go on after it.
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

    /// The step did not happen: its requests end with the error, all others go on.
    fn fail_step(&mut self, step: &Step, error: Error) {
        let now = self.shared.clock.now();
        let problem = message_of(error);
        tracing::error!(requests = step.seqs.len(), "step failed: {problem}");
        for scheduled in &step.seqs {
            let (id, _) = request_of(scheduled.id);
            self.end_request(id, FinishReason::Error, Some(Error::StepFailed { problem: problem.clone() }), now);
        }
    }

    /// Requests wait and nothing can run: with nothing to free blocks this would last for ever.
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

/// The tokens that are forced behind those picked for a sequence: the next step computes them with the last of these,
/// and nothing has to be guessed.
fn forced_behind<'a>(requests: &'a HashMap<RequestId, Request>, picks: &[Pick], ahead: &Step) -> &'a [u32] {
    let forced = requests.get(&request_of(picks[0].seq).0).map_or(&[][..], |request| request.forced(picks[0].seq));
    let behind = forced.get(picks.len()..).unwrap_or_default();
    // A sequence with drafts that is part of the step ahead is not part of the one after that, and then goes on by all
    // of them but the first: with fewer it would lose time.
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

/// The problem alone, where the error is of the kind that it will become again.
fn message_of(error: Error) -> String {
    match error {
        Error::StepFailed { problem } => problem,
        other => other.to_string(),
    }
}
