//! Threads that compute masks, beside the engine's.

use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use llguidance::Matcher;
use parking_lot::Mutex;

use crate::selection::TokenMask;
use crate::{Error, Result};

/// Threads at most. A mask takes some 50 microseconds, and the device's threads want the cores as well.
const MAX_THREADS: usize = 4;

/// The tokens that follow in a text because the grammar forces them, and the mask of the token behind them.
pub(super) struct Answer {
    /// The place behind the forced tokens.
    pub matcher: Box<Matcher>,
    pub forced: Vec<u32>,
    /// The mask, or the reason why there is none.
    pub mask: std::result::Result<TokenMask, String>,
}

/// Where in its grammar a text is, on its way to the mask of its next token.
pub(super) struct Job {
    pub matcher: Box<Matcher>,
    pub answer: Sender<Answer>,
}

/// The threads start with the first guide and end when the engine and all guides are gone.
#[derive(Default)]
pub(super) struct Pool(Mutex<Option<Sender<Job>>>);

impl Pool {
    /// # Errors
    /// `Internal` when the system gives no thread.
    pub(super) fn jobs(&self) -> Result<Sender<Job>> {
        let mut started = self.0.lock();
        if let Some(jobs) = &*started {
            return Ok(jobs.clone());
        }
        let (sender, queue) = unbounded();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(cores / 4).clamp(1, MAX_THREADS) {
            let queue = queue.clone();
            let spawned = thread::Builder::new().name("rocmforge-mask".into()).spawn(move || serve(&queue));
            spawned.map_err(|e| Error::internal(format!("the system gives no thread for masks: {e}")))?;
        }
        *started = Some(sender.clone());
        Ok(sender)
    }
}

fn serve(queue: &Receiver<Job>) {
    for Job { matcher, answer } in queue {
        // A sequence that has ended meanwhile waits for nothing.
        let _ = answer.send(look_ahead(matcher));
    }
}

/// Computes what follows; runs on a thread of the pool. An error in the forced tokens is the mask's too.
fn look_ahead(mut matcher: Box<Matcher>) -> Answer {
    let forced = matcher.consume_ff_tokens();
    let mask = matcher.compute_mask_or_eos();
    let mask = mask.map(|set| TokenMask::from_words(set.as_slice().to_vec())).map_err(|error| error.to_string());
    Answer { matcher, forced, mask }
}
