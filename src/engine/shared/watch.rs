//! Decides when to interrupt a running step, on a device whose steps can be interrupted.
//!
//! A step is interrupted at once when the engine closes, or when each of its requests is aborted or past its deadline.
//! If others still need it, it may be interrupted for some of its requests once it has run for `LEAST_RUN`. The results
//! of an interrupted step are discarded. Its other requests compute it again, with identical bits.
//!
//! A step is also interrupted at once for a new request that takes precedence over it (`scheduler::Yields`).
//!
//! An account bounds the time that is wasted this way. Otherwise a stream of cancelled or new requests could keep
//! others from ever advancing. A step that completes pays back its own duration. Once `MOST_WASTED` is reached, no step
//! is interrupted for some of its requests or for a new one. So less time is wasted than computed, plus `MOST_WASTED`
//! and one step. An end waits for a step only after others have waited for as long.
//!
//! A simple rule, such as completing every second step, would delay the second of two ends, however little time was
//! wasted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::ids::RequestId;
use crate::interrupt::Interrupt;
use crate::scheduler::Yields;

/// The least duration of a step that others need. A decode of many sequences is mostly done by then.
const LEAST_RUN: Duration = Duration::from_millis(100);

/// On a CPU, a step of a long prompt takes seconds. This limit lets a few of them be wasted in a row. Others then wait
/// no longer than they would for one or two more long prompts.
const MOST_WASTED: Duration = Duration::from_secs(5);

/// The state of the running step, shared by the handles (on any thread) and the engine thread.
pub(crate) struct Watch {
    /// `None`: nothing can be interrupted, and only expected requests are noted.
    interrupt: Option<Interrupt>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// Aborted requests that the engine thread has not ended yet.
    aborted: HashSet<RequestId>,
    /// Accepted requests that the engine thread has not admitted yet: the priority and client of each.
    expected: HashMap<RequestId, (i32, Option<Arc<str>>)>,
    step: Option<Running>,
    /// The time of steps that were interrupted although others needed them, less the time computed since.
    wasted: Duration,
}

struct Running {
    started: Instant,
    /// The requests of the step, each with its deadline.
    requests: Vec<(RequestId, Option<Instant>)>,
    yields: Option<Yields>,
}

/// The ways in which a step ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepEnd {
    Computed,
    Stopped,
    Failed,
}

impl Watch {
    pub(crate) fn new(interrupt: Option<Interrupt>) -> Self {
        Self { interrupt, state: Mutex::default() }
    }

    /// Notes that a step begins, with its requests, their deadlines, and the requests that it gives way to.
    pub(crate) fn begin(
        &self,
        requests: impl Iterator<Item = (RequestId, Option<Instant>)>,
        yields: impl FnOnce() -> Option<Yields>,
    ) {
        let Some(interrupt) = &self.interrupt else { return };
        let (requests, yields) = (requests.collect(), yields());
        let mut state = self.state.lock();
        state.step = Some(Running { started: Instant::now(), requests, yields });
        interrupt.clear();
        state.tell(interrupt);
    }

    /// Notes that the step is over.
    pub(crate) fn end(&self, how: StepEnd) {
        if self.interrupt.is_some() {
            self.state.lock().end(how, Instant::now());
        }
    }

    /// Interrupts the step for an aborted request, as far as allowed. Must precede the message to the engine thread, so
    /// that no step begins without knowing of the abort.
    pub(crate) fn abort(&self, id: RequestId) {
        let Some(interrupt) = &self.interrupt else { return };
        let mut state = self.state.lock();
        state.aborted.insert(id);
        state.tell(interrupt);
    }

    /// Notes that a request has arrived, and interrupts the step if allowed and if the step gives way to it. Must
    /// precede the message to the engine thread, so that no step begins without knowing of the request.
    pub(crate) fn expect(&self, id: RequestId, priority: i32, client: Option<Arc<str>>) {
        let mut state = self.state.lock();
        state.expected.insert(id, (priority, client));
        if let Some(interrupt) = &self.interrupt {
            state.tell(interrupt);
        }
    }

