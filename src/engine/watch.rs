//! For whom a step is stopped half-way, on a device whose steps can be.
//!
//! A step stops at once when the engine closes, and when each of its requests was aborted or is past its deadline:
//! nobody wants its results. Where others have a part in it, it stops for the sake of some once it has run for
//! `LEAST_RUN`, and only if the step before was not stopped: however many requests are cancelled, every second step is
//! computed to its end. What a stopped step computed is not used; its other requests compute it again, to the same bits.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::handle::RequestId;
use crate::interrupt::Interrupt;

/// A step that others have a part in runs at least for so long: a decode of many sequences is mostly over by then.
const LEAST_RUN: Duration = Duration::from_millis(100);

/// What the handles, on any thread, and the engine thread know of the step under way.
pub(super) struct Watch {
    /// `None`: nothing can be stopped, and nothing is noted.
    interrupt: Option<Interrupt>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// Requests that were aborted and that the engine thread has not ended yet.
    aborted: HashSet<RequestId>,
    step: Option<Running>,
}

struct Running {
    started: Instant,
    /// Its requests, each with its deadline.
    requests: Vec<(RequestId, Option<Instant>)>,
    /// Whether it may stop for some of them.
    yields: bool,
}

impl Watch {
    pub(super) fn new(interrupt: Option<Interrupt>) -> Self {
        Self { interrupt, state: Mutex::default() }
    }

    /// A step begins. `yields`: it may be stopped although some of its requests go on.
    pub(super) fn begin(&self, requests: impl Iterator<Item = (RequestId, Option<Instant>)>, yields: bool) {
        let Some(interrupt) = &self.interrupt else { return };
        let mut state = self.state.lock();
        state.step = Some(Running { started: Instant::now(), requests: requests.collect(), yields });
        interrupt.clear();
        state.tell(interrupt);
    }

    /// To be said before the engine thread is told, so that no step begins without knowing.
    pub(super) fn abort(&self, id: RequestId) {
        let Some(interrupt) = &self.interrupt else { return };
        let mut state = self.state.lock();
        state.aborted.insert(id);
        state.tell(interrupt);
    }

    /// The engine thread has ended the request, or never will.
    pub(super) fn forget(&self, id: RequestId) {
        if self.interrupt.is_some() {
            self.state.lock().aborted.remove(&id);
        }
    }

    /// The engine closes: this step stops, and any that still begins.
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

    /// When the step is to stop, as far as is known.
    fn stop_at(&self) -> Option<Instant> {
        let step = self.step.as_ref()?;
        if self.closed {
            return Some(step.started);
        }
        let end_of = |&(id, deadline): &(RequestId, Option<Instant>)| {
            if self.aborted.contains(&id) { Some(step.started) } else { deadline }
        };
        let ends = || step.requests.iter().map(end_of);
        let last = ends().try_fold(step.started, |last, end| Some(last.max(end?)));
        let first = ends().flatten().min().filter(|_| step.yields).map(|end| end.max(step.started + LEAST_RUN));
        last.into_iter().chain(first).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Duration = Duration::from_secs(1000);

    fn watch(requests: &[(u64, Option<Instant>)], yields: bool) -> (Watch, Interrupt) {
        let interrupt = Interrupt::default();
        let watch = Watch::new(Some(interrupt.clone()));
        watch.begin(requests.iter().map(|&(id, deadline)| (RequestId(id), deadline)), yields);
        (watch, interrupt)
    }

    fn stop_at(watch: &Watch) -> Option<Duration> {
        let state = watch.state.lock();
        Some(state.stop_at()? - state.step.as_ref()?.started)
    }

    /// A10: a step stops for one of its requests after a while, for all of them at once, for no other.
    #[test]
    fn a_step_stops_for_its_own_requests() {
        let (watch, interrupt) = watch(&[(1, None), (2, None)], true);
        watch.abort(RequestId(3));
        assert!(!interrupt.is_set());
        watch.abort(RequestId(1));
        assert_eq!(stop_at(&watch), Some(LEAST_RUN));
        watch.abort(RequestId(2));
        assert_eq!(stop_at(&watch), Some(Duration::ZERO));
        assert!(interrupt.is_due());
        // An abort that came between two steps is known to the next one.
        watch.forget(RequestId(1));
        watch.forget(RequestId(2));
        watch.begin([(RequestId(3), None)].into_iter(), false);
        assert!(interrupt.is_due());
        watch.forget(RequestId(3));
        watch.begin([(RequestId(4), None)].into_iter(), false);
        assert!(!interrupt.is_set() && watch.state.lock().aborted.is_empty());
    }

    /// A10: where the step before was stopped, this one goes on as long as anybody wants it.
    #[test]
    fn every_second_step_is_computed() {
        let soon = Instant::now() + LEAST_RUN * 3;
        let (watch, interrupt) = watch(&[(1, None), (2, Some(soon)), (3, None)], false);
        watch.abort(RequestId(1));
        assert!(!interrupt.is_set());
        watch.abort(RequestId(3));
        assert!(interrupt.is_set() && stop_at(&watch) > Some(LEAST_RUN), "only until the last deadline");
    }

    /// A16: the earliest deadline stops a step that yields, the latest one that does not.
    #[test]
    fn deadlines_stop_a_step() {
        let start = Instant::now();
        let requests = [(1, Some(start + FAR)), (2, Some(start + 2 * FAR))];
        let near = |got: Option<Duration>, far: Duration| got.is_some_and(|got| got <= far && got + LEAST_RUN > far);
        assert!(near(stop_at(&watch(&requests, true).0), FAR));
        assert!(near(stop_at(&watch(&requests, false).0), 2 * FAR));
        assert_eq!(stop_at(&watch(&[(1, Some(start)), (2, None)], true).0), Some(LEAST_RUN));
        assert_eq!(stop_at(&watch(&[(1, Some(start + FAR)), (2, None)], false).0), None);
    }

    /// A10: closing stops whatever runs, and what would still begin.
    #[test]
    fn closing_stops_everything() {
        let (watch, interrupt) = watch(&[(1, None)], false);
        watch.close();
        assert!(interrupt.is_due());
        watch.begin([(RequestId(2), None)].into_iter(), false);
        assert!(interrupt.is_due());
    }
}
