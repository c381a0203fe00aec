//! The thread that copies contents between page-locked memory and memory of their own. It takes the time of large
//! snapshots, so that no step waits for the host.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::Staging;
use crate::backend::Content;
use crate::backend::contents::joined;
use crate::{Error, Result};

/// The fewest bytes of a content whose memory is used again. The system gives and takes smaller ones quickly.
const MIN_SPARE: usize = 1 << 20;

/// The contents whose memory is kept for later ones.
const MAX_SPARE: usize = 2;

/// Work for the thread.
pub(super) enum Job {
    /// Copies the first `bytes` bytes of the page-locked memory.
    Out { number: u64, bytes: usize, staging: Staging },
    /// Copies a content to the page-locked memory, which has room for it.
    Back { number: u64, content: Content, staging: Staging },
    /// Takes the memory of a content that is not needed any more.
    Spare(Content),
}

/// A result of the thread, in the order of the jobs.
pub(super) enum Done {
    /// The content; `None` if the host has no memory for it.
    Out {
        number: u64,
        content: Option<Vec<u8>>,
        staging: Staging,
    },
    Back {
        number: u64,
        bytes: usize,
        staging: Staging,
    },
}

pub(super) struct HostThread {
    /// `None` only while it is dropped.
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl HostThread {
    /// # Errors
    /// `Internal` if the system cannot start a thread.
    pub(super) fn start() -> Result<Self> {
        let ((jobs, queue), (results, done)) = (unbounded(), unbounded());
        let thread = thread::Builder::new().name("rocmforge-kv-copies".into()).spawn(move || run(&queue, &results));
        let failed = |error| Error::internal(format!("the system cannot start a thread for copies: {error}"));
        Ok(Self { jobs: Some(jobs), done, thread: Some(thread.map_err(failed)?) })
    }

    pub(super) fn send(&self, job: Job) -> Result<()> {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if sent { Ok(()) } else { Err(ended()) }
    }

    /// Returns a result, if there is one; with `wait`, waits for it.
    pub(super) fn take(&self, wait: bool) -> Result<Option<Done>> {
        match wait {
            true => self.done.recv().map(Some).map_err(|_| ended()),
            false => Ok(self.done.try_recv().ok()),
        }
    }
}

impl Drop for HostThread {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(jobs: &Receiver<Job>, results: &Sender<Done>) {
    let mut spare: Vec<Vec<u8>> = Vec::new();
    for job in jobs {
        let done = match job {
            Job::Out { number, bytes, staging } => {
                let from = staging.memory.as_slice().get(..bytes).unwrap_or_default();
                let place = spare.iter().position(|memory| memory.len() == from.len());
                let content = match place.map(|place| spare.swap_remove(place)) {
                    Some(mut memory) => {
                        memory.copy_from_slice(from);
                        Some(memory)
                    }
                    None => joined(&[from]),
                };
                Done::Out { number, content, staging }
            }
            Job::Back { number, content, mut staging } => {
                let bytes = content.len();
                if let Some(to) = staging.memory.as_mut_slice().get_mut(..bytes) {
                    to.copy_from_slice(&content);
                }
                Done::Back { number, bytes, staging }
            }
            Job::Spare(content) => {
                if let Some(memory) = Arc::into_inner(content).filter(|memory| memory.len() >= MIN_SPARE) {
                    if spare.len() == MAX_SPARE {
                        spare.remove(0);
                    }
                    spare.push(memory);
                }
                continue;
            }
        };
        if results.send(done).is_err() {
            return;
        }
    }
}

fn ended() -> Error {
    Error::internal("the thread that copies contents has ended")
}