    /// Notes that the engine thread has admitted the request, or never will.
    pub(crate) fn take_in(&self, id: RequestId) {
        self.state.lock().expected.remove(&id);
    }

    /// True if a request has arrived that the engine thread has not admitted.
    pub(crate) fn expects_any(&self) -> bool {
        !self.state.lock().expected.is_empty()
    }

    /// True if one of the expected requests takes precedence over a step.
    pub(crate) fn expects(&self, yields: &Yields) -> bool {
        self.state.lock().expects(yields)
    }

    /// Forgets an aborted request that the engine thread has ended, or never will end.
    pub(crate) fn forget(&self, id: RequestId) {
        if self.interrupt.is_some() {
            self.state.lock().aborted.remove(&id);
        }
    }

    /// Interrupts this step and any later one, since the engine closes.
    pub(crate) fn close(&self) {
        let Some(interrupt) = &self.interrupt else { return };
        let mut state = self.state.lock();
        state.closed = true;
        state.tell(interrupt);
    }
}

impl State {
    fn tell(&self, interrupt: &Interrupt) {
        if let Some(when) = self.stop_at() {
            interrupt.stop_at(when);
        }
    }

    /// Returns the time at which the step should stop, as far as known.
    fn stop_at(&self) -> Option<Instant> {
        let step = self.step.as_ref()?;
        if self.closed {
            return Some(step.started);
        }
        let ends = || step.requests.iter().map(|request| self.end_of(request, step));
        let last = ends().try_fold(step.started, |last, end| Some(last.max(end?)));
        let may_waste = self.wasted < MOST_WASTED;
        if may_waste && step.yields.as_ref().is_some_and(|yields| self.expects(yields)) {
            return Some(step.started);
        }
        let first = ends().flatten().min().filter(|_| may_waste).map(|end| end.max(step.started + LEAST_RUN));
        last.into_iter().chain(first).min()
    }

    fn expects(&self, yields: &Yields) -> bool {
        self.expected.values().any(|(priority, client)| yields.to(*priority, client.as_deref()))
    }

    /// Returns the time from which a request of the step no longer needs its results.
    fn end_of(&self, &(id, deadline): &(RequestId, Option<Instant>), step: &Running) -> Option<Instant> {
        if self.aborted.contains(&id) { Some(step.started) } else { deadline }
    }

