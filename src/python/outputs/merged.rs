//! Outputs on their way to Python. The engine's output thread merges new outputs into one entry per request, and the
//! consumer takes an entry when it is ready. A slow consumer thus costs one entry per request and one pending wake-up.
//! The engine never waits for it.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use pyo3::prelude::*;

use super::output::{Progress, Update};
use crate::Error;
use crate::engine::{OutputSink, RequestId, SequenceOutput};

/// Calls back on the thread of an event loop.
pub(in crate::python) struct LoopWaker {
    pub(in crate::python) event_loop: Py<PyAny>,
    pub(in crate::python) callback: Py<PyAny>,
}

impl LoopWaker {
    /// Returns false if the loop is closed or the interpreter is gone.
    fn wake(&self) -> bool {
        Python::try_attach(|py| self.event_loop.call_method1(py, "call_soon_threadsafe", (&self.callback,)).is_ok())
            .unwrap_or(false)
    }

    /// True if the loop can still be woken. Asks the loop directly: a stopped loop accepts calls, and may be closed
    /// before it runs them. So a pending wake-up proves nothing.
    fn is_alive(&self) -> bool {
        let closed = |py: Python<'_>| self.event_loop.call_method0(py, "is_closed")?.is_truthy(py);
        Python::try_attach(|py| closed(py).is_ok_and(|closed| !closed)).unwrap_or(false)
    }
}

/// The action to take after outputs are merged.
enum Next {
    /// The consumer is gone.
    End,
    Wake,
    /// The consumer has a pending wake-up, or there is no news for it yet.
    Nothing,
}

#[derive(Default)]
struct State {
    requests: HashMap<RequestId, Progress>,
    /// Requests with news that their consumer does not know of.
    ready: Vec<RequestId>,
    wake_under_way: bool,
    closed: bool,
}

/// A queue of news for Python: one per blocking call, or one per engine and event loop.
pub(in crate::python) struct MergedOutputs {
    state: Mutex<State>,
    news: Condvar,
    /// `None` if a thread waits on `news`.
    waker: Option<LoopWaker>,
}

impl MergedOutputs {
    pub(in crate::python) fn new(waker: Option<LoopWaker>) -> Self {
        Self { state: Mutex::default(), news: Condvar::new(), waker }
    }

    /// Adds the entry of a request. Must be called before its first output, because outputs without an entry are
    /// dropped.
    pub(in crate::python) fn expect(&self, id: RequestId, progress: Progress) {
        self.state.lock().requests.insert(id, progress);
    }

    /// Returns the requests with news. Each is listed once until it is taken.
    pub(in crate::python) fn ready(&self) -> Vec<RequestId> {
        let mut state = self.state.lock();
        state.wake_under_way = false;
        std::mem::take(&mut state.ready)
    }

    /// Returns the same as `ready`, after waiting for news for at most `timeout`.
    pub(in crate::python) fn wait(&self, timeout: Duration) -> Vec<RequestId> {
        let mut state = self.state.lock();
        if state.ready.is_empty() {
            self.news.wait_for(&mut state, timeout);
        }
        std::mem::take(&mut state.ready)
    }

    /// Takes the news of a request. Its last news removes its entry.
    pub(in crate::python) fn take(&self, id: RequestId) -> Option<Update> {
        let mut state = self.state.lock();
        let update = state.requests.get_mut(&id)?.take()?;
        if update.finished {
            state.requests.remove(&id);
        }
        Some(update)
    }

    /// Drops a request's entry; returns true if it was still running.
    pub(in crate::python) fn forget(&self, id: RequestId) -> bool {
        self.state.lock().requests.remove(&id).is_some_and(|progress| !progress.is_finished())
    }

    /// Drops all entries; returns the requests that were still running.
    pub(in crate::python) fn close(&self) -> Vec<RequestId> {
        let mut state = self.state.lock();
        state.closed = true;
        let requests = std::mem::take(&mut state.requests);
        requests.into_iter().filter(|(_, progress)| !progress.is_finished()).map(|(id, _)| id).collect()
    }

    pub(in crate::python) fn num_requests(&self) -> usize {
        self.state.lock().requests.len()
    }

    /// Returns the generated tokens of the requests that are still here.
    pub(in crate::python) fn num_tokens(&self) -> usize {
        self.state.lock().requests.values().map(Progress::num_tokens).sum()
    }

    fn merge(&self, outputs: Vec<SequenceOutput>) -> Next {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.closed {
            return Next::End;
        }
        for output in outputs {
            let id = output.request;
            if state.requests.get_mut(&id).is_some_and(|progress| progress.merge(output)) {
                state.ready.push(id);
            }
        }
        self.announce(state)
    }

    /// Merges outputs and notifies the consumer; returns false if the consumer is gone.
    pub(in crate::python) fn hand_over(&self, outputs: Vec<SequenceOutput>) -> bool {
        self.tell(self.merge(outputs))
    }

    /// Ends all unfinished requests with an error, and notifies the consumer.
    pub(in crate::python) fn fail(&self, error: &Error) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        for (&id, progress) in &mut state.requests {
            if progress.fail(id, error) {
                state.ready.push(id);
            }
        }
        let next = self.announce(state);
        drop(guard);
        // A consumer that is gone needs no notification.
        self.tell(next);
    }

    /// Must not be called with the lock held, because a thread that holds the interpreter may be waiting for the lock.
    fn tell(&self, next: Next) -> bool {
        match (next, &self.waker) {
            (Next::End, _) => false,
            (Next::Wake, Some(waker)) => waker.wake(),
            (Next::Nothing, Some(waker)) => waker.is_alive(),
            (_, None) => true,
        }
    }

    fn announce(&self, state: &mut State) -> Next {
        if state.ready.is_empty() {
            return Next::Nothing;
        }
        self.news.notify_all();
        if std::mem::replace(&mut state.wake_under_way, true) { Next::Nothing } else { Next::Wake }
    }
}

impl OutputSink for MergedOutputs {
    fn deliver(&self, outputs: Vec<SequenceOutput>) -> bool {
        let alive = self.hand_over(outputs);
        if !alive {
            self.close();
        }
        alive
    }
}
