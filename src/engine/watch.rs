//! Decides for whose sake a step is stopped half-way, on a device whose steps can be stopped.
//!
//! A step stops at once when the engine closes, and when each of its requests was aborted or is past its deadline:
//! nobody wants its results. Where others have a part in it, it stops for the sake of some once it has run for
//! `LEAST_RUN`. What a stopped step computed is not used; its other requests compute it again, to the same bits.
//!
//! It stops at once, too, for a request that has just come and that it gives way to (`scheduler::Yields`).
//!
//! An account bounds the time that is thrown away so while others waited, since a stream of cancelled requests, or of
//! new ones, could keep them from ever getting on. A step that is computed to its end pays back its own time, and once
//! `MOST_WASTED` is reached no step stops for the sake of some, or of one that has just come. So less time is wasted
//! than computed, but for that much and a step, and an end waits for a step only after others have waited for as long.
//! A rule by turns, every second step being computed, would make the end that follows another wait, however little was
//! wasted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ids::RequestId;
use crate::interrupt::Interrupt;
use crate::scheduler::Yields;

/// A step that others have a part in runs at least for so long: a decode of many sequences is mostly over by then.
const LEAST_RUN: Duration = Duration::from_millis(100);

/// A step of a long prompt takes seconds on a CPU: of these a few may be thrown away in a row, and others wait no
/// longer for the sake of those that went than they would for another long prompt or two.
const MOST_WASTED: Duration = Duration::from_secs(5);

/// State of the step under way, which the handles (on any thread) and the engine thread share.
pub(super) struct Watch {
    /// `None`: nothing can be stopped, and nothing is noted but who is expected.
    interrupt: Option<Interrupt>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// Requests that were aborted and that the engine thread has not ended yet.
    aborted: HashSet<RequestId>,
    /// Requests that were accepted and that the engine thread has not taken in yet: priority and client of each.
    expected: HashMap<RequestId, (i32, Option<Arc<str>>)>,
    step: Option<Running>,
    /// Time of steps that were stopped although others had a part in them, less what was computed since.
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
pub(super) enum StepEnd {
    Computed,
    Stopped,
    Failed,
}

impl Watch {
    pub(super) fn new(interrupt: Option<Interrupt>) -> Self {
        Self { interrupt, state: Mutex::default() }
    }

    /// Notes that a step begins, with these requests and their deadlines, and for whom it gives way.
    pub(super) fn begin(
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
    pub(super) fn end(&self, how: StepEnd) {
        if self.interrupt.is_some() {
            self.state.lock().end(how, Instant::now());
        }
    }

    /// Stops the step for a request, as far as it may. Must be called before the engine thread is told, so that no step
    /// begins without knowing of the abort.
    pub(super) fn abort(&self, id: RequestId) {
        let Some(interrupt) = &self.interrupt else { return };
        let mut state = self.state.lock();
        state.aborted.insert(id);
        state.tell(interrupt);
    }

    /// Notes that a request has come, and stops the step if that gives way to it and may. Must be called before the
    /// engine thread is told, so that no step begins without knowing of the request.
    pub(super) fn expect(&self, id: RequestId, priority: i32, client: Option<Arc<str>>) {
        let mut state = self.state.lock();
        state.expected.insert(id, (priority, client));
        if let Some(interrupt) = &self.interrupt {
            state.tell(interrupt);
        }
    }

    /// The engine thread has taken the request in, or never will.
    pub(super) fn take_in(&self, id: RequestId) {
        self.state.lock().expected.remove(&id);
    }

    /// Whether any request has come that the engine thread has not taken in.
    pub(super) fn expects_any(&self) -> bool {
        !self.state.lock().expected.is_empty()
    }

    /// Whether one of these is of those that a step gives way to.
    pub(super) fn expects(&self, yields: &Yields) -> bool {
        self.state.lock().expects(yields)
    }

    /// Forgets an aborted request that the engine thread has ended, or never will.
    pub(super) fn forget(&self, id: RequestId) {
        if self.interrupt.is_some() {
            self.state.lock().aborted.remove(&id);
        }
    }

    /// Stops this step and any that still begins, since the engine closes.
    pub(super) fn close(&self) {
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

    /// The time at which the step is to stop, as far as is known.
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

    /// The time from which a request of the step has no use for its results.
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

    /// A watch after so much waste that steps are computed as long as anybody wants them.
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

    /// A10: a step stops for one of its requests after a while, for all of them at once, for no other.
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
        // An abort that came between two steps is known to the next one.
        watch.end(StepEnd::Stopped);
        watch.forget(RequestId(1));
        watch.forget(RequestId(2));
        watch.begin([(RequestId(3), None)].into_iter(), || None);
        assert!(interrupt.is_due());
        watch.forget(RequestId(3));
        watch.begin([(RequestId(4), None)].into_iter(), || None);
        assert!(!interrupt.is_set() && watch.state.lock().aborted.is_empty());
    }

    /// A10: where as much was wasted as may be, a step goes on as long as anybody wants it.
    #[test]
    fn what_is_wasted_has_a_bound() {
        let soon = Instant::now() + LEAST_RUN * 3;
        let (watch, interrupt) = spent(&[(1, None), (2, Some(soon)), (3, None)]);
        watch.abort(RequestId(1));
        assert!(!interrupt.is_set());
        watch.abort(RequestId(3));
        assert!(interrupt.is_set() && stop_at(&watch) > Some(LEAST_RUN), "only until the last deadline");
    }

    /// A16: the earliest deadline stops a step where time may be wasted, the latest one where it may not.
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

    /// A step stops at once for a request that it gives way to, unless too much was wasted; and the next one does until
    /// the engine thread has taken the request in.
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

    /// A10: closing stops whatever runs, and what would still begin.
    #[test]
    fn closing_stops_everything() {
        let (watch, interrupt) = spent(&[(1, None)]);
        watch.close();
        assert!(interrupt.is_due());
        watch.begin([(RequestId(2), None)].into_iter(), || None);
        assert!(interrupt.is_due());
    }

    /// An engine under a clock of its own, in which request 0 is part of every step and never ends.
    struct Simulation {
        state: State,
        now: Instant,
        next_id: u64,
        computed: Duration,
        thrown_away: Duration,
        /// Thrown away since a step was last computed to its end.
        in_a_row: Duration,
    }

    impl Simulation {
        fn new() -> Self {
            let zero = Duration::ZERO;
            let now = Instant::now();
            Self { state: State::default(), now, next_id: 1, computed: zero, thrown_away: zero, in_a_row: zero }
        }

        /// A step that would take `length`, with a request whose end comes `end` after its begin, as an abort or as a
        /// deadline. How long that request waits for its end to be seen, at most until the step's.
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
            // Told at `end`, nothing stops before.
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

    /// A10: whoever cancels, or lets deadlines pass, in whatever pattern: an end acts within `LEAST_RUN` as long as
    /// less than `MOST_WASTED` was wasted, in the step after a stopped one too; and others get on. In a row no more is
    /// thrown away than that and a step, in all no more than is computed beyond that.
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
                // Some wait until a step is all but done.
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

    /// Time is not wasted if nobody wanted the results any more, or if the step failed.
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