    fn end(&mut self, how: StepEnd, now: Instant) {
        let Some(step) = self.step.take() else { return };
        let run = now.saturating_duration_since(step.started);
        match how {
            StepEnd::Computed => self.wasted = self.wasted.saturating_sub(run),
            StepEnd::Stopped => {
                let is_wanted = |request| self.end_of(request, &step).is_none_or(|end| end > now);
                if step.requests.iter().any(is_wanted) {
                    self.wasted += run;
                }
            }
            StepEnd::Failed => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    const FAR: Duration = Duration::from_secs(1000);

    fn watch(requests: &[(u64, Option<Instant>)]) -> (Watch, Interrupt) {
        let interrupt = Interrupt::default();
        let watch = Watch::new(Some(interrupt.clone()));
        watch.begin(requests.iter().map(|&(id, deadline)| (RequestId(id), deadline)), || None);
        (watch, interrupt)
    }

    /// Returns a watch with so much wasted time that steps run as long as any request needs them.
    fn spent(requests: &[(u64, Option<Instant>)]) -> (Watch, Interrupt) {
        let (watch, interrupt) = watch(requests);
        watch.state.lock().wasted = MOST_WASTED;
        interrupt.clear();
        (watch, interrupt)
    }

    fn stop_at(watch: &Watch) -> Option<Duration> {
        let state = watch.state.lock();
        Some(state.stop_at()? - state.step.as_ref()?.started)
    }

    /// A10: a step stops for one of its requests after a while, for all of them at once, and for no other.
    #[test]
    fn a_step_stops_for_its_own_requests() {
        let (watch, interrupt) = watch(&[(1, None), (2, None)]);
        watch.abort(RequestId(3));
        assert!(!interrupt.is_set());
        watch.abort(RequestId(1));
        assert_eq!(stop_at(&watch), Some(LEAST_RUN));
        watch.abort(RequestId(2));
        assert_eq!(stop_at(&watch), Some(Duration::ZERO));
        assert!(interrupt.is_due());
        // The next step knows of an abort that came between two steps.
        watch.end(StepEnd::Stopped);
        watch.forget(RequestId(1));
        watch.forget(RequestId(2));
        watch.begin([(RequestId(3), None)].into_iter(), || None);
        assert!(interrupt.is_due());
        watch.forget(RequestId(3));
        watch.begin([(RequestId(4), None)].into_iter(), || None);
        assert!(!interrupt.is_set() && watch.state.lock().aborted.is_empty());
    }

    /// A10: once the allowed time is wasted, a step continues as long as any request needs it.
    #[test]
    fn what_is_wasted_has_a_bound() {
        let soon = Instant::now() + LEAST_RUN * 3;
        let (watch, interrupt) = spent(&[(1, None), (2, Some(soon)), (3, None)]);
        watch.abort(RequestId(1));
        assert!(!interrupt.is_set());
        watch.abort(RequestId(3));
        assert!(interrupt.is_set() && stop_at(&watch) > Some(LEAST_RUN), "only until the last deadline");
    }

    /// A16: the earliest deadline stops a step while time may be wasted, and only the latest one otherwise.
    #[test]
    fn deadlines_stop_a_step() {
        let start = Instant::now();
        let requests = [(1, Some(start + FAR)), (2, Some(start + 2 * FAR))];
        let near = |got: Option<Duration>, far: Duration| got.is_some_and(|got| got <= far && got + LEAST_RUN > far);
        assert!(near(stop_at(&watch(&requests).0), FAR));
        assert!(near(stop_at(&spent(&requests).0), 2 * FAR));
        assert_eq!(stop_at(&watch(&[(1, Some(start)), (2, None)]).0), Some(LEAST_RUN));
        assert_eq!(stop_at(&spent(&[(1, Some(start + FAR)), (2, None)]).0), None);
    }

    /// A step stops at once for a request that takes precedence, unless too much was wasted. Later steps stop, too,
    /// until the engine thread has admitted the request.
    #[test]
    fn a_step_stops_for_whom_it_gives_way_to() {
        let yields = || Some(Yields::new(0, vec![(0, Some("many".into()))]));
        for wasted in [Duration::ZERO, MOST_WASTED] {
            let interrupt = Interrupt::default();
            let watch = Watch::new(Some(interrupt.clone()));
            watch.state.lock().wasted = wasted;
            watch.begin([(RequestId(1), None)].into_iter(), yields);
            watch.expect(RequestId(2), 0, Some("many".into()));
            watch.expect(RequestId(3), 1, Some("one".into()));
            assert!(!interrupt.is_set() && watch.expects_any());
            watch.expect(RequestId(4), 0, Some("one".into()));
            assert_eq!(interrupt.is_due(), wasted.is_zero());
            if wasted.is_zero() {
                watch.end(StepEnd::Stopped);
                assert!(watch.state.lock().wasted > Duration::ZERO);
                watch.begin([(RequestId(1), None)].into_iter(), yields);
                assert!(interrupt.is_due());
            }
            (2..5).for_each(|id| watch.take_in(RequestId(id)));
            watch.begin([(RequestId(1), None)].into_iter(), yields);
            assert!(!interrupt.is_set() && !watch.expects_any());
        }
    }

    /// A10: closing stops the running step and any later one.
    #[test]
    fn closing_stops_everything() {
        let (watch, interrupt) = spent(&[(1, None)]);
        watch.close();
        assert!(interrupt.is_due());
        watch.begin([(RequestId(2), None)].into_iter(), || None);
        assert!(interrupt.is_due());
    }

    /// An engine with its own clock. Request 0 is part of every step and never ends.
    struct Simulation {
        state: State,
        now: Instant,
        next_id: u64,
        computed: Duration,
        thrown_away: Duration,
        /// Time wasted since a step last completed.
        in_a_row: Duration,
    }

    impl Simulation {
        fn new() -> Self {
            let zero = Duration::ZERO;
            let now = Instant::now();
            Self { state: State::default(), now, next_id: 1, computed: zero, thrown_away: zero, in_a_row: zero }
        }

        /// Runs a step that would take `length`. It has a request that ends `end` after the start, by an abort or by
        /// its deadline. Returns how long that request waits for its end to take effect, at most until the step's end.
        fn step(&mut self, length: Duration, end: Duration, by_deadline: bool) -> Duration {
            let (started, victim) = (self.now, RequestId(self.next_id));
            self.next_id += 1;
            let deadline = by_deadline.then_some(started + end);
            self.state.step =
                Some(Running { started, requests: vec![(RequestId(0), None), (victim, deadline)], yields: None });
            if !by_deadline {
                assert_eq!(self.state.stop_at(), None, "a step that everybody wants");
                self.state.aborted.insert(victim);
            }
            // The abort arrives at `end`, so nothing stops before that.
            let stops = self.state.stop_at().map(|at| at.max(started + end)).filter(|at| *at < started + length);
            self.now = stops.unwrap_or(started + length);
            let run = self.now - started;
            if stops.is_some() {
                self.thrown_away += run;
                self.in_a_row += run;
            } else {
                self.computed += run;
                self.in_a_row = Duration::ZERO;
            }
            self.state.end(if stops.is_some() { StepEnd::Stopped } else { StepEnd::Computed }, self.now);
            self.state.aborted.clear();
            run.saturating_sub(end)
        }
    }

    /// A10: with any pattern of cancels and deadlines, an end takes effect within `LEAST_RUN` if less than
    /// `MOST_WASTED` was wasted before. That holds right after an interrupted step, too, and others advance.
    /// Consecutive waste is below `MOST_WASTED` plus one step; total waste is below the computed time plus that.
    #[test]
    fn a_flood_of_cancels_starves_nobody() {
        const LONGEST: Duration = Duration::from_secs(20);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for pattern in 0..200 {
            let mut simulation = Simulation::new();
            let mut stopped_in_a_row = 0;
            for _ in 0..500 {
                let mut up_to = |most: Duration| Duration::from_micros(random.next_u64() % most.as_micros() as u64);
                let length = match pattern % 4 {
                    0 => up_to(LONGEST),
                    1 => up_to(Duration::from_millis(300)),
                    2 => LONGEST,
                    _ => Duration::from_secs(1),
                };
                // Some ends come when a step is almost done.
                let end = if pattern % 3 == 0 { length.mul_f64(0.999) } else { up_to(length.max(LEAST_RUN)) };
                let (before, row) = (simulation.state.wasted, simulation.in_a_row);
                let waited = simulation.step(length, end.min(length), pattern % 5 == 0);
                if before < MOST_WASTED {
                    assert!(waited <= LEAST_RUN, "{waited:?} after {before:?}");
                }
                stopped_in_a_row = stopped_in_a_row.max(usize::from(simulation.in_a_row > row && row > Duration::ZERO));
                assert!(simulation.in_a_row < MOST_WASTED + LONGEST, "{:?} in a row", simulation.in_a_row);
                let (thrown_away, computed) = (simulation.thrown_away, simulation.computed);
                assert!(
                    thrown_away < computed + MOST_WASTED + LONGEST,
                    "{thrown_away:?} thrown away, {computed:?} not"
                );
            }
            assert!(simulation.computed > Duration::ZERO);
            assert!(pattern % 4 != 3 || stopped_in_a_row > 0, "no two steps in a row were stopped");
        }
    }

    /// Time is not wasted if no request needed the results any more, or if the step failed.
    #[test]
    fn only_what_others_wanted_is_wasted() {
        for (aborted, how, is_waste) in
            [(2, StepEnd::Stopped, false), (1, StepEnd::Stopped, true), (1, StepEnd::Failed, false)]
        {
            let (watch, _) = watch(&[(1, None), (2, None)]);
            (1..=aborted).for_each(|id| watch.abort(RequestId(id)));
            std::thread::sleep(Duration::from_millis(1));
            watch.end(how);
            assert_eq!(watch.state.lock().wasted > Duration::ZERO, is_waste, "{aborted} aborted, {how:?}");
        }
    }
}
