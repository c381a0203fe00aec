//! Threads that compute masks ahead, next to the engine thread.
//!
//! There are two lanes. Grammars whose last computation took long share one thread, so that others need not wait for
//! them.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use llguidance::{CancellationHandle, TokenParser};
use parking_lot::Mutex;

use super::ahead::{Ahead, Problem, look_ahead};
use super::cache::Cache;
use super::compiled::Compiled;
use crate::{Error, Result};

/// The number of threads of the quick lane. A computation takes some 50 microseconds, and the device needs the cores,
/// too.
const MIN_THREADS: usize = 2;
const MAX_THREADS: usize = 4;
/// A computation that takes longer is slow. In tests, none is slow by chance on a loaded machine.
const SLOW: Duration = if cfg!(test) { Duration::from_secs(600) } else { Duration::from_millis(5) };
/// A computation that takes longer fails. Usually the library's work limits end it long before.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The result of a computation, and the parser after the forced tokens.
pub(super) struct Answer {
    pub parser: Box<TokenParser>,
    pub ahead: std::result::Result<Ahead, Problem>,
}

/// A requested computation.
struct Job {
    grammar: Arc<Compiled>,
    parser: Box<TokenParser>,
    progress: Arc<Progress>,
    answer: Sender<Answer>,
}

/// A computation in progress. It is cancelled when this is dropped without an answer.
pub(super) struct Pending {
    progress: Arc<Progress>,
    answers: Receiver<Answer>,
    answered: bool,
}

struct Progress {
    cancel: CancellationHandle,
    started: OnceLock<Instant>,
}

impl Pending {
    /// Returns the answer once, if it arrives by the deadline; an error if it will never arrive.
    pub(super) fn answer_by(&mut self, deadline: Instant) -> Option<std::result::Result<Answer, Problem>> {
        match self.answers.recv_deadline(deadline) {
            Ok(answer) => {
                self.answered = true;
                Some(Ok(answer))
            }
            Err(error) if error.is_disconnected() => Some(Err("the thread for masks has ended".into())),
            Err(_) => {
                let started = self.progress.started.get();
                let overdue = started.is_some_and(|started| started.elapsed() > MAX_TIME);
                overdue.then(|| Err(format!("its next mask was not computed within {} s", MAX_TIME.as_secs())))
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // If the answer was taken, there is nothing left to cancel.
        if !self.answered {
            self.progress.cancel.cancel();
        }
    }
}

/// The threads' queues. Threads start with the first guide and end when the engine and all guides are gone.
#[derive(Clone)]
pub(super) struct Lanes {
    quick: Sender<Job>,
    slow: Sender<Job>,
}

#[derive(Default)]
pub(super) struct Pool(Mutex<Option<Lanes>>);

impl Pool {
    /// # Errors
    /// `Internal` if the system cannot start a thread.
    pub(super) fn lanes(&self, cache: &Arc<Mutex<Cache>>) -> Result<Lanes> {
        let mut started = self.0.lock();
        if let Some(lanes) = &*started {
            return Ok(lanes.clone());
        }
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let quick = lane((cores / 4).clamp(MIN_THREADS, MAX_THREADS), cache)?;
        let lanes = Lanes { quick, slow: lane(1, cache)? };
        *started = Some(lanes.clone());
        Ok(lanes)
    }
}

impl Lanes {
    /// Requests a computation from a thread. Returns the parser if there is no thread.
    pub(super) fn look_ahead(
        &self,
        grammar: &Arc<Compiled>,
        mut parser: Box<TokenParser>,
    ) -> std::result::Result<Pending, Box<TokenParser>> {
        let progress = Arc::new(Progress { cancel: parser.enable_cancellation(), started: OnceLock::new() });
        let (answer, answers) = crossbeam_channel::bounded(1);
        let lane = if grammar.slow.load(Ordering::Relaxed) { &self.slow } else { &self.quick };
        let job = Job { grammar: Arc::clone(grammar), parser, progress: Arc::clone(&progress), answer };
        lane.send(job).map_err(|refused| refused.into_inner().parser)?;
        Ok(Pending { progress, answers, answered: false })
    }
}

fn lane(threads: usize, cache: &Arc<Mutex<Cache>>) -> Result<Sender<Job>> {
    let (sender, queue) = unbounded();
    for _ in 0..threads {
        let (queue, cache) = (queue.clone(), Arc::clone(cache));
        let spawned = thread::Builder::new().name("rocmforge-mask".into()).spawn(move || serve(&queue, &cache));
        spawned.map_err(|e| Error::internal(format!("the system cannot start a thread for masks: {e}")))?;
    }
    Ok(sender)
}

fn serve(queue: &Receiver<Job>, cache: &Mutex<Cache>) {
    for Job { grammar, mut parser, progress, answer } in queue {
        let before = grammar.bytes();
        let ahead = grammar.turns.alone(|| {
            let started = *progress.started.get_or_init(Instant::now);
            let ahead = look_ahead(&mut parser);
            grammar.slow.store(started.elapsed() > SLOW, Ordering::Relaxed);
            if ahead.is_ok() {
                grammar.measure();
            }
            ahead
        });
        if grammar.bytes() > before {
            cache.lock().shrink();
        }
        let ahead = ahead.and_then(|ahead| grammar.check_memory().map(|()| ahead));
        // There is no receiver if the sequence has ended meanwhile.
        let _ = answer.send(Answer { parser, ahead });
    }
}
